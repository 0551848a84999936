"""The CUDA driver, asked without PyCUDA: which GPUs this process sees, and why it sees none."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from pcnn_bench.errors import DeviceError

_NO_DEVICE = (100, 101)
"""CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE: what an odd CUDA_VISIBLE_DEVICES leads to."""
_STUB = 34
"""CUDA_ERROR_STUB_LIBRARY: the toolkit's stand-in for linking, not a driver."""
_FUNCTIONS = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName")
"""What a library must have to be asked for its GPUs."""
_FAULTS = {
    3: "it could not be initialised; reload the driver or restart the machine",
    802: "the GPUs are not ready yet; on a machine with NVSwitch start nvidia-fabricmanager",
    803: "kernel module and library are of different versions; restart the machine or container",
    804: "the compatibility package does not support this GPU; update the driver itself",
    999: "an unknown error; reload the kernel module nvidia_uvm or restart the machine",
}
"""What is known of the results of cuInit; see CUresult in NVIDIA's driver API reference."""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """What the driver shows to this process."""

    gpu_names: tuple[str, ...]
    driver_cuda: tuple[int, int] | None
    """The newest CUDA version that the driver supports; None without a driver."""
    reason: str = ""
    """Why no GPU is visible; empty where one is."""
    fault: str = ""
    """What is wrong with a driver that is there but cannot be used, and what would do."""

    @property
    def visible(self) -> bool:
        """Whether there is a GPU to be used."""
        return bool(self.gpu_names)


def visible_devices() -> str:
    """``CUDA_VISIBLE_DEVICES='0,1'``, for messages; empty if the variable is not set."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if value is None else f"CUDA_VISIBLE_DEVICES={value!r}"


def probe_gpu() -> GpuStatus:
    """Ask the driver for its GPUs; needs neither PyCUDA nor nvcc.

    Raises:
        DeviceError: a driver is there but broken, so that falling back would hide it.
    """
    status = inspect()
    if status.fault:
        raise DeviceError(f"GPU: {status.fault}")
    return status


def inspect() -> GpuStatus:
    """Like ``probe_gpu``, with a broken driver in ``fault``."""
    driver = _load()
    if driver is None:
        return GpuStatus(
            (), None, reason=_with_variable("no NVIDIA driver (libcuda.so.1) is installed")
        )
    missing = [name for name in _FUNCTIONS if not hasattr(driver, name)]
    if missing:
        return GpuStatus(
            (), None, fault=f"libcuda.so.1 has no {missing[0]}, so that it is no driver: "
            "install the NVIDIA driver, or take the folder of this file off LD_LIBRARY_PATH",
        )  # fmt: skip
    cuda = _driver_cuda(driver)
    result = driver.cuInit(0)
    count = ctypes.c_int(0)
    if result == 0:
        result = driver.cuDeviceGetCount(ctypes.byref(count))
    if result == _STUB:
        return GpuStatus(
            (), None, reason=_with_variable("libcuda.so.1 is the toolkit's stub, not a driver")
        )
    if result in _NO_DEVICE or (result == 0 and count.value == 0):
        return GpuStatus((), cuda, reason=_with_variable("the NVIDIA driver shows no GPU"))
    if result:
        remedy = _FAULTS.get(result, "see CUresult in NVIDIA's driver API reference")
        return GpuStatus(
            (), cuda, fault=f"the NVIDIA driver does not start (error {result}): {remedy}"
        )
    return GpuStatus(tuple(_name(driver, ordinal) for ordinal in range(count.value)), cuda)


def compute_capability(ordinal: int) -> tuple[int, int] | None:
    """(9, 0) of a visible GPU; None if the driver does not say."""
    driver = _load()
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    values = [ctypes.c_int(), ctypes.c_int()]
    for attribute, value in zip((75, 76), values, strict=True):  # COMPUTE_CAPABILITY_MAJOR, _MINOR
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    return values[0].value, values[1].value


def uuid(ordinal: int) -> str | None:
    """``GPU-...`` as nvidia-smi prints it; None if the driver does not say."""
    driver = _load()
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    octets = ctypes.create_string_buffer(16)
    if driver.cuDeviceGetUuid(octets, device):
        return None
    return f"GPU-{UUID(bytes=octets.raw)}"


def driver_version() -> str | None:
    """The kernel module's version, as 580.159.03; None if it is not loaded here."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _load() -> ctypes.CDLL | None:
    """The driver's library; ``PCNN_BENCH_LIBCUDA`` names another, for tests."""
    try:
        return ctypes.CDLL(os.environ.get("PCNN_BENCH_LIBCUDA") or "libcuda.so.1")
    except OSError:
        return None


def _driver_cuda(driver: ctypes.CDLL) -> tuple[int, int] | None:
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _name(driver: ctypes.CDLL, ordinal: int) -> str:
    device = ctypes.c_int()
    text = ctypes.create_string_buffer(256)
    failed = driver.cuDeviceGet(ctypes.byref(device), ordinal)
    if failed or driver.cuDeviceGetName(text, len(text), device):
        return f"GPU {ordinal}"
    return text.value.decode(errors="replace")


def _with_variable(reason: str) -> str:
    """The reason, and the variable that often is the cause."""
    variable = visible_devices()
    return f"{reason}; {variable} is set" if variable else reason
