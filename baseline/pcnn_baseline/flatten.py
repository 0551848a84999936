"""Maps to vectors."""

from __future__ import annotations

import numpy as np

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer


class Flatten(BaselineLayer):
    """(N, C, H, W) -> (N, C*H*W) in that order; a copy, as maps lie in memory as (H, C, W, N)."""

    def forward(self, x: Array) -> Array:
        """x (N, ...) -> y (N, F)."""
        y: Array = self.workspace.batch("y", self.layer.batch_y(x.shape[0]))
        np.copyto(y.reshape(x.shape), x)
        return y

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, F) -> grad_x (N, ...)."""
        grad_x: Array = self.workspace.batch("grad_x", self.layer.batch_x(grad_y.shape[0]))
        np.copyto(grad_x, grad_y.reshape(grad_x.shape))
        return grad_x
