"""Maps to vectors: a view, nothing moves."""

from __future__ import annotations

from math import prod
from typing import Literal

from pcnn_bench.layers.base import LayerSpec, Shape


class FlattenSpec(LayerSpec):
    """(N, C, H, W) -> (N, C * H * W) in that order."""

    kind: Literal["flatten"] = "flatten"

    def output_shape(self, x: Shape) -> Shape:
        """(N, ...) -> (N, F)."""
        return (x[0], prod(x[1:]))

    def forward_bytes(self, x: Shape) -> int:
        """None: the same memory under another shape."""
        return 0
