"""Recording: order, branches and early launches, against a driver that only takes notes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pcnn_bench.errors import DeviceError
from pcnn_cuda import cuda_graph
from pcnn_cuda.cuda_graph import CudaGraph
from pcnn_cuda.device import Aside
from pcnn_cuda.launch import followers

FOLLOWER, OTHER = "sgd_update", "load_batch_advance"


class Result(IntEnum):
    """As the driver's."""

    CUDA_ERROR_UNKNOWN = 999


class Driver:
    """The calls of cuda.bindings.driver that a recording makes; those with data of edges end in ``suffix``."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=0)
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUgraphEdgeData = SimpleNamespace

    def __init__(
        self, edges: Sequence[tuple[str, str]] = (), suffix: str = "", fails: str = ""
    ) -> None:
        self.edges, self.suffix, self.fails = list(edges), suffix, fails
        self.early: list[tuple[str, str]] = []
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        plain = name.removesuffix("_v2")
        if not plain.startswith("cu") or (plain != name and not self.suffix):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name == self.fails:
                return (Result.CUDA_ERROR_UNKNOWN,)
            answer = getattr(self, f"_{plain}", lambda *_: ())(*arguments)
            return (0, *answer)

        return call

    def _cuStreamEndCapture(self, stream: object) -> tuple[str]:
        return ("graph",)

    def _cuEventCreate(self, flags: int) -> tuple[str]:
        return ("event",)

    def _cuGraphInstantiate(self, graph: str, flags: int) -> tuple[str]:
        return ("executable",)

    def _cuGraphGetEdges(self, graph: str, count: int) -> tuple[Any, ...]:
        pairs = self.edges[:count]
        return [before for before, _ in pairs], [after for _, after in pairs], [], len(self.edges)

    def _cuGraphNodeGetType(self, node: str) -> tuple[int]:
        return (1 if node == "memset" else 0,)

    def _cuGraphKernelNodeGetParams(self, node: str) -> tuple[Any]:
        return (SimpleNamespace(func=node),)

    def _cuFuncGetName(self, function: str) -> tuple[bytes]:
        return (function.encode(),)

    def _cuGraphAddDependencies(
        self, graph: str, befores: Any, afters: Any, data: Any, count: int
    ) -> tuple[()]:
        assert (data[0].from_port, data[0].type) == (1, 1)
        self.early.append((befores[0], afters[0]))
        return ()


class Queue:
    """A device as a recording sees it."""

    def __init__(self, launches_early: bool = True) -> None:
        self.stream: Any = SimpleNamespace(handle=0)
        self.side_streams = [SimpleNamespace(handle=handle) for handle in (1, 2)]
        self.launches_early = launches_early
        self.launched: list[tuple[str, int]] = []

    def launch(self, name: str) -> Any:
        return lambda: self.launched.append((name, self.stream.handle))


def _record(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, queue: Queue, sections: Any
) -> CudaGraph:
    driver.CUstream = lambda handle: f"stream {handle}"  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_graph, "_bindings", lambda: driver)
    return CudaGraph(queue, sections)


def test_what_runs_aside_is_put_on_streams_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, driver = Queue(), Driver()
    main = queue.stream
    sections = [
        [queue.launch("a"), Aside((queue.launch("b"), queue.launch("c"))), Aside((queue.launch("d"),)),
         Aside((queue.launch("e"),)), queue.launch("f")],
        [queue.launch("g")],
    ]  # fmt: skip
    graph = _record(monkeypatch, driver, queue, sections)
    assert queue.launched == [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 1), ("f", 0), ("g", 0)]
    assert queue.stream is main
    assert driver.calls.count("cuStreamWaitEvent") == 6  # three forks and three joins
    graph()
    graph.close()
    assert driver.calls[-2:] == ["cuGraphLaunch", "cuGraphExecDestroy"]


@pytest.mark.parametrize("suffix", ["", "_v2"], ids=["bindings 13", "bindings 12"])
def test_only_kernels_that_wait_are_launched_early(
    monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    assert FOLLOWER in followers()
    assert OTHER not in followers()
    edges = [(FOLLOWER, FOLLOWER), (FOLLOWER, OTHER), (OTHER, FOLLOWER), ("memset", FOLLOWER)]
    driver = Driver(edges, suffix)
    _record(monkeypatch, driver, Queue(), [[]])
    assert driver.early == [(FOLLOWER, FOLLOWER)]
    assert f"cuGraphAddDependencies{suffix}" in driver.calls


def test_a_card_that_cannot_launch_early_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([(FOLLOWER, FOLLOWER)])
    _record(monkeypatch, driver, Queue(launches_early=False), [[]])
    assert driver.early == []


def test_an_error_while_recording_ends_the_recording_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Any:
        raise DeviceError("conv2d_forward: launch failed")

    driver, queue = Driver(fails="cuStreamEndCapture"), Queue()
    with pytest.raises(DeviceError, match="conv2d_forward"):
        _record(monkeypatch, driver, queue, [[Aside((cast(Any, refuse),))]])
    assert "cuStreamEndCapture" in driver.calls
    assert queue.stream.handle == 0


def test_what_the_driver_refuses_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(fails="cuGraphInstantiate")
    with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN; choose rung fused"):
        _record(monkeypatch, driver, Queue(), [[]])
    assert driver.calls[-1] == "cuGraphDestroy"
