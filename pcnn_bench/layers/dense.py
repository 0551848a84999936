"""Fully connected layer."""

from __future__ import annotations

from math import prod
from typing import Literal

from pcnn_bench.layers.base import FLOAT_BYTES, LayerSpec, PositiveInt, Shape, require_vectors


class DenseSpec(LayerSpec):
    """y[n,k] = bias[k] + sum over f of x[n,f] weight[k,f]."""

    kind: Literal["dense"] = "dense"
    out_features: PositiveInt

    def output_shape(self, x: Shape) -> Shape:
        """(N, F) -> (N, K)."""
        n, _ = require_vectors(self.kind, x)
        return (n, self.out_features)

    def parameter_shapes(self, x: Shape) -> dict[str, Shape]:
        """weight (K, F) and bias (K,)."""
        _, features = require_vectors(self.kind, x)
        return {"weight": (self.out_features, features), "bias": (self.out_features,)}

    def fan_in(self, x: Shape) -> int:
        """F."""
        return x[1]

    def forward_flops(self, x: Shape) -> int:
        """Two for each product; the bias is the sum's start."""
        return 2 * prod(x) * self.out_features

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """Weight gradient, bias gradient and, where needed, input gradient."""
        return self.forward_flops(x) * (2 if needs_grad_x else 1) + prod(self.output_shape(x))

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """x, grad_y read and parameter gradients written; weight read and grad_x written where needed."""
        count = prod(x) + prod(self.output_shape(x)) + self.parameter_count(x)
        if needs_grad_x:
            count += prod(x) + self.out_features * x[1]
        return FLOAT_BYTES * count
