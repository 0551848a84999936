"""What this machine has and lacks for the two devices, each lack with its remedy; for ``doctor``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pcnn_bench.errors import DeviceError
from pcnn_cuda import libcuda, nvcc
from pcnn_cuda.emulation.toolchain import Compiler
from pcnn_cuda.libcuda import GpuStatus
from pcnn_cuda.pycuda_device import require_pycuda

_EXTRA = 'pip install "pcnn-bench[cuda]"'
_TINY_KERNEL = """#include <cuda_fp16.h>
extern "C" __global__ void tiny(float* y) { y[threadIdx.x] = __half2float(__float2half(1.0f)); }
"""
"""Includes a header of the toolkit, so that one without its headers shows."""

Answer = dict[str, str]


def diagnose() -> list[Answer]:
    """Findings as ``{name, status, found, remedy}``; status is ok, lack or note, remedy may be empty.

    What only a GPU needs is a lack where one is visible, else a note. The last two findings say whether the emulated
    device and the GPU can be used.
    """
    status = libcuda.inspect()
    wanting = "lack" if status.visible or status.fault else "note"
    gpu = [*_driver(status), *_nvcc(status, wanting), *_packages(status, wanting)]
    emulated = _compiler()
    lacking = [each["name"] for each in gpu if each["status"] == "lack"]
    if status.visible and not lacking:
        usable = _answer("--device gpu", "ok", "can be used")
    elif lacking:
        usable = _answer("--device gpu", "lack", f"not usable: see {', '.join(lacking)}")
    else:
        usable = _answer("--device gpu", "note", f"not usable: {status.reason}")
    works = emulated["status"] == "ok"
    return [
        *gpu,
        emulated,
        _cache(),
        _answer("--device emulated", "ok" if works else "lack", "can be used" if works else "not usable"),
        usable,
    ]  # fmt: skip


def _driver(status: GpuStatus) -> Iterator[Answer]:
    if status.fault:
        fault, _, remedy = status.fault.partition(": ")
        yield _answer("NVIDIA driver", "lack", fault, remedy)
        return
    if status.driver_cuda is None:
        yield _answer("NVIDIA driver", "note", status.reason, "run where there is an NVIDIA GPU")
        return
    cuda = _dotted(status.driver_cuda)
    version = libcuda.driver_version()
    yield _answer("NVIDIA driver", "ok", f"{version}, CUDA {cuda}" if version else f"CUDA {cuda}")
    for ordinal, name in enumerate(status.gpu_names):
        yield _answer(f"gpu:{ordinal}", "ok", f"{name}, {_arch(ordinal) or 'architecture unknown'}")
    if not status.visible:
        remedy = "set CUDA_VISIBLE_DEVICES to the numbers that nvidia-smi -L shows, or unset it"
        yield _answer("gpu:0", "note", status.reason, remedy if libcuda.visible_devices() else "")


def _nvcc(status: GpuStatus, wanting: str) -> Iterator[Answer]:
    """The compiler, and whether it fits the driver, the GPUs and the host compiler."""
    try:
        toolkit = nvcc.find()
        version = toolkit.version
    except DeviceError as error:
        yield _of_error("nvcc", wanting, error)
        return
    yield _answer("nvcc", "ok", f"{version} ({toolkit.path})")
    if status.driver_cuda:
        yield _fit(toolkit, status.driver_cuda)
    visible = [_arch(ordinal) for ordinal in range(len(status.gpu_names))]
    architectures = dict.fromkeys(arch for arch in visible if arch)
    for arch in architectures or toolkit.architectures()[:1]:
        yield _trial(toolkit, arch, wanting)


def _fit(toolkit: nvcc.Toolkit, driver: tuple[int, int]) -> Answer:
    """CUDA 13.1 code runs on a driver for 13.0, but not on one for 12 (minor version compatibility)."""
    found = f"CUDA {_dotted(toolkit.cuda)} of nvcc on CUDA {_dotted(driver)} of the driver"
    remedy = "update the driver, or name an older toolkit's nvcc with --nvcc or PCNN_BENCH_NVCC"
    if toolkit.cuda[0] > driver[0]:
        return _answer("nvcc and driver", "lack", found, remedy)
    if toolkit.cuda > driver:
        return _answer("nvcc and driver", "note", f"{found}: most kernels run", remedy)
    return _answer("nvcc and driver", "ok", found)


def _trial(toolkit: nvcc.Toolkit, arch: str, wanting: str) -> Answer:
    """Build a tiny kernel: finds what version numbers do not tell."""
    name = f"nvcc for {arch}"
    with tempfile.TemporaryDirectory(prefix="pcnn-bench-") as scratch:
        folder = Path(scratch)
        (folder / "tiny.cu").write_text(_TINY_KERNEL, encoding="utf-8")
        try:
            nvcc.Toolkit(toolkit.path, folder).build("tiny.cu", {}, arch=arch, folder=folder)
        except DeviceError as error:
            return _of_error(name, wanting, error)
    return _answer(name, "ok", "compiles a kernel, with the host compiler found")


def _packages(status: GpuStatus, wanting: str) -> Iterator[Answer]:
    try:
        if status.visible:
            yield _answer("PyCUDA", "ok", require_pycuda())
        else:  # it does not load without a driver, so all that can be known is whether it is here
            yield _answer("PyCUDA", "ok", f"{metadata.version('pycuda')}, not tried without a GPU")
    except DeviceError as error:
        yield _of_error("PyCUDA", wanting, error)
    except metadata.PackageNotFoundError:
        yield _answer("PyCUDA", wanting, "not installed", _EXTRA)
    try:
        yield _answer("cuda-bindings", "ok", metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        yield _answer("cuda-bindings", "note", "not installed; needed for CUDA graphs", _EXTRA)


def _compiler() -> Answer:
    try:
        return _answer("C++ compiler", "ok", Compiler.find().version)
    except DeviceError as error:
        return _of_error("C++ compiler", "lack", error)


def _cache() -> Answer:
    """The folder that keeps compiled kernels."""
    folder = nvcc.cubin_folder().parent
    byte_count = sum(
        (Path(parent) / name).lstat().st_size
        for kind in ("cubin", "emulated")
        for parent, _, names in os.walk(folder / kind)
        for name in names
    )
    found = f"{folder}, {byte_count / 1e6:.1f} MB"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return _answer("kernel cache", "ok", found)
    except OSError as error:
        return _answer(
            "kernel cache",
            "note",
            f"{found}: cannot be written ({error.strerror}), so every run compiles",
            "name another folder with PCNN_BENCH_CACHE",
        )


def _arch(ordinal: int) -> str | None:
    capability = libcuda.compute_capability(ordinal)
    return f"sm_{capability[0]}{capability[1]}" if capability else None


def _answer(name: str, status: str, found: str, remedy: str = "") -> Answer:
    return {"name": name, "status": status, "found": found, "remedy": remedy}


def _of_error(name: str, status: str, error: DeviceError) -> Answer:
    """An error's line is what was found, a semicolon, and what would do."""
    found, _, remedy = str(error).removeprefix(f"{name}: ").partition("; ")
    return _answer(name, status, found, remedy)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
