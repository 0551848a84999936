"""The CPU as a device: the same ``.cu`` files, compiled by the host compiler and run by ``emulation/``.

Its times are never GPU times. With ``checker=True`` memory accesses and barriers are held to CUDA's rules.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from pcnn_bench import environment
from pcnn_bench.errors import DeviceError, DeviceMemoryError
from pcnn_cuda.device import (
    Argument,
    BoundLaunch,
    DeviceArray,
    Event,
    HostArray,
    Section,
    check_arguments,
    in_order,
)
from pcnn_cuda.emulation.reports import Report, describe_reports
from pcnn_cuda.emulation.runtime import KernelLibrary, LaunchRecord, Region, Runtime
from pcnn_cuda.launch import Launch, Parameter, check_limits, kernel_text, signatures

_ALIGNMENT = 256
_GAP_BYTES = 1 << 16  # between the arrays of a checked launch: most steps past one end there


class KernelFault(DeviceError):  # noqa: N818 - the fault is the kernel's, not ours
    """A kernel broke CUDA's rules; ``reports`` says where."""

    def __init__(self, reports: Sequence[Report]) -> None:
        more = f" (and {len(reports) - 1} more)" if len(reports) > 1 else ""
        super().__init__(f"{reports[0]}{more}")
        self.reports = list(reports)


@dataclass(frozen=True, slots=True)
class _HostEvent:
    time_ns: int


class EmulatedLaunch:
    """A kernel with its launch shape and arguments packed; calling it runs it to its end."""

    def __init__(
        self,
        kernel: EmulatedKernel,
        launch: Launch,
        arguments: Mapping[str, Argument],
        device: EmulatedDevice,
    ) -> None:
        self.kernel_name = kernel.name
        self._kernel = kernel
        self._device = device
        self._arguments = dict(arguments)
        self._slots = (ctypes.c_uint64 * max(1, len(kernel.parameters)))()
        self._record = LaunchRecord(
            run=kernel.library.entries[kernel.name],
            arguments=ctypes.addressof(self._slots),
            argument_count=len(kernel.parameters),
            image=kernel.library.image,
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            os_threads=device.threads,
            seed=device.seed,
        )
        self._reference = ctypes.byref(self._record)
        self._run = device.runtime.launch
        self._launched = device.launched
        self._pack(arguments)

    def __call__(self) -> None:
        """Run the launch.

        Raises:
            KernelFault: threads cannot go on, or (checker) CUDA's rules were broken.
        """
        self._launched[self.kernel_name] += 1
        if count := self._run(self._reference):
            self._raise(count)

    def rebind(self, **arguments: Argument) -> None:
        """Replace these arguments for the calls that follow; same checks as ``bind``."""
        check_arguments(self.kernel_name, self._kernel.parameters, arguments, partial=True)
        self._arguments.update(arguments)
        self._pack(arguments)

    def _pack(self, arguments: Mapping[str, Argument]) -> None:
        positions = self._kernel.positions
        for name, value in arguments.items():
            address = ctypes.addressof(self._slots) + 8 * positions[name]
            if isinstance(value, DeviceArray):
                ctypes.c_uint64.from_address(address).value = value.address
            elif self._kernel.parameters[name].code == "f":
                ctypes.c_float.from_address(address).value = float(value)
            else:
                ctypes.c_int32.from_address(address).value = int(value)

    def _raise(self, count: int) -> None:
        raw = self._device.runtime.reports(count)
        raise KernelFault(describe_reports(self.kernel_name, self._kernel.library.path, raw))


class _CheckedLaunch(EmulatedLaunch):
    """Runs on copies of its arrays, kept apart: a step past one never lands in its neighbour in an arena."""

    def __call__(self) -> None:
        arrays = {
            name: value for name, value in self._arguments.items() if isinstance(value, DeviceArray)
        }
        for name, array in arrays.items():
            self._device.check_live(f"{self.kernel_name}: {name}", array)
        groups = _overlapping(arrays)
        copies = []
        for names in groups:
            first = min(arrays[name].address for name in names)
            end = max(arrays[name].address + arrays[name].byte_count for name in names)
            buffer = np.empty(end - first + 2 * _GAP_BYTES, np.uint8)
            # the same alignment as the original, so that a misplaced float4 access stays one
            start = _GAP_BYTES + (first - buffer.ctypes.data) % _ALIGNMENT
            original, copy = _bytes_at(first, end - first), buffer[start : start + end - first]
            copy[...] = original
            copies.append((names, original, copy))
            for name in names:
                slot = self._kernel.positions[name]
                self._slots[slot] = copy.ctypes.data + arrays[name].address - first
        regions = (Region * max(1, len(copies)))(
            *(
                Region("/".join(names).encode(), copy.ctypes.data, copy.size)
                for names, _, copy in copies
            )
        )
        self._record.regions = ctypes.cast(regions, ctypes.POINTER(Region))
        self._record.region_count = len(copies)
        super().__call__()
        for (names, original, copy), region in zip(copies, regions, strict=False):
            original[...] = copy
            self._device.loaded[self.kernel_name, "/".join(names)] += region.loaded


class EmulatedKernel:
    """One ``__global__`` function of a loaded library."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Parameter],
        library: KernelLibrary,
        device: EmulatedDevice,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.positions = {parameter: index for index, parameter in enumerate(parameters)}
        self.library = library
        self._device = device

    def bind(self, launch: Launch, /, **arguments: Argument) -> EmulatedLaunch:
        """Check ``arguments`` against the parameters in the ``.cu`` and fix them.

        Raises:
            TypeError: an argument is missing, unknown, or of the wrong kind or element type.
            DeviceError: a GPU would refuse this launch; names the kernel and the limit. Or an int exceeds 32 bits.
        """
        check_arguments(self.name, self.parameters, arguments)
        check_limits(self.name, launch)
        bound = _CheckedLaunch if self._device.checker else EmulatedLaunch
        return bound(self, launch, arguments, self._device)


@dataclass(frozen=True, slots=True)
class EmulatedReplay:
    """Launches that are run one after another when it is called."""

    launches: tuple[BoundLaunch, ...]

    def __call__(self) -> None:
        """Run them all."""
        for launch in self.launches:
            launch()

    def close(self) -> None:
        """Nothing to free."""


class EmulatedDevice:
    """Satisfies ``pcnn_cuda.device.Device`` on the CPU. Launches are synchronous; ``compile`` is thread-safe."""

    kind: Literal["gpu", "emulated"] = "emulated"

    def __init__(
        self,
        *,
        checker: bool = False,
        threads: int | None = None,
        seed: int = 0,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """Build or load the runtime.

        Args:
            checker: check accesses and barriers; one OS thread, some hundred times slower.
            threads: OS threads; default: those that this process may use.
            seed: 0 runs blocks and threads in order; any other number is another schedule.
            sources: texts that take the place of the package's ``.cu`` and ``.cuh`` files, by name.

        Raises:
            DeviceError: no C++ compiler.
        """
        self.checker = checker
        self.threads = 1 if checker else (threads or len(os.sched_getaffinity(0)))
        self.seed = seed
        self.launched: Counter[str] = Counter()
        self.loaded: Counter[tuple[str, str]] = Counter()
        """Bytes that a kernel has read of an array, overlapping ones joined by ``/``; the checker counts them."""
        self.compile_s = 0.0
        self.allocated_bytes = 0
        self._sources = dict(sources or {})
        self._buffers: dict[int, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()
        self._compiled: dict[tuple[object, ...], Future[Mapping[str, EmulatedKernel]]] = {}
        self._compiling = 0
        self._compiling_since = 0.0
        with self._compile_clock():
            self.runtime = Runtime(checker=checker)

    def compile(self, source: str, /, **constants: int) -> Mapping[str, EmulatedKernel]:
        """The kernels of ``pcnn_cuda/<source>`` with each constant as ``-D``; kept for later calls.

        Raises:
            DeviceError: the compiler refuses the source; names file and line.
        """
        key = (source, *sorted(constants.items()))
        with self._lock:
            future = self._compiled.get(key)
            is_ours = future is None
            if future is None:
                future = self._compiled[key] = Future()
        if is_ours:
            try:
                with self._compile_clock():
                    future.set_result(self._compile(source, constants))
            except BaseException as error:
                with self._lock:
                    del self._compiled[key]
                future.set_exception(error)
        return future.result()

    def prefetch(self, builds: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        """Compile these (source, constants) on all cores.

        Raises:
            DeviceError: as ``compile``.
        """
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            # map cancels what has not begun when one is wrong or Ctrl-C ends the waiting
            list(pool.map(lambda build: self.compile(build[0], **build[1]), builds))

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> DeviceArray:
        """Memory filled with 0xFF (NaN), so that a read of what nobody wrote shows; aligned to 256 bytes.

        Raises:
            DeviceMemoryError: the machine has no room.
        """
        byte_count = DeviceArray(0, shape, dtype).byte_count
        free, total = self.free_bytes()
        refusal = DeviceMemoryError(
            f"the emulated device has no room for {byte_count} bytes: {free} free of {total}; "
            "use a smaller batch_size"
        )
        if (
            byte_count > free
        ):  # the system might promise them all the same, and end the process later
            raise refusal
        try:
            buffer = np.full(max(1, byte_count) + _ALIGNMENT, 0xFF, np.uint8)
        except MemoryError:
            raise refusal from None
        address = -(-buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._buffers[address] = buffer
        self.allocated_bytes += byte_count
        return DeviceArray(address, shape, dtype)

    def free(self, array: DeviceArray) -> None:
        """Give back what ``empty`` returned.

        Raises:
            ValueError: it did not, or the array was freed before.
        """
        if self._buffers.pop(array.address, None) is None:
            raise ValueError(f"no live allocation begins at this array {array.shape}")
        self.allocated_bytes -= array.byte_count

    def copy_in(self, target: DeviceArray, values: HostArray) -> None:
        """Copy ``values``, converted to ``target.dtype``.

        Raises:
            ValueError: the shapes differ.
        """
        if values.shape != target.shape:
            raise ValueError(f"an array {values.shape} does not fit a device array {target.shape}")
        np.copyto(_view(target), values, casting="unsafe")

    def copy_out(self, source: DeviceArray) -> HostArray:
        """A host copy."""
        return _view(source).copy()

    def fill(self, target: DeviceArray, byte: int) -> None:
        """Set every byte."""
        ctypes.memset(target.address, byte, target.byte_count)

    def record(self) -> Event:
        """The time now; everything launched is done."""
        return _HostEvent(time.perf_counter_ns())

    def elapsed_us(self, start: Event, stop: Event) -> float:
        """Microseconds of wall time between two events."""
        return (cast(_HostEvent, stop).time_ns - cast(_HostEvent, start).time_ns) / 1e3

    def capture(self, sections: Sequence[Section]) -> EmulatedReplay:
        """The launches themselves, to be run one after another."""
        return EmulatedReplay(tuple(in_order(sections)))

    def stall(self, time_us: float) -> None:
        """Nothing to hold back: every call has ended when it returns."""

    def is_reached(self, event: Event) -> bool:
        """Always: every call has ended when it returns."""
        return True

    def take_compile_s(self) -> float:
        """Host seconds spent compiling and loading since this was last asked, the runtime included."""
        with self._lock:
            taken, self.compile_s = self.compile_s, 0.0
        return taken

    def synchronize(self) -> None:
        """Nothing to wait for: every call has ended when it returns."""

    def free_bytes(self) -> tuple[int, int]:
        """(available, total) memory of this machine or of the control group that limits us."""
        return environment.memory_bytes()

    def describe(self) -> dict[str, str | int | float | None]:
        """CPU, compiler and threads, under the names that every device uses."""
        return {
            "name": f"emulated on {environment.cpu_model() or platform.machine()}",
            "uuid": None,
            "compute_capability": None,
            "driver": None,
            "toolkit": self.runtime.compiler.version,
            "total_bytes": self.free_bytes()[1],
            "threads": self.threads,
            "checker": int(self.checker),
        }

    def close(self) -> None:
        """Free everything."""
        self._buffers.clear()
        self.allocated_bytes = 0

    def check_live(self, what: str, array: DeviceArray) -> None:
        """Raise unless ``array`` lies in one allocation.

        Raises:
            DeviceError: it was freed, or reaches past its allocation.
        """
        for address, buffer in self._buffers.items():
            end = buffer.ctypes.data + buffer.size
            if address <= array.address and array.address + array.byte_count <= end:
                return
        raise DeviceError(f"{what} {array.shape} is not in live device memory; was it freed?")

    def _compile(self, source: str, constants: Mapping[str, int]) -> Mapping[str, EmulatedKernel]:
        parameters = signatures(self._text(source))
        library = self.runtime.compile(source, self._text, list(parameters), constants)
        return {name: EmulatedKernel(name, parameters[name], library, self) for name in parameters}

    def _text(self, source: str) -> str:
        return self._sources[source] if source in self._sources else kernel_text(source)

    @contextmanager
    def _compile_clock(self) -> Iterator[None]:
        """Add to ``compile_s`` the time in which at least one thread compiles."""
        with self._lock:
            if not self._compiling:
                self._compiling_since = time.perf_counter()
            self._compiling += 1
        try:
            yield
        finally:
            with self._lock:
                self._compiling -= 1
                if not self._compiling:
                    self.compile_s += time.perf_counter() - self._compiling_since


def _overlapping(arrays: Mapping[str, DeviceArray]) -> list[list[str]]:
    """The names grouped so that arrays of different groups share no byte."""
    groups: list[list[str]] = []
    end = -1
    for name in sorted(arrays, key=lambda name: arrays[name].address):
        if arrays[name].address >= end:
            groups.append([])
        groups[-1].append(name)
        end = max(end, arrays[name].address + arrays[name].byte_count)
    return groups


def _bytes_at(address: int, byte_count: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * byte_count).from_address(address))


def _view(array: DeviceArray) -> HostArray:
    return _bytes_at(array.address, array.byte_count).view(array.dtype).reshape(array.shape)
