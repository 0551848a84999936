"""Stochastic gradient descent: host code of ``sgd.cu``."""

from __future__ import annotations

from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import BoundLaunch, Device, DeviceArray
from pcnn_cuda.launch import linear


class Sgd:
    """Device twin of ``pcnn_baseline.sgd``; one launch updates everything a stage owns."""

    stem = "sgd"
    source = "sgd.cu"

    def __init__(self, spec: SgdSpec) -> None:
        self.spec = spec

    def load(self, device: Device) -> None:
        """Compile the kernel."""
        self._kernel = device.compile(self.source)["sgd_update"]

    def update(
        self,
        *,
        parameter: DeviceArray,
        grad: DeviceArray,
        velocity: DeviceArray,
        learning_rate: DeviceArray,
    ) -> list[BoundLaunch]:
        """parameter, grad, velocity (count): move the parameters and their velocity in place."""
        return [
            self._kernel.bind(
                linear(parameter.size),
                grad=grad, learning_rate=learning_rate, velocity=velocity, parameter=parameter,
                momentum=self.spec.momentum, weight_decay=self.spec.weight_decay,
                count=parameter.size,
            )
        ]  # fmt: skip
