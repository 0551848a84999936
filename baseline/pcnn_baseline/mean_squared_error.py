"""Mean squared error against one-hot targets."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLoss
from pcnn_bench.network import Labels


class MeanSquaredError(BaselineLoss):
    """loss[n] = mean over k of (x[n,k] - onehot[n,k])^2; grad_x = 2 (x - onehot) / (N K)."""

    keeps: ClassVar[frozenset[str]] = frozenset({"difference"})
    _difference: Array

    def forward(self, x: Array, labels: Labels) -> Array:
        """x (N, K), labels (N,) -> losses (N,)."""
        n = x.shape[0]
        difference: Array = self.workspace.batch("difference", x.shape)
        np.copyto(difference, x)
        difference[np.arange(n), labels] -= 1
        self._difference = difference
        losses: Array = self.workspace.batch("losses", (n,))
        return np.mean(np.square(difference), axis=1, out=losses)

    def backward(self) -> Array:
        """-> grad_x (N, K)."""
        grad_x: Array = self.workspace.batch("grad_x", self._difference.shape)
        return np.multiply(self._difference, 2 / self._difference.size, out=grad_x)
