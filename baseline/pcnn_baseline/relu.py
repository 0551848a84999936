"""The rectifier."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer
from pcnn_bench.network import Layer


class Relu(BaselineLayer):
    """y = max(x, 0); dy/dx = 1 where y > 0, else 0 (also at x = 0)."""

    keeps: ClassVar[frozenset[str]] = frozenset({"y"})
    _y: Array

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """Backward also keeps a boolean for each y."""
        is_active = np.dtype(np.bool_).itemsize * prod(layer.batch_y(n))
        return super().pass_bytes(layer, n, item_bytes) + is_active

    def forward(self, x: Array) -> Array:
        """x (N, ...) -> y (N, ...)."""
        self._y = self.workspace.batch("y", x.shape)
        return np.maximum(x, 0, out=self._y)

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, ...) -> grad_x (N, ...)."""
        is_active: npt.NDArray[np.bool_] = self.workspace.batch("is_active", grad_y.shape, np.bool_)
        np.greater(self._y, 0, out=is_active)
        grad_x: Array = self.workspace.batch("grad_x", grad_y.shape)
        # a product, since a choice (`where=`) takes eight times as long on signs that nothing predicts
        return np.multiply(grad_y, is_active, out=grad_x)
