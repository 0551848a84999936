"""The clock of the CUDA engine: events in the device's queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pcnn_bench.engine import Phase
from pcnn_cuda.device import Device, Event

FIRST_STALL_US = 5_000.0
"""Time to queue a step of some hundred launches; the clock then learns the step's own."""
MAX_STALL_US = 50_000.0
"""A driver's queue holds about a thousand commands; a longer pause would only be waited for."""
LAUNCH_BOUND = "launch_bound"
"""Flag of a step that the device began before the host had queued all of it: times hold gaps between launches."""


class EventClock:
    """Brackets launches with events and reads them later, so timing adds no waits.

    Before the first span of a step the device is held back until the host has queued them all; else the events around
    a short kernel would measure how long the host took to launch it. How long queueing takes is learnt from the step
    before, and half as much again is allowed; a step for which that was too short is flagged.
    """

    def __init__(self, device: Device) -> None:
        self.kind: Literal["host", "device"] = "device" if device.kind == "gpu" else "host"
        self.flags = ""
        self._device = device
        self._pending: list[tuple[str, Phase, Event, Event]] = []
        self._queue_us = FIRST_STALL_US
        self._queueing_since = 0.0

    @contextmanager
    def span(self, stage: str, phase: Phase) -> Iterator[None]:
        """Queue a start and a stop event around the body's launches."""
        if not self._pending:
            self._device.stall(min(1.5 * self._queue_us, MAX_STALL_US))
            self._queueing_since = time.perf_counter()
        start = self._device.record()
        yield
        self._pending.append((stage, phase, start, self._device.record()))

    def drain(self) -> list[tuple[str, Phase, float]]:
        """Wait once; (stage, phase, microseconds) of every span since the last call, and ``flags`` of them all."""
        pending, self._pending = self._pending, []
        if not pending:
            return []
        self._queue_us = (time.perf_counter() - self._queueing_since) * 1e6
        _, _, first, _ = pending[0]
        is_late = self.kind == "device" and self._device.is_reached(first)
        self.flags = LAUNCH_BOUND if is_late else ""
        self._device.synchronize()
        return [
            (stage, phase, self._device.elapsed_us(start, stop))
            for stage, phase, start, stop in pending
        ]
