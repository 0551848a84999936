"""The hyperbolic tangent."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer


class Tanh(BaselineLayer):
    """y = tanh(x); dy/dx = 1 - y*y."""

    keeps: ClassVar[frozenset[str]] = frozenset({"y"})
    _y: Array

    def forward(self, x: Array) -> Array:
        """x (N, ...) -> y (N, ...)."""
        self._y = self.workspace.batch("y", x.shape)
        return np.tanh(x, out=self._y)

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, ...) -> grad_x (N, ...)."""
        grad_x: Array = self.workspace.batch("grad_x", grad_y.shape)
        np.multiply(self._y, self._y, out=grad_x)
        np.subtract(1, grad_x, out=grad_x)
        return np.multiply(grad_y, grad_x, out=grad_x)
