"""Launch shapes, and kernel signatures read from the ``.cu`` files: the host never writes either twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import prod

from pcnn_bench.errors import DeviceError

BLOCK_THREADS = 256
WARP_THREADS = 32
TERMS_PER_THREAD = 128  # joining the threads' sums then costs little beside making them
# The hardware's limits, all compute capabilities from 9.0 on.
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024
MAX_DYNAMIC_SHARED_BYTES = 227 * 1024
MAX_INDEX = 2**31 - BLOCK_THREADS  # so that the last, partly filled block still counts in 32 bits


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid and block extents (x, y, z) and bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


def check_limits(kernel: str, launch: Launch) -> None:
    """Raise what stands for a GPU's refusal of ``launch``.

    Raises:
        DeviceError: names the kernel and the limits.
    """
    extents = zip((*launch.grid, *launch.block), (*MAX_GRID, *MAX_BLOCK), strict=True)
    if (
        all(1 <= extent <= limit for extent, limit in extents)
        and prod(launch.block) <= MAX_BLOCK_THREADS
        and 0 <= launch.shared_bytes <= MAX_DYNAMIC_SHARED_BYTES
    ):
        return
    raise DeviceError(
        f"{kernel}: launch refused: grid {launch.grid}, block {launch.block}, "
        f"{launch.shared_bytes} bytes of shared memory; a GPU takes grids up to {MAX_GRID}, "
        f"blocks up to {MAX_BLOCK} and {MAX_BLOCK_THREADS} threads, {MAX_DYNAMIC_SHARED_BYTES} bytes; "
        "use a smaller layer or batch_size"
    )


ONE_THREAD = Launch((1, 1, 1), (1, 1, 1))
"""For kernels that only note or wait for something."""


def linear(element_count: int) -> Launch:
    """One thread an element in blocks of ``BLOCK_THREADS``, the grid rounded up.

    Raises:
        DeviceError: the kernels' 32-bit indices cannot reach every element.
    """
    if not 0 < element_count <= MAX_INDEX:
        raise DeviceError(
            f"a kernel over {element_count} elements exceeds 32-bit indices; use a smaller batch_size"
        )
    return Launch(((element_count - 1) // BLOCK_THREADS + 1, 1, 1), (BLOCK_THREADS, 1, 1))


def warps(warp_count: int) -> Launch:
    """One warp an output, in blocks of ``BLOCK_THREADS``."""
    return linear(warp_count * WARP_THREADS)


def reduction(output_count: int, image_count: int, map_size: int) -> Launch:
    """One block an output, which is a sum over the cells of a map and over images.

    A thread sums some cells over all images. The block is no wider than the map, and no wider than leaves each thread
    ``TERMS_PER_THREAD`` terms.

    Raises:
        DeviceError: more blocks than a grid can hold.
    """
    if not 0 < output_count <= MAX_GRID[0]:
        raise DeviceError(f"{output_count} blocks exceed a grid; use a smaller layer")
    wanted = min(BLOCK_THREADS, map_size, image_count * map_size // TERMS_PER_THREAD)
    threads = WARP_THREADS
    while threads < wanted:
        threads *= 2
    return Launch((output_count, 1, 1), (threads, 1, 1))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter: ``code`` is P (pointer), i (int) or f (float); ``element`` what a pointer points to."""

    code: str
    element: str = ""


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)", re.DOTALL
)
_PARAMETER = re.compile(
    r"^(?:const\s+)?(?P<type>float|int|unsigned char|unsigned)\s*(?P<pointer>\*)?"
    r"\s*(?:__restrict__\s+)?(?P<name>\w+)$"
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_ELEMENTS = {"float": "float32", "int": "int32", "unsigned": "uint32", "unsigned char": "uint8"}


def kernel_text(source: str) -> str:
    """The text of ``pcnn_cuda/<source>``, wherever the package is installed."""
    return (resources.files("pcnn_cuda") / source).read_text(encoding="utf-8")


def source_files(source: str, read: Callable[[str], str]) -> dict[str, str]:
    """``source`` and every ``#include "..."`` that it reaches, at any depth: name -> text.

    Raises:
        FileNotFoundError: there is no ``source``; an include that is not there is the compiler's own,
            or is for the compiler to miss.
    """
    files: dict[str, str] = {}
    waiting = [source]
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        try:
            files[name] = read(name)
        except FileNotFoundError:
            if name == source:
                raise
            continue
        waiting += _INCLUDE.findall(files[name])
    return files


def kernel_sources() -> list[str]:
    """The names of every ``.cu`` of the package, sorted."""
    names = (entry.name for entry in resources.files("pcnn_cuda").iterdir())
    return sorted(name for name in names if name.endswith(".cu"))


def repeats_bitwise(text: str) -> bool:
    """Whether the header of a kernel source says that its results repeat bit for bit."""
    return re.search(r"^// Repeats +bitwise\b", text, re.MULTILINE) is not None


@cache
def signatures(text: str) -> Mapping[str, Mapping[str, Parameter]]:
    """Kernel name -> parameter name -> parameter, for every ``__global__`` of a source text, in order.

    Raises:
        ValueError: a parameter that is neither a pointer to a known type nor an ``int`` or a ``float``.
    """
    return {
        name: dict(_parameter(part) for part in " ".join(parameters.split()).split(",") if part)
        for name, parameters in _KERNEL.findall(_COMMENT.sub("", text))
    }


@cache
def followers() -> frozenset[str]:
    """The kernels that may be launched before those before them have ended: all of a source with ``follow.cuh``."""
    texts = map(kernel_text, kernel_sources())
    return frozenset(
        name
        for text in texts
        if "follow.cuh" in _INCLUDE.findall(text)
        for name in signatures(text)
    )


def _parameter(declaration: str) -> tuple[str, Parameter]:
    """``const float* __restrict__ x`` -> ("x", Parameter("P", "float32"))."""
    match = _PARAMETER.match(declaration.strip())
    if match is None:
        raise ValueError(f"kernel parameter {declaration.strip()!r}: use a pointer, int or float")
    if match["pointer"]:
        return match["name"], Parameter("P", _ELEMENTS[match["type"]])
    codes = {"int": "i", "float": "f"}
    if match["type"] not in codes:
        raise ValueError(f"kernel parameter {declaration.strip()!r}: by value only int and float")
    return match["name"], Parameter(codes[match["type"]])
