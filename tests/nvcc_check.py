"""Compile every kernel with the real nvcc, needing no GPU: no error, no warning, no spilled register; and every kernel
that may be launched early waits (``follow.cuh``).

``python tests/nvcc_check.py [SOURCE ...]``; exit code 0 fine, 1 a kernel is not, 3 no nvcc.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pcnn_bench.errors import DeviceError
from pcnn_cuda import nvcc
from pcnn_cuda.launch import followers, kernel_sources

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""Ampere, Hopper and Blackwell as they stand in data centres."""
TOO_OLD_TO_FOLLOW = ("sm_80",)
STRICT = ("-Xptxas", "-v", "-Werror", "all-warnings")
PROCESS_COUNT = 2

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """The most that any kernel of a source uses; the spilled bytes of all."""

    kernel_count: int
    register_count: int
    shared_byte_count: int
    spilled_byte_count: int


def read_usage(log: str) -> Usage:
    """What ``ptxas -v`` printed."""
    registers = [int(count) for count in _REGISTERS.findall(log)]
    shared = [int(count) for count in _SHARED.findall(log)]
    spills = [int(stored) + int(loaded) for stored, loaded in _SPILLS.findall(log)]
    return Usage(len(registers), max(registers, default=0), max(shared, default=0), sum(spills))


def entries_without_wait(ptx: str) -> list[str]:
    """The kernels of a PTX text that never wait for the kernel before them."""
    return [
        name
        for name, body in re.findall(r"\.entry (\w+)\((.*?)(?=\.entry |\Z)", ptx, re.DOTALL)
        if "griddepcontrol.wait" not in body
    ]


def example_constants(source: str) -> tuple[Mapping[str, int], ...]:
    """The constant sets that a source's host code names for this, or none at all."""
    module = importlib.import_module(f"pcnn_cuda.{Path(source).stem}")
    sets: tuple[Mapping[str, int], ...] = getattr(module, "EXAMPLE_CONSTANTS", ({},))
    return sets


def check(
    toolkit: nvcc.Toolkit,
    source: str,
    constants: Mapping[str, int],
    arch: str,
    folder: Path | None = None,
) -> tuple[bool, str]:
    """Whether the source compiles cleanly, and the line that says so."""
    words = [source, *(f"{name}={value}" for name, value in constants.items()), arch]
    with tempfile.TemporaryDirectory(prefix="pcnn-bench-") as kept:
        flags = (*STRICT, "-keep", "-keep-dir", kept)
        try:
            log = toolkit.build(source, constants, arch=arch, flags=flags, folder=folder).log
        except DeviceError as error:
            return False, f"{' '.join(words)}: FAILED: {error}"
        ptx = "".join(path.read_text() for path in Path(kept).glob("*.ptx"))
    hasty = [name for name in entries_without_wait(ptx) if name in followers()]
    if hasty and arch not in TOO_OLD_TO_FOLLOW:
        return False, f"{' '.join(words)}: FAILED: no follow() in {', '.join(hasty)}"
    use = read_usage(log)
    found = (
        f"{use.kernel_count} kernels, at most {use.register_count} registers and "
        f"{use.shared_byte_count} B static shared, {use.spilled_byte_count} B spilled"
    )
    fine = use.kernel_count > 0 and use.spilled_byte_count == 0 and "warning" not in log.lower()
    return fine, f"{' '.join(words)}: {'' if fine else 'FAILED: '}{found}"


def main(sources: Sequence[str]) -> int:
    """Check these sources, or all."""
    try:
        found = nvcc.find()
        print(f"nvcc {found.version}")
    except DeviceError as error:
        print(f"{error}; or: pip install -e '.[nvcc]'", file=sys.stderr)
        return 3
    jobs = [
        (source, constants, arch)
        for source in sources or kernel_sources()
        for constants in example_constants(source)
        for arch in ARCHITECTURES
    ]
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="pcnn-bench-") as scratch,
        ThreadPoolExecutor(PROCESS_COUNT) as pool,
    ):
        fresh = nvcc.Toolkit(found.path, Path(scratch))  # the cache keeps no log
        for fine, line in pool.map(lambda job: check(fresh, *job), jobs):
            print(line, flush=True)
            failed += not fine
    print(f"{len(jobs) - failed} of {len(jobs)} builds are clean")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
