"""Average pooling."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer
from pcnn_baseline.windows import cells
from pcnn_bench.layers.avgpool2d import AvgPool2dSpec
from pcnn_bench.network import Layer


class AvgPool2d(BaselineLayer):
    """y = the sum of the window's cells / their number; partial windows at the edge are dropped."""

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(layer, dtype)
        assert isinstance(layer.spec, AvgPool2dSpec)
        self._spec = layer.spec

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """Backward also keeps each window's share."""
        share = item_bytes * prod(layer.batch_y(n)) if layer.needs_grad_x else 0
        return super().pass_bytes(layer, n, item_bytes) + share

    def forward(self, x: Array) -> Array:
        """x (N, C, H, W) -> y (N, C, P, Q)."""
        y: Array = self.workspace.batch("y", self.layer.batch_y(x.shape[0]))
        first, *others = cells(x, self._spec, *y.shape[2:])
        np.copyto(y, first)
        for cell in others:
            y += cell
        y /= prod(self._spec.size)
        return y

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, C, P, Q) -> grad_x (N, C, H, W); windows that overlap add up."""
        share: Array = self.workspace.batch("share", grad_y.shape)
        np.divide(grad_y, prod(self._spec.size), out=share)
        grad_x: Array = self.workspace.batch("grad_x", self.layer.batch_x(grad_y.shape[0]))
        grad_x.fill(0)
        for cell in cells(grad_x, self._spec, *grad_y.shape[2:]):
            cell += share
        return grad_x
