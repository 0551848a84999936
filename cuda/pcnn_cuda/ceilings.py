"""How fast a device copies and multiplies at best: host code of ``ceilings.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.errors import FindingError
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_cuda.device import BoundLaunch, Device
from pcnn_cuda.launch import BLOCK_THREADS, Launch

SOURCE = "ceilings.cu"
CONSTANTS = {"THREADS": BLOCK_THREADS, "VECTORS": 4, "CHAINS": 8}
EXAMPLE_CONSTANTS = (CONSTANTS,)
CHUNK_FLOATS = 4 * CONSTANTS["VECTORS"] * BLOCK_THREADS
BLOCKS_PER_MULTIPROCESSOR = 8
"""With ``BLOCK_THREADS`` each, all the threads that one can hold."""
STALL_US = 300.0
"""Time to queue a launch and two events."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much the probe of a device does."""

    largest_set_bytes: int
    """Beyond the largest cache the rate does not change any more."""
    copied_bytes: int
    """Those that a sample reads and writes at least, so that its beginning and end are nothing beside it."""
    step_count: int
    """Of a chain of multiply-adds."""
    sample_count: int


EFFORTS = {
    "gpu": Effort(512 * MEBIBYTE, 2048 * MEBIBYTE, step_count=16384, sample_count=10),
    "emulated": Effort(MEBIBYTE, 3 * MEBIBYTE, step_count=256, sample_count=3),
}


def measure(device: Device, working_sets: Mapping[str, int]) -> dict[str, Any]:
    """The rates of this device that nothing it runs can exceed, as run.json records them.

    ``copies`` holds the rate of a copy for each of the named working sets (bytes): source and target together have
    that size, rounded to whole chunks and cut at ``EFFORTS``. The best sample counts, not the median.

    Raises:
        FindingError: a kernel's result is not the known one, so that its time means nothing.
        DeviceMemoryError: there is no room even for half of what is free.
    """
    effort, copies = EFFORTS[device.kind], {}
    rates: dict[int, float] = {}
    for name, byte_count in working_sets.items():
        room = min(byte_count, effort.largest_set_bytes, device.free_bytes()[0] // 2)
        chunk_count = max(round(room / (2 * CHUNK_FLOATS * FLOAT_BYTES)), 1)
        if chunk_count not in rates:
            rates[chunk_count] = _copy_rate(device, chunk_count, effort)
        working_set_bytes = 2 * chunk_count * CHUNK_FLOATS * FLOAT_BYTES
        copies[name] = {
            "working_set_bytes": working_set_bytes,
            "gbyte_per_s": rates[chunk_count],
        }
    return {
        "clock": "device" if device.kind == "gpu" else "host",
        "gflop_per_s": _multiply_add_rate(device, effort),
        "copies": copies,
    }


def _copy_rate(device: Device, chunk_count: int, effort: Effort) -> float:
    """Gigabytes read and written in a second, by a copy of so many chunks again and again.

    Raises:
        FindingError: the target is not what was to be copied.
    """
    shape = (chunk_count, CHUNK_FLOATS)
    pass_bytes = 2 * chunk_count * CHUNK_FLOATS * FLOAT_BYTES
    pass_count = -(-effort.copied_bytes // pass_bytes)
    source = device.empty(shape)
    try:
        target = device.empty(shape)
        try:
            # the bits of 0, 1, 2 ...: no two floats are alike
            values = np.arange(source.size, dtype=np.int32).view(np.float32).reshape(shape)
            device.copy_in(source, values)
            device.fill(target, 0xFF)
            launch = device.compile(SOURCE, **CONSTANTS)["ceilings_copy"].bind(
                Launch((min(chunk_count, _blocks(device)), 1, 1), (BLOCK_THREADS, 1, 1)),
                source=source, target=target, CHUNKS=chunk_count, PASSES=pass_count,
            )  # fmt: skip
            time_us = _best_us(device, launch, effort.sample_count)
            if not np.array_equal(device.copy_out(target), np.roll(values, 1 - pass_count, axis=0)):
                raise FindingError("ceilings_copy: the target differs from the source")
        finally:
            device.free(target)
    finally:
        device.free(source)
    return pass_count * pass_bytes / time_us / 1e3


def _multiply_add_rate(device: Device, effort: Effort) -> float:
    """Billions of additions and multiplications in a second.

    Raises:
        FindingError: a thread's sum is not the known one.
    """
    blocks, chains = _blocks(device), CONSTANTS["CHAINS"]
    y = device.empty((blocks * BLOCK_THREADS,))
    try:
        device.fill(y, 0xFF)
        launch = device.compile(SOURCE, **CONSTANTS)["ceilings_fma"].bind(
            Launch((blocks, 1, 1), (BLOCK_THREADS, 1, 1)),
            y=y, factor=1.0, addend=1.0, STEPS=effort.step_count,
        )  # fmt: skip
        time_us = _best_us(device, launch, effort.sample_count)
        known = chains * (chains - 1) // 2 + chains * effort.step_count
        if not (device.copy_out(y) == known).all():
            raise FindingError(f"ceilings_fma: a sum differs from {known}")
    finally:
        device.free(y)
    return 2 * chains * effort.step_count * y.size / time_us / 1e3


def _blocks(device: Device) -> int:
    """As many as the device holds at a time."""
    count = device.describe().get("multiprocessor_count")
    return BLOCKS_PER_MULTIPROCESSOR * (count if isinstance(count, int) else 1)


def _best_us(device: Device, launch: BoundLaunch, sample_count: int) -> float:
    """The shortest time of a launch on the device's clock, after one that is not timed."""
    launch()
    times = []
    for _ in range(sample_count):
        device.stall(STALL_US)  # so that the launch is queued when the first event is reached
        start = device.record()
        launch()
        stop = device.record()
        device.synchronize()
        times.append(device.elapsed_us(start, stop))
    return min(times)
