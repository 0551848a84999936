"""Mean squared error against one-hot targets."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal

from pcnn_bench.layers.base import FLOAT_BYTES, Shape
from pcnn_bench.layers.loss import LossSpec


class MeanSquaredErrorSpec(LossSpec):
    """loss[n] = mean over k of (x[n,k] - onehot[n,k])^2; grad_x = 2 (x - onehot) / (N K)."""

    kind: Literal["mean_squared_error"] = "mean_squared_error"
    forward_flops_each: ClassVar[int] = 3
    backward_flops_each: ClassVar[int] = 2

    def forward_bytes(self, x: Shape) -> int:
        """x and labels read; losses written."""
        return FLOAT_BYTES * (prod(x) + 2 * x[0])
