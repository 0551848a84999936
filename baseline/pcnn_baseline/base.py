"""What every layer of the baseline has: parameters, gradients, a workspace, and the two passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array, Workspace
from pcnn_bench.network import Labels, Layer


class BaselineLayer(ABC):
    """One layer on the CPU.

    ``parameters`` and ``gradients`` map ``weight`` and ``bias`` to arrays that are written in place,
    never replaced. What ``forward`` and ``backward`` return is overwritten by the next call.
    """

    keeps: ClassVar[frozenset[str]] = frozenset()
    """What forward leaves for backward: names in the workspace, or ``x`` for what it was given."""

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        self.layer = layer
        self.parameters: dict[str, Array] = {
            name: np.zeros(shape, dtype) for name, shape in layer.parameters.items()
        }
        self.gradients: dict[str, Array] = {
            name: np.zeros(shape, dtype) for name, shape in layer.parameters.items()
        }
        self.workspace = Workspace(dtype)

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """The most that both passes take for n images, temporary arrays included; from shapes alone.

        Here y and, where needed, grad_x; layers that need more add it.
        """
        grad_x = prod(layer.batch_x(n)) if layer.needs_grad_x else 0
        return item_bytes * (prod(layer.batch_y(n)) + grad_x)

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """x (N, ...) -> y (N, ...)."""

    @abstractmethod
    def backward(self, grad_y: Array) -> Array | None:
        """grad_y, shaped as the last y -> grad_x, shaped as the last x; fills ``gradients``.

        None where ``layer.needs_grad_x`` is false and that saves work.
        """


class BaselineLoss(ABC):
    """The last stage: scores and labels in, one number a sample out. Ownership as for layers."""

    keeps: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        self.layer = layer
        self.workspace = Workspace(dtype)

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """As for layers: what is kept, grad_x and a temporary array of scores; a few numbers an image."""
        positions = 2 * np.dtype(np.intp).itemsize  # where each image's own class stands
        return item_bytes * (3 * prod(layer.batch_x(n)) + 5 * n) + positions * n

    @abstractmethod
    def forward(self, x: Array, labels: Labels) -> Array:
        """x (N, K), labels (N,) in 0 .. K-1 -> losses (N,)."""

    @abstractmethod
    def backward(self) -> Array:
        """The gradient (N, K) of the last batch's mean loss, so divided by N."""


def predictions(x: Array) -> Labels:
    """x (N, K) -> the class of the largest score (N,); the first on a tie."""
    classes: Labels = x.argmax(axis=1).astype(np.int32)
    return classes
