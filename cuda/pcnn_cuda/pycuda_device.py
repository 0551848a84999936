"""The GPU, through PyCUDA: the one module that imports it, and only when a device is opened."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.errors import DeviceError, DeviceMemoryError
from pcnn_cuda import libcuda, nvcc
from pcnn_cuda.cuda_graph import CudaGraph
from pcnn_cuda.device import DeviceArray, Event, HostArray, Section
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.libcuda import GpuStatus, probe_gpu
from pcnn_cuda.pycuda_kernel import PycudaKernel, one_line
from pcnn_cuda.stall import SOURCE, stall

if TYPE_CHECKING:
    import pycuda.driver as drv

__all__ = ["GpuStatus", "PycudaDevice", "probe_gpu", "require_pycuda"]

SIDE_STREAMS = 4
"""Sequences of a recording that may run beside each other; more take turns."""

_Key = tuple[str, tuple[tuple[str, int], ...]]
"""A source and its constants."""


class PycudaEvent:
    """A point in the stream; with its last reference, the driver's event returns to the pool."""

    __slots__ = ("_pool", "raw")

    def __init__(self, raw: drv.Event, pool: list[drv.Event]) -> None:
        self.raw = raw
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.raw)


class PycudaDevice:
    """One GPU; satisfies ``pcnn_cuda.device.Device``. Open, use and close it in one thread.

    It holds the GPU's primary context, which other libraries of the process share, and one stream.

    Raises:
        DeviceError: no GPU is visible, or PyCUDA, nvcc and driver do not fit; says what would do.
        DeviceMemoryError: the GPU is too full to be opened.
    """

    kind: Literal["gpu", "emulated"] = "gpu"

    def __init__(self, *, ordinal: int = 0, nvcc_flags: Sequence[str] = ()) -> None:
        self.launched: Counter[str] = Counter()
        self.compile_s = 0.0
        self.allocated_bytes = 0
        self.last_kernel = ""
        self.failure: type[Exception] = DeviceError
        self._ordinal = ordinal
        self._flags = tuple(nvcc_flags)
        self._built: dict[_Key, nvcc.Built] = {}
        self._kernels: dict[_Key, dict[str, PycudaKernel]] = {}
        self._allocations: dict[int, tuple[drv.DeviceAllocation, int]] = {}
        self._events: list[drv.Event] = []
        self._context: drv.Context | None = None
        self._stream: drv.Stream | None = None
        self.side_streams: list[drv.Stream] = []
        self._pushed = False
        # A context that is still open when the process ends aborts it, after all the work is done.
        atexit.register(self.close)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Take the context and make the stream."""
        status = probe_gpu()
        if not status.visible:
            raise DeviceError(f"gpu: {status.reason}; --device emulated runs without one")
        if not 0 <= self._ordinal < len(status.gpu_names):
            visible = ", ".join(f"gpu:{i} {name}" for i, name in enumerate(status.gpu_names))
            variable = libcuda.visible_devices()
            hint = f" ({variable} is set)" if variable else ""
            raise DeviceError(f"gpu:{self._ordinal}: no such GPU; visible: {visible}{hint}")
        self._driver_cuda = status.driver_cuda
        self._toolkit = nvcc.find()
        self._toolkit_version = self._toolkit.version
        require_pycuda()
        import pycuda.driver as drv

        self.failure = drv.Error
        try:
            drv.init()
            self._device = drv.Device(self._ordinal)
            self._context = self._device.retain_primary_context()
            self._context.push()
            self._pushed = True
            self._stream = drv.Stream()
            self.side_streams = [drv.Stream() for _ in range(SIDE_STREAMS)]
            major, minor = self._device.compute_capability()
        except drv.MemoryError as error:
            raise DeviceMemoryError(
                f"gpu:{self._ordinal}: no memory left to open it; nvidia-smi shows what fills it"
            ) from error
        except drv.Error as error:
            raise DeviceError(
                f"gpu:{self._ordinal}: cannot be opened: {one_line(error)}; "
                "nvidia-smi shows what holds it"
            ) from error
        self._arch = f"sm_{major}{minor}"
        self.launches_early = major >= 9

    @property
    def stream(self) -> drv.Stream:
        """The stream that everything is queued on."""
        assert self._stream is not None, "the device is closed"
        return self._stream

    @stream.setter
    def stream(self, stream: drv.Stream) -> None:
        self._stream = stream

    def prefetch(self, builds: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        """Build these (source, constants) side by side, so that ``compile`` has only to load them.

        Raises:
            DeviceError: as ``compile``.
        """
        start = perf_counter()
        wanted = dict.fromkeys(_key(source, constants) for source, constants in builds)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            waiting = {
                key: pool.submit(self._build, key) for key in wanted if key not in self._kernels
            }
        self.compile_s += perf_counter() - start
        self._built |= {key: build.result() for key, build in waiting.items()}

    def compile(self, source: str, /, **constants: int) -> Mapping[str, PycudaKernel]:
        """The kernels of ``pcnn_cuda/<source>`` with each constant as ``-D``; kept for later calls.

        Raises:
            DeviceError: nvcc or its host compiler is missing, does not fit, or refuses the source.
        """
        key = _key(source, constants)
        if key not in self._kernels:
            start = perf_counter()
            module = self._load(key)
            self._kernels[key] = {
                name: PycudaKernel(self, name, parameters, module.get_function(name))
                for name, parameters in signatures(kernel_text(source)).items()
            }
            self.compile_s += perf_counter() - start
        return self._kernels[key]

    def _build(self, key: _Key, rebuild: bool = False) -> nvcc.Built:
        """Needs no context, so any thread may call it."""
        source, constants = key
        return self._toolkit.build(
            source, dict(constants), arch=self._arch, flags=self._flags, rebuild=rebuild
        )

    def _load(self, key: _Key) -> drv.Module:
        """The loaded module; a cubin from the cache that does not load is built anew, once."""
        import pycuda.driver as drv

        built = self._built.pop(key, None) or self._build(key)
        try:
            return _load_cubin(built.cubin)
        except drv.MemoryError as error:
            raise self._memory_error(len(built.cubin), f"the code of {key[0]}") from error
        except drv.Error as error:
            if not built.from_cache:
                raise self._load_error(key[0], error) from error
            nvcc.note(f"{built.file} is stale ({one_line(error)}); building it anew")
        try:
            return _load_cubin(self._build(key, rebuild=True).cubin)
        except drv.Error as error:
            raise self._load_error(key[0], error) from error

    def _load_error(self, source: str, error: Exception) -> DeviceError:
        """Why a fresh cubin does not load: most often nvcc is newer than the driver."""
        reason = (
            f"{source}: the driver refuses what nvcc {self._toolkit_version} built "
            f"({one_line(error)})"
        )
        driver = self._driver_cuda
        if driver and (self._toolkit.cuda > driver or "unsupported toolchain" in str(error)):
            newest = f"CUDA {driver[0]}.{driver[1]}"
            return DeviceError(
                f"{reason}; the driver supports {newest}: update it, or name the nvcc of a toolkit "
                f"up to {newest} with --nvcc"
            )
        return DeviceError(f"{reason}; update the driver, or check cuda.nvcc_flags")

    def allow_shared(self, function: drv.Function, byte_count: int) -> None:
        """Let the function's blocks have this much dynamic shared memory."""
        import pycuda.driver as drv

        function.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, byte_count)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> DeviceArray:
        """Memory with undefined content; the driver aligns it to at least 256 bytes.

        Raises:
            DeviceMemoryError: the device has no room; names the MiB asked for, free and in all.
        """
        import pycuda.driver as drv

        byte_count = DeviceArray(0, shape, dtype).byte_count
        try:
            allocation = drv.mem_alloc(max(byte_count, 1))  # the driver refuses 0
        except drv.MemoryError as error:
            raise self._memory_error(byte_count, f"an array {shape} of {dtype}") from error
        except drv.Error as error:
            raise self._queue_error(error) from error
        address = int(allocation)
        self._allocations[address] = (allocation, byte_count)
        self.allocated_bytes += byte_count
        return DeviceArray(address, shape, dtype)

    def free(self, array: DeviceArray) -> None:
        """Give back what ``empty`` returned; waits for the kernels that may use it.

        Raises:
            ValueError: ``empty`` did not return it, or it was freed before.
        """
        if array.address not in self._allocations:
            raise ValueError(f"{array} was not allocated here, or was freed before")
        allocation, byte_count = self._allocations.pop(array.address)
        self.allocated_bytes -= byte_count
        allocation.free()

    def copy_in(self, target: DeviceArray, values: HostArray) -> None:
        """Queue a copy of ``values`` (same shape; made contiguous and of ``target.dtype``).

        ``values`` may be changed at once, since the driver stages pageable memory before the call
        returns. Only an array that the caller has page-locked must stay until ``synchronize``.

        Raises:
            ValueError: the shapes differ.
        """
        import pycuda.driver as drv

        if values.shape != target.shape:
            raise ValueError(f"cannot copy {values.shape} into {target.shape}")
        with self._failing():
            drv.memcpy_htod_async(
                target.address, np.ascontiguousarray(values, target.dtype), self.stream
            )

    def copy_out(self, source: DeviceArray) -> HostArray:
        """Wait; a host copy.

        Raises:
            DeviceError: something queued failed.
        """
        import pycuda.driver as drv

        values: HostArray = np.empty(source.shape, source.dtype)
        with self._failing():
            drv.memcpy_dtoh_async(values, source.address, self.stream)
            self.stream.synchronize()
        return values

    def fill(self, target: DeviceArray, byte: int) -> None:
        """Queue setting every byte; 0xFF makes every float a NaN."""
        import pycuda.driver as drv

        with self._failing():
            drv.memset_d8_async(target.address, byte, target.byte_count, self.stream)

    def record(self) -> PycudaEvent:
        """Queue an event."""
        import pycuda.driver as drv

        with self._failing():
            event = PycudaEvent(self._events.pop() if self._events else drv.Event(), self._events)
            event.raw.record(self.stream)
        return event

    def elapsed_us(self, start: Event, stop: Event) -> float:
        """Microseconds between two recorded events; both must have been reached.

        Raises:
            DeviceError: one was not, or something queued failed.
        """
        first, last = cast(PycudaEvent, start), cast(PycudaEvent, stop)
        with self._failing():
            return last.raw.time_since(first.raw) * 1e3  # the driver counts milliseconds

    def capture(self, sections: Sequence[Section]) -> CudaGraph:
        """Record these launches as a CUDA graph, those aside on streams of their own.

        Raises:
            DeviceError: cuda-bindings is missing, or the driver refuses.
        """
        return CudaGraph(self, sections)

    def take_compile_s(self) -> float:
        """Host seconds spent compiling and loading kernels since this was last asked."""
        taken, self.compile_s = self.compile_s, 0.0
        return taken

    def stall(self, time_us: float) -> None:
        """Queue a pause of about this length, in which the host can queue what follows."""
        import pycuda.driver as drv

        khz = self._device.get_attribute(drv.device_attribute.CLOCK_RATE)
        stall(self.compile(SOURCE), time_us, khz)

    def is_reached(self, event: Event) -> bool:
        """Whether the device has come to this event; does not wait."""
        with self._failing():
            return cast(PycudaEvent, event).raw.query()

    def synchronize(self) -> None:
        """Wait until everything queued is done.

        Raises:
            DeviceError: something queued failed.
        """
        with self._failing():
            self.stream.synchronize()

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) device memory as the driver sees it."""
        import pycuda.driver as drv

        with self._failing():
            return drv.mem_get_info()

    def describe(self) -> dict[str, str | int | float | None]:
        """What the device is, for environment.json; None where the driver does not say."""
        import pycuda
        import pycuda.driver as drv

        def attribute(name: str) -> int | None:
            try:
                return self._device.get_attribute(getattr(drv.device_attribute, name))
            except (drv.Error, AttributeError):  # not every driver and every PyCUDA knows them all
                return None

        major, minor = self._device.compute_capability()
        cuda = self._driver_cuda
        return {
            "name": self._device.name(),
            "uuid": libcuda.uuid(self._ordinal),
            "ordinal": self._ordinal,
            "compute_capability": f"{major}.{minor}",
            "driver": libcuda.driver_version(),
            "driver_cuda": f"{cuda[0]}.{cuda[1]}" if cuda else None,
            "toolkit": self._toolkit_version,
            "pycuda": pycuda.VERSION_TEXT,
            "total_memory_bytes": self._device.total_memory(),
            "multiprocessor_count": attribute("MULTIPROCESSOR_COUNT"),
            "clock_khz": attribute("CLOCK_RATE"),
            "memory_clock_khz": attribute("MEMORY_CLOCK_RATE"),
        }

    def close(self) -> None:
        """Free everything and leave the device; more calls do nothing."""
        atexit.unregister(self.close)
        context, self._context = self._context, None
        if context is None:
            return
        # What PyCUDA ties to the context goes while that is current; the kernels hold the modules.
        for allocation, _ in self._allocations.values():
            with suppress(self.failure):
                allocation.free()
        self._allocations.clear()
        self.allocated_bytes = 0
        self._kernels.clear()
        self._events.clear()
        self._stream = None
        self.side_streams.clear()
        if self._pushed:
            # After a failed kernel this may fail too; detaching then clears PyCUDA's stack.
            with suppress(self.failure):
                context.pop()
        with suppress(self.failure):
            context.detach()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn the driver's errors in the body into one line."""
        try:
            yield
        except self.failure as error:
            raise self._queue_error(error) from error

    def _queue_error(self, error: Exception) -> DeviceError:
        """An error that may come from anything queued before."""
        after = f"; the last kernel launched was {self.last_kernel}" if self.last_kernel else ""
        return DeviceError(f"gpu:{self._ordinal}: {one_line(error)}{after}")

    def _memory_error(self, byte_count: int, what: str) -> DeviceMemoryError:
        """The memory asked for, free and in all."""
        free, total = self.free_bytes()
        return DeviceMemoryError(
            f"gpu:{self._ordinal}: out of memory: {what} needs {byte_count / MEBIBYTE:.1f} MiB; "
            f"{free / MEBIBYTE:.1f} of {total / MEBIBYTE:.1f} MiB are free; use a smaller batch_size"
        )


def require_pycuda() -> str:
    """Its version, if pycuda.driver can be imported.

    Raises:
        DeviceError: it cannot; says what would do.
    """
    try:
        import pycuda
        import pycuda.driver
    except ModuleNotFoundError as error:
        raise DeviceError(
            f'PyCUDA: Python package {error.name} is missing; pip install "pcnn-bench[cuda]" '
            "(builds PyCUDA, so it needs g++ and the CUDA toolkit)"
        ) from error
    except Exception as error:  # whatever a binary module that does not fit raises
        raise DeviceError(
            f"PyCUDA: does not load ({one_line(error)}); build it anew for this driver, toolkit and "
            "NumPy: pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"
        ) from error
    return pycuda.VERSION_TEXT


def _load_cubin(cubin: bytes) -> drv.Module:
    """PyCUDA makes its message of a buffer that the driver may have left as it was: any bytes."""
    import pycuda.driver as drv

    try:
        return drv.module_from_buffer(cubin)
    except UnicodeDecodeError as error:
        raise drv.LogicError("the driver gives no reason") from error


def _key(source: str, constants: Mapping[str, int]) -> _Key:
    return source, tuple(sorted(constants.items()))
