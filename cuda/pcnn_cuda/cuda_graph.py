"""Recording a stream's launches as a CUDA graph, through NVIDIA's bindings: PyCUDA knows no graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import BoundLaunch


class CudaGraph:
    """What a stream was given while it was recorded, ready to be launched as one.

    Raises:
        DeviceError: the bindings are missing, or the driver refuses; one line.
    """

    def __init__(self, stream_handle: int, launches: Sequence[BoundLaunch]) -> None:
        driver = _bindings()
        self._stream = driver.CUstream(stream_handle)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _done(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            for launch in launches:
                launch()
        finally:
            graph = _done(driver.cuStreamEndCapture(self._stream))
        self._executable = _done(driver.cuGraphInstantiate(graph, 0))
        _done(driver.cuGraphDestroy(graph))
        self._launch: Callable[..., Any] = driver.cuGraphLaunch
        self._destroy: Callable[..., Any] = driver.cuGraphExecDestroy

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
