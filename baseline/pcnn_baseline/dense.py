"""Fully connected layer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer
from pcnn_bench.network import Layer


class Dense(BaselineLayer):
    """y = x weight^T + bias, with weight (K, F) and bias (K,)."""

    keeps: ClassVar[frozenset[str]] = frozenset({"x"})

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(layer, dtype)
        self._x: Array = np.empty((0, 0), dtype)

    def forward(self, x: Array) -> Array:
        """x (N, F) -> y (N, K)."""
        self._x = x
        y: Array = self.workspace.batch("y", self.layer.batch_y(x.shape[0]))
        np.matmul(x, self.parameters["weight"].T, out=y)
        y += self.parameters["bias"]
        return y

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, K) -> grad_x (N, F) or None."""
        np.matmul(grad_y.T, self._x, out=self.gradients["weight"])
        grad_y.sum(axis=0, out=self.gradients["bias"])
        if not self.layer.needs_grad_x:
            return None
        grad_x: Array = self.workspace.batch("grad_x", self._x.shape)
        return np.matmul(grad_y, self.parameters["weight"], out=grad_x)
