"""The clock of an engine that works while it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Literal

from pcnn_bench.engine import Phase


class HostClock:
    """Reads the host's clock around each span: right where the body's work is done when it ends."""

    kind: Literal["host", "device"] = "host"
    flags = ""

    def __init__(self) -> None:
        self._spans: list[tuple[str, Phase, float]] = []

    @contextmanager
    def span(self, stage: str, phase: Phase) -> Iterator[None]:
        """Time the body; one that raises leaves no span."""
        start_ns = perf_counter_ns()
        yield
        stop_ns = perf_counter_ns()
        self._spans.append((stage, phase, (stop_ns - start_ns) / 1e3))

    def drain(self) -> list[tuple[str, Phase, float]]:
        """(stage, phase, microseconds) of every span since the last call, in order."""
        spans, self._spans = self._spans, []
        return spans
