"""What max and average pooling share: windows of any size and stride, partial ones dropped (floor)."""

from __future__ import annotations

from math import prod
from typing import Any

from pydantic import model_validator

from pcnn_bench.layers.base import (
    FLOAT_BYTES,
    LayerSpec,
    Pair,
    Shape,
    require_images,
    window_extent,
)


class PoolingSpec(LayerSpec):
    """Windows of ``size`` placed ``stride`` apart (default: side by side); they may overlap or leave gaps."""

    size: Pair
    stride: Pair

    @model_validator(mode="before")
    @classmethod
    def _default_stride(cls, values: Any) -> Any:
        """An absent or null stride is the size."""
        if isinstance(values, dict) and values.get("stride") is None:
            return {**values, "stride": values.get("size")}
        return values

    def output_shape(self, x: Shape) -> Shape:
        """(N, C, H, W) -> (N, C, P, Q)."""
        n, c, h, w = require_images(self.kind, x)
        p, q = (
            window_extent(self.kind, *axis)
            for axis in zip((h, w), self.size, self.stride, strict=True)
        )
        return (n, c, p, q)

    def forward_flops(self, x: Shape) -> int:
        """One operation for each cell of each window."""
        return prod(self.output_shape(x)) * prod(self.size)

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """One addition for each cell of each window."""
        return self.forward_flops(x) if needs_grad_x else 0

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """grad_y read, grad_x written."""
        return FLOAT_BYTES * (prod(x) + prod(self.output_shape(x))) if needs_grad_x else 0
