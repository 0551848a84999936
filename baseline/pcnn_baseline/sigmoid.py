"""The logistic function."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer


class Sigmoid(BaselineLayer):
    """y = 1 / (1 + exp(-x)); dy/dx = y (1 - y)."""

    keeps: ClassVar[frozenset[str]] = frozenset({"y"})
    _y: Array

    def forward(self, x: Array) -> Array:
        """x (N, ...) -> y (N, ...)."""
        y: Array = self.workspace.batch("y", x.shape)
        np.negative(x, out=y)
        with np.errstate(
            over="ignore"
        ):  # exp becomes infinite for x below about -88, and y its limit, 0
            np.exp(y, out=y)
        y += 1
        self._y = np.reciprocal(y, out=y)
        return self._y

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, ...) -> grad_x (N, ...)."""
        grad_x: Array = self.workspace.batch("grad_x", grad_y.shape)
        np.subtract(1, self._y, out=grad_x)
        np.multiply(self._y, grad_x, out=grad_x)
        return np.multiply(grad_y, grad_x, out=grad_x)
