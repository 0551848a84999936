"""Running one stage by itself, to be compared with the baseline: everything it should write is spoilt before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pcnn_bench.engine import Probe
from pcnn_cuda.device import Device, DeviceArray, HostArray
from pcnn_cuda.op import Tensors
from pcnn_cuda.step import StageLaunches, launch_all

NAN_BYTE = 0xFF
"""Four of them are a NaN, so an element that no thread writes shows."""


def probe(
    device: Device, launches: StageLaunches, t: Tensors, given: Probe
) -> dict[str, npt.NDArray[np.floating]]:
    """What the stage computes from ``given``, as ``Engine.probe`` names it; its parameters are loaded already."""
    stage, n = launches.stage, len(given.x)
    forward = [t.x, t.y, *t.saved.values(), *((t.predictions,) if t.predictions else ())]
    gradients = [array for array in (t.grad_x, t.grad_y) if array]
    if stage.op.forward_writes_grad_x:
        forward, gradients = [*forward, *gradients], []
    _spoil(device, [*forward, *t.gradients.values()])
    device.copy_in(_first(t.x, n), given.x)
    if t.labels and given.labels is not None:
        device.copy_in(_first(t.labels, n), given.labels)
    launch_all(launches.forward)
    results: dict[str, HostArray] = {
        "losses" if stage.is_loss else "y": device.copy_out(_first(t.y, n))
    }
    if t.predictions:
        results["predictions"] = device.copy_out(_first(t.predictions, n))
    written = _written_beyond(device, forward, n)

    is_given = given.labels is not None if stage.is_loss else given.grad_y is not None
    if stage.needs_backward and is_given:
        _spoil(device, [*gradients, *t.workspace.values()])
        if t.grad_y and given.grad_y is not None:
            device.copy_in(_first(t.grad_y, n), given.grad_y)
        launch_all([*launches.backward, *launches.aside])
        if t.grad_x:
            results["grad_x"] = device.copy_out(_first(t.grad_x, n))
        written += _written_beyond(device, gradients, n)
        for _ in range(2):
            launch_all(launches.update)
        for name, array in t.gradients.items():  # the update may be what completes them
            results[f"grad_{name}"] = device.copy_out(array)
        for name, array in t.parameters.items():
            results[name] = device.copy_out(array)
    results["beyond_batch"] = np.array(written)
    return {name: np.asarray(value, np.float32) for name, value in results.items()}


def _first(array: DeviceArray, n: int) -> DeviceArray:
    """The first n images of an array."""
    return array.view((n, *array.shape[1:]))


def _spoil(device: Device, arrays: Sequence[DeviceArray]) -> None:
    """Make every float a NaN and every int -1."""
    for array in arrays:
        device.fill(array, NAN_BYTE)


def _written_beyond(device: Device, arrays: Sequence[DeviceArray], n: int) -> int:
    """Elements past the first n images that are no longer as ``_spoil`` left them."""
    count = 0
    for array in arrays:
        rest = np.ascontiguousarray(device.copy_out(array)[n:])
        as_bytes = rest.view(np.uint8).reshape(-1, rest.dtype.itemsize)
        count += int((as_bytes != NAN_BYTE).any(axis=1).sum())
    return count
