"""What the loss specs share: class scores in, one number a sample out."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from pcnn_bench.layers.base import FLOAT_BYTES, LayerSpec, Shape, require_vectors


class LossSpec(LayerSpec):
    """Compares scores x (N, K) with labels (N,); the loss of a batch is the mean over its samples."""

    forward_flops_each: ClassVar[int]
    backward_flops_each: ClassVar[int]

    def output_shape(self, x: Shape) -> Shape:
        """(N, K) -> (N,)."""
        n, _ = require_vectors(self.kind, x)
        return (n,)

    def forward_flops(self, x: Shape) -> int:
        """``forward_flops_each`` for each score."""
        return self.forward_flops_each * prod(x)

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """``backward_flops_each`` for each score."""
        return self.backward_flops_each * prod(x) if needs_grad_x else 0

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """What forward kept (one number a score) and the labels read, grad_x written."""
        return FLOAT_BYTES * (2 * prod(x) + x[0]) if needs_grad_x else 0
