"""Softmax followed by cross-entropy, in one stable step."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLoss
from pcnn_bench.network import Labels


class SoftmaxCrossEntropy(BaselineLoss):
    """loss[n] = log(sum over k of exp(x[n,k] - m)) + m - x[n,label], with m = max over k of x[n,k].

    grad_x = (probability - onehot) / N. Subtracting the largest score first keeps exp within 0 .. 1
    and its sum within 1 .. K: neither overflows, and the logarithm never meets a zero.
    """

    keeps: ClassVar[frozenset[str]] = frozenset({"probability"})
    _probability: Array
    _labels: Labels

    def forward(self, x: Array, labels: Labels) -> Array:
        """x (N, K), labels (N,) -> losses (N,)."""
        n = x.shape[0]
        probability: Array = self.workspace.batch("probability", x.shape)
        losses: Array = self.workspace.batch("losses", (n,))
        np.subtract(x, x.max(axis=1, keepdims=True), out=probability)
        np.negative(probability[np.arange(n), labels], out=losses)
        np.exp(probability, out=probability)
        total = probability.sum(axis=1)
        losses += np.log(total)
        probability /= total[:, None]
        self._probability, self._labels = probability, labels
        return losses

    def backward(self) -> Array:
        """-> grad_x (N, K)."""
        n = self._labels.size
        grad_x: Array = self.workspace.batch("grad_x", self._probability.shape)
        np.copyto(grad_x, self._probability)
        grad_x[np.arange(n), self._labels] -= 1
        grad_x /= n
        return grad_x
