"""The C++ runtime seen from Python: its structures, how it is built, and how kernels are built against it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pcnn_cuda.emulation.toolchain import Compiler, build, emulation_text
from pcnn_cuda.emulation.translate import translate
from pcnn_cuda.launch import source_files

_KERNEL_HEADERS = ("emulated_cuda.h", "runtime.h")
_RUNTIME_FILES = ("runtime.cpp", "runtime.h", "worker.h", "threads.h", "checker.h")
_PRELUDE = ("-include", "emulated_cuda.h")
# Leaves half of a fiber's stack (32 KiB) to the functions that the kernel calls.
_FRAME_LIMIT = "-Werror=frame-larger-than=16384"
# NaN and infinity keep their meaning; only errno and traps, which CUDA lacks, are given up.
_KERNEL_FLAGS: tuple[str, ...] = (
    *("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    _FRAME_LIMIT,
)
_CHECKED_FLAGS = (
    "-O1",
    "-g",
    "-fsanitize=thread",
    "-DEMULATION_CHECKER",
    _FRAME_LIMIT,
)

KINDS = (
    "race",
    "out-of-bounds read",
    "out-of-bounds write",
    "uninitialised read",
    "divergent barrier",
    "different barriers",
    "lost lane",
    "shared memory exceeded",
)
SEVERAL = 2**32 - 2
"""Stands for a block or thread number in a ``RawReport``: more than one."""

_Index = ctypes.c_uint32 * 3


class Region(ctypes.Structure):
    """An array that a launch may touch; ``Region`` of worker.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("first", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("loaded", ctypes.c_uint64),
    )


class LaunchRecord(ctypes.Structure):
    """``Launch`` of worker.h."""

    _fields_ = (
        ("run", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("image", ctypes.c_void_p),
        ("regions", ctypes.POINTER(Region)),
        ("argument_count", ctypes.c_uint32),
        ("region_count", ctypes.c_uint32),
        ("grid", _Index),
        ("block", _Index),
        ("shared_bytes", ctypes.c_uint32),
        ("os_threads", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
    )


class RawReport(ctypes.Structure):
    """``Report`` of worker.h."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("other_block", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("code", ctypes.c_uint64),
        ("other_code", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("block", _Index),
        ("thread", _Index),
        ("file", ctypes.c_char_p),
        ("what", ctypes.c_char_p),
        ("array", ctypes.c_char_p),
    )


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """A loaded library of kernels: entry points by kernel name, and its extent in memory."""

    path: Path
    entries: Mapping[str, int]
    image: int


class Runtime:
    """The runtime, with or without the checker."""

    def __init__(self, *, checker: bool) -> None:
        """Build (or take from the cache) and load it.

        Raises:
            DeviceError: no C++ compiler, or it does not compile our sources.
        """
        self.compiler = Compiler.find()
        self._kernel_flags = _CHECKED_FLAGS if checker else _KERNEL_FLAGS
        self._path, library = build(
            self.compiler,
            "runtime.cpp",
            {name: emulation_text(name) for name in _RUNTIME_FILES},
            ("-O2", "-pthread", *(["-DEMULATION_CHECKER"] if checker else [])),
        )
        self.launch: Callable[[object], int] = library.emulation_launch
        """Run a ``LaunchRecord`` (given by reference) to its end; the number of reports."""
        self._reports = library.emulation_reports
        self._reports.restype = ctypes.POINTER(RawReport)

    def reports(self, count: int) -> list[RawReport]:
        """The reports of the last launch, ``count`` being what ``launch`` returned; valid until the next one."""
        return self._reports()[:count]  # type: ignore[no-any-return]

    def compile(
        self,
        source: str,
        read: Callable[[str], str],
        kernels: Iterable[str],
        constants: Mapping[str, int],
    ) -> KernelLibrary:
        """The ``kernels`` of ``source``, whose text and whose includes ``read`` gives.

        Raises:
            DeviceError: the compiler refuses the source; names file and line.
        """
        files = {
            name: translate(name, text, kernels if name == source else ())
            for name, text in source_files(source, read).items()
        }
        files |= {name: emulation_text(name) for name in _KERNEL_HEADERS}
        defines = [f"-D{name}={value}" for name, value in sorted(constants.items())]
        path, library = build(
            self.compiler,
            source,
            files,
            (*self._kernel_flags, *_PRELUDE, *defines),
            link=(str(self._path),),
        )
        return KernelLibrary(
            path,
            {kernel: _address(getattr(library, f"emulation_run_{kernel}")) for kernel in kernels},
            ctypes.addressof(ctypes.c_void_p.in_dll(library, "emulation_image")),
        )


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address
