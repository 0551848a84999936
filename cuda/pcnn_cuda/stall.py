"""Keeping a GPU busy for a while: host code of ``stall.cu``."""

from __future__ import annotations

from collections.abc import Mapping

from pcnn_cuda.device import Kernel
from pcnn_cuda.launch import ONE_THREAD

SOURCE = "stall.cu"
MAX_CYCLES = 2**31 - 1


def stall(kernels: Mapping[str, Kernel], time_us: float, clock_khz: int) -> None:
    """Queue a pause of ``time_us``; ``kernels`` are those of ``SOURCE``, ``clock_khz`` the multiprocessors' clock."""
    cycles = min(int(time_us * clock_khz / 1e3), MAX_CYCLES)
    kernels["stall_wait"].bind(ONE_THREAD, cycle_count=cycles)()
