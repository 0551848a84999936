"""Recording a stream's launches as a CUDA graph, through NVIDIA's bindings: PyCUDA knows no graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import Aside, Section
from pcnn_cuda.launch import followers


class Queue(Protocol):
    """What a recording needs of its device: where launches go, and other streams that they may go to meanwhile."""

    @property
    def stream(self) -> Any:
        """The stream that everything is queued on."""
        ...

    @stream.setter
    def stream(self, stream: Any) -> None: ...

    @property
    def launches_early(self) -> bool:
        """Whether the card can launch a kernel before the one it follows has ended: from compute capability 9.0 on."""
        ...

    @property
    def side_streams(self) -> Sequence[Any]:
        """Streams that are made beforehand, since none may be made while something is recorded."""
        ...


class CudaGraph:
    """What a stream was given while it was recorded, ready to be launched as one.

    Raises:
        DeviceError: the bindings are missing, or the driver refuses; one line.
    """

    def __init__(self, queue: Queue, sections: Sequence[Section]) -> None:
        self._driver = driver = _bindings()
        self._queue = queue
        self._stream = driver.CUstream(queue.stream.handle)
        self._events: list[Any] = []
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _done(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            for section in sections:
                self._record(section)
        except BaseException:
            driver.cuStreamEndCapture(
                self._stream
            )  # whatever it says: the first error is the one to tell
            raise
        finally:
            for event in self._events:
                driver.cuEventDestroy(event)
        graph = _done(driver.cuStreamEndCapture(self._stream))
        try:
            if queue.launches_early:
                self._launch_early(graph)
            self._executable = _done(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
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
            with self._on_side_stream(len(joins)) as side:
                _done(self._driver.cuStreamWaitEvent(side, fork, 0))
                for launch in each.launches:
                    launch()
                joins.append(self._event(side))
        for join in joins:
            _done(self._driver.cuStreamWaitEvent(self._stream, join, 0))

    def _launch_early(self, graph: Any) -> None:
        """Where a kernel follows another, and both begin with ``follow()``, let its launch not wait for the end."""
        driver = self._driver
        get, remove, add = (
            # of version 12 the plain names know no data of edges
            getattr(driver, f"{name}_v2", None) or getattr(driver, name)
            for name in ("cuGraphGetEdges", "cuGraphRemoveDependencies", "cuGraphAddDependencies")
        )
        count = _done(get(graph, 0))[-1]
        befores, afters, *_ = _done(get(graph, count))
        early = driver.CUgraphEdgeData()
        early.from_port = driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        early.type = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        for before, after in zip(befores, afters, strict=True):
            if {self._kernel_of(before), self._kernel_of(after)} <= followers():
                _done(remove(graph, [before], [after], None, 1))
                _done(add(graph, [before], [after], [early], 1))

    def _kernel_of(self, node: Any) -> str:
        """The name of a node's kernel; empty where it has none."""
        driver = self._driver
        if (
            _done(driver.cuGraphNodeGetType(node))
            != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        ):
            return ""
        name: bytes = _done(
            driver.cuFuncGetName(_done(driver.cuGraphKernelNodeGetParams(node)).func)
        )
        return name.decode()

    @contextmanager
    def _on_side_stream(self, number: int) -> Iterator[Any]:
        """Launches go to another stream for a while; more of them than there are take turns."""
        main, others = self._queue.stream, self._queue.side_streams
        self._queue.stream = others[number % len(others)]
        try:
            yield self._driver.CUstream(self._queue.stream.handle)
        finally:
            self._queue.stream = main

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
    """The value of a driver call that succeeded; a tuple of several."""
    result, *values = answer
    if int(result) != 0:
        raise DeviceError(f"CUDA graph: the driver says {result.name}; choose rung fused")
    return values[0] if len(values) == 1 else tuple(values)
