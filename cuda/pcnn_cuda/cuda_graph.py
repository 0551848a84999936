"""Recording a stream's launches as a CUDA graph, through NVIDIA's bindings: PyCUDA knows no graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import Aside, Section

SideStream = Callable[[int], AbstractContextManager[int]]
"""Number -> a context in which launches go to the side stream of this number; it gives the stream's handle."""


class CudaGraph:
    """What a stream was given while it was recorded, ready to be launched as one.

    Raises:
        DeviceError: the bindings are missing, or the driver refuses; one line.
    """

    def __init__(
        self, stream_handle: int, sections: Sequence[Section], on_side_stream: SideStream
    ) -> None:
        self._driver = driver = _bindings()
        self._stream = driver.CUstream(stream_handle)
        self._on_side_stream = on_side_stream
        self._events: list[Any] = []
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _done(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            for section in sections:
                self._record(section)
        finally:
            graph = _done(driver.cuStreamEndCapture(self._stream))
            for event in self._events:
                _done(driver.cuEventDestroy(event))
        self._executable = _done(driver.cuGraphInstantiate(graph, 0))
        _done(driver.cuGraphDestroy(graph))
        self._launch: Callable[..., Any] = driver.cuGraphLaunch
        self._destroy: Callable[..., Any] = driver.cuGraphExecDestroy

    def _record(self, section: Section) -> None:
        """Launches in order on the stream itself; those aside on streams that fork off here and join at the end."""
        joins: list[Any] = []
        for each in section:
            if not isinstance(each, Aside):
                each()
                continue
            fork = self._event(self._stream)
            with self._on_side_stream(len(joins)) as handle:
                side = self._driver.CUstream(handle)
                _done(self._driver.cuStreamWaitEvent(side, fork, 0))
                for launch in each.launches:
                    launch()
                joins.append(self._event(side))
        for join in joins:
            _done(self._driver.cuStreamWaitEvent(self._stream, join, 0))

    def _event(self, stream: Any) -> Any:
        """An event recorded here and now: in a recording, a node that others may wait for."""
        flags = self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = _done(self._driver.cuEventCreate(int(flags)))
        self._events.append(event)
        _done(self._driver.cuEventRecord(event, stream))
        return event

    def __call__(self) -> None:
        """Queue the whole of it."""
        _done(self._launch(self._executable, self._stream))

    def close(self) -> None:
        """Free it; while the context lives."""
        _done(self._destroy(self._executable))


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            'rung graph: Python package cuda-bindings is missing; pip install "pcnn-bench[cuda]"'
        ) from error
    return driver


def _done(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call that succeeded."""
    result, *values = answer
    if int(result) != 0:
        raise DeviceError(f"CUDA graph: the driver says {result.name}")
    return values[0] if values else None
