"""Convolution over maps (cross-correlation, as every framework computes it)."""

from __future__ import annotations

from math import prod
from typing import Literal

from pcnn_bench.layers.base import (
    FLOAT_BYTES,
    LayerSpec,
    PaddingPair,
    Pair,
    PositiveInt,
    Shape,
    require_images,
    window_extent,
)


class Conv2dSpec(LayerSpec):
    """y[n,k,p,q] = bias[k] + sum over c,r,s of x[n,c,p*stride+r-padding,q*stride+s-padding] weight[k,c,r,s]."""

    kind: Literal["conv2d"] = "conv2d"
    out_channels: PositiveInt
    kernel: Pair
    stride: Pair = (1, 1)
    padding: PaddingPair = (0, 0)

    def output_shape(self, x: Shape) -> Shape:
        """(N, C, H, W) -> (N, K, P, Q)."""
        n, _, h, w = require_images(self.kind, x)
        p, q = (
            window_extent(self.kind, *axis)
            for axis in zip((h, w), self.kernel, self.stride, self.padding, strict=True)
        )
        return (n, self.out_channels, p, q)

    def parameter_shapes(self, x: Shape) -> dict[str, Shape]:
        """weight (K, C, R, S) and bias (K,)."""
        _, c, _, _ = require_images(self.kind, x)
        return {"weight": (self.out_channels, c, *self.kernel), "bias": (self.out_channels,)}

    def fan_in(self, x: Shape) -> int:
        """C * R * S."""
        return x[1] * prod(self.kernel)

    def forward_flops(self, x: Shape) -> int:
        """Two for each product, padding included; the bias is the sum's start."""
        return 2 * prod(self.output_shape(x)) * self.fan_in(x)

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """Weight gradient, bias gradient and, where needed, input gradient."""
        y = self.output_shape(x)
        return self.forward_flops(x) * (2 if needs_grad_x else 1) + prod(y)

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """x, grad_y read and parameter gradients written; weight read and grad_x written where needed."""
        y, parameters = prod(self.output_shape(x)), self.parameter_count(x)
        count = prod(x) + y + parameters
        if needs_grad_x:
            count += prod(x) + parameters - self.out_channels
        return FLOAT_BYTES * count
