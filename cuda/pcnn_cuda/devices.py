"""Opening the device that ``--device`` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pcnn_bench.errors import ConfigError, DeviceError
from pcnn_cuda.device import Device


def open_device(
    choice: str, *, nvcc_flags: Sequence[str] = (), say: Callable[[str], None]
) -> Device:
    """The device that ``--device`` names: auto, gpu, gpu:N or emulated.

    ``auto`` takes the first GPU; where there is no driver or no visible device it takes the emulated device and says
    why. A GPU that is there but cannot be used is an error, never a fallback.

    Raises:
        ConfigError: an unknown choice.
        DeviceError: the device cannot be used; one line with the remedy.
    """
    from pcnn_cuda.emulated_device import EmulatedDevice

    kind, _, ordinal = choice.partition(":")
    if choice == "emulated":
        return EmulatedDevice()
    if kind not in ("auto", "gpu") or (ordinal and not ordinal.isdecimal()):
        raise ConfigError(f"--device {choice}: choose auto, gpu, gpu:N or emulated")
    from pcnn_cuda.pycuda_device import PycudaDevice, probe_gpu

    status = probe_gpu()
    if not status.visible:
        if choice != "auto":
            raise DeviceError(f"--device {choice}: {status.reason}")
        say(f"no GPU ({status.reason}): kernels run on the emulated device")
        return EmulatedDevice()
    return PycudaDevice(ordinal=int(ordinal or 0), nvcc_flags=nvcc_flags)
