"""Stochastic gradient descent with momentum and weight decay."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array, Workspace
from pcnn_baseline.base import BaselineLayer
from pcnn_bench.optimizers import SgdSpec


class Sgd:
    """The update of one layer.

    v = momentum v + (grad + weight_decay parameter); parameter = parameter - learning_rate v.
    Source: as ``pcnn_bench.optimizers.sgd``.
    """

    def __init__(
        self, spec: SgdSpec, layer: BaselineLayer, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._spec = spec
        self._layer = layer
        self.velocity: dict[str, Array] = {
            name: np.zeros_like(parameter) for name, parameter in layer.parameters.items()
        }
        self.workspace = Workspace(dtype)

    def update(self, learning_rate: float) -> None:
        """Move the layer's parameters against their gradients."""
        for name, parameter in self._layer.parameters.items():
            velocity = self.velocity[name]
            term: Array = self.workspace.array("term", parameter.shape)
            velocity *= self._spec.momentum
            np.multiply(parameter, self._spec.weight_decay, out=term)
            term += self._layer.gradients[name]
            velocity += term
            parameter -= np.multiply(velocity, learning_rate, out=term)

    def reset(self) -> None:
        """Set the velocity to zero."""
        for velocity in self.velocity.values():
            velocity.fill(0)
