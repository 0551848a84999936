"""Max pooling."""

from __future__ import annotations

from math import prod
from typing import Literal

from pcnn_bench.layers.base import Shape
from pcnn_bench.layers.pooling import PoolingSpec

INDEX_BYTES = 4


class MaxPool2dSpec(PoolingSpec):
    """The largest value of each window; the first in row order on a tie, a NaN beats every number.

    Forward keeps the position of the maximum in the window (int32, row order); backward adds grad_y there.
    """

    kind: Literal["maxpool2d"] = "maxpool2d"

    def forward_bytes(self, x: Shape) -> int:
        """x read; y and the positions written."""
        return super().forward_bytes(x) + INDEX_BYTES * prod(self.output_shape(x))

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """grad_y and the positions read, grad_x written."""
        positions = INDEX_BYTES * prod(self.output_shape(x)) if needs_grad_x else 0
        return super().backward_bytes(x, needs_grad_x) + positions
