"""Softmax followed by cross-entropy, in one stable step."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal

from pcnn_bench.layers.base import FLOAT_BYTES, Shape
from pcnn_bench.layers.loss import LossSpec


class SoftmaxCrossEntropySpec(LossSpec):
    """loss[n] = log(sum over k of exp(x[n,k] - m)) + m - x[n,label], m = max x[n]; grad_x = (p - onehot) / N."""

    kind: Literal["softmax_cross_entropy"] = "softmax_cross_entropy"
    forward_flops_each: ClassVar[int] = 5
    backward_flops_each: ClassVar[int] = 2

    def forward_bytes(self, x: Shape) -> int:
        """x and labels read; probabilities and losses written."""
        return FLOAT_BYTES * (2 * prod(x) + 2 * x[0])
