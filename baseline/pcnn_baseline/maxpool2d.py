"""Max pooling."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array, in_memory
from pcnn_baseline.base import BaselineLayer
from pcnn_baseline.windows import cells
from pcnn_bench.layers.maxpool2d import MaxPool2dSpec
from pcnn_bench.network import Layer


class MaxPool2d(BaselineLayer):
    """y = the largest cell of the window.

    On a tie the first cell in row order wins, and a NaN beats every number, as in ``numpy.argmax``.
    ``position`` (N, C, P, Q) is the winner's place in its window, in row order.
    """

    keeps: ClassVar[frozenset[str]] = frozenset({"position"})
    _position: npt.NDArray[np.int32]

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(layer, dtype)
        assert isinstance(layer.spec, MaxPool2dSpec)
        self._spec = layer.spec

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """Two positions and two booleans a window; backward finds each place from three temporary numbers."""
        each = 2 * np.dtype(np.int32).itemsize + 2 * np.dtype(np.bool_).itemsize
        if layer.needs_grad_x:
            each += 3 * np.dtype(np.intp).itemsize
        return super().pass_bytes(layer, n, item_bytes) + each * prod(layer.batch_y(n))

    def forward(self, x: Array) -> Array:
        """x (N, C, H, W) -> y (N, C, P, Q)."""
        y: Array = self.workspace.batch("y", self.layer.batch_y(x.shape[0]))
        position = self.workspace.batch("position", y.shape, np.int32)
        candidate = self.workspace.batch("candidate", y.shape, np.int32)
        wins = self.workspace.batch("wins", y.shape, np.bool_)
        is_number = self.workspace.batch("is_number", y.shape, np.bool_)

        first, *others = cells(x, self._spec, *y.shape[2:])
        np.copyto(y, first)
        position.fill(0)
        for index, cell in enumerate(others, start=1):
            # wins = y is a number, and cell is larger or NaN; `where=` would be three times slower
            np.less_equal(cell, y, out=wins)
            np.equal(y, y, out=is_number)
            np.greater(is_number, wins, out=wins)
            np.multiply(wins, np.int32(index), out=candidate)
            np.maximum(position, candidate, out=position)  # a later winner has the larger index
            np.maximum(y, cell, out=y)  # passes a NaN on
        self._position = position
        return y

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, C, P, Q) -> grad_x (N, C, H, W): added at each window's maximum, else zero."""
        grad_x: Array = self.workspace.batch("grad_x", self.layer.batch_x(grad_y.shape[0]))
        grad_x.fill(0)
        places = self._places(in_memory(self._position))
        np.add.at(in_memory(grad_x).reshape(-1), places.reshape(-1), in_memory(grad_y).reshape(-1))
        return grad_x

    def _places(self, position: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """position (P, C, Q, N) -> where in the memory (H, C, W, N) of grad_x each maximum lies."""
        c, _, w = self.layer.x_shape
        p, _, q, n = position.shape
        down, right = self._spec.stride
        r, s = np.divmod(np.arange(prod(self._spec.size)), self._spec.size[1])
        row, channel, column, image = np.ogrid[:p, :c, :q, :n]
        corner = ((row * down * c + channel) * w + column * right) * n + image
        in_window = (r * c * w + s) * n
        places: npt.NDArray[np.intp] = corner + in_window[position]
        return places
