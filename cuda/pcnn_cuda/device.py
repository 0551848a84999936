"""The Device protocol: compile, allocate, copy, launch, events. Ops and engine know nothing else of a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from pcnn_bench.errors import DeviceError
from pcnn_cuda.launch import Launch, Parameter

HostArray = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Contiguous device memory seen as an array; a view owns nothing."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    """A NumPy name: float32, int32, uint8."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def byte_count(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def view(self, shape: tuple[int, ...], *, first: int = 0) -> DeviceArray:
        """``shape`` elements from element ``first`` on, same memory.

        Raises:
            ValueError: the view would leave the array.
        """
        if first < 0 or first + prod(shape) > self.size:
            raise ValueError(f"view {shape} from {first} leaves an array of {self.size}")
        address = self.address + first * np.dtype(self.dtype).itemsize
        return replace(self, address=address, shape=shape)


Argument = DeviceArray | int | float


class BoundLaunch(Protocol):
    """A kernel with its launch shape and arguments: calling it queues one launch."""

    @property
    def kernel_name(self) -> str:
        """Which kernel it launches."""
        ...

    def __call__(self) -> None:
        """Queue the launch.

        Raises:
            DeviceError: the launch was refused, or failed; the message names the kernel.
        """
        ...

    def rebind(self, **arguments: Argument) -> None:
        """Replace these arguments for the calls that follow; same checks as ``bind``."""
        ...


@dataclass(frozen=True, slots=True)
class Aside:
    """Launches that wait for those before them in their section, and for which only the next section waits."""

    launches: tuple[BoundLaunch, ...]


Section = Sequence[BoundLaunch | Aside]
"""A part of a recording; the next one begins when all of it is done."""


def in_order(sections: Sequence[Section]) -> Iterator[BoundLaunch]:
    """Every launch, for a device that runs one at a time."""
    for section in sections:
        for each in section:
            yield from each.launches if isinstance(each, Aside) else (each,)


class Kernel(Protocol):
    """A compiled ``__global__`` function."""

    @property
    def name(self) -> str:
        """The name in the ``.cu``."""
        ...

    def bind(self, launch: Launch, /, **arguments: Argument) -> BoundLaunch:
        """Check ``arguments`` against the parameters in the ``.cu`` and fix them.

        Raises:
            TypeError: an argument is missing, unknown, or of the wrong kind or element type.
        """
        ...


class Replay(Protocol):
    """Recorded launches."""

    def __call__(self) -> None:
        """Queue them all, in order."""
        ...

    def close(self) -> None:
        """Free what was recorded."""
        ...


class Event(Protocol):
    """A point in the device's queue."""


class Compiler(Protocol):
    """What gives the kernels of a source."""

    def compile(self, source: str, /, **constants: int) -> Mapping[str, Kernel]:
        """The kernels of ``pcnn_cuda/<source>`` with each constant as ``-D``; kept for later calls.

        Raises:
            DeviceError: the compiler is missing, does not fit, or refuses the source; one line with the remedy.
        """
        ...


class Device(Compiler, Protocol):
    """One device. All work is queued in order; ``synchronize`` and ``copy_out`` wait."""

    @property
    def kind(self) -> Literal["gpu", "emulated"]:
        """Which of the two devices this is."""
        ...

    @property
    def launched(self) -> Counter[str]:
        """Launches so far by kernel name; may be cleared."""
        ...

    def take_compile_s(self) -> float:
        """Host seconds spent compiling and loading kernels since this was last asked."""
        ...

    @property
    def allocated_bytes(self) -> int:
        """Bytes held now by ``empty``."""
        ...

    def prefetch(self, builds: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        """Compile these (source, constants) side by side, so that ``compile`` finds them done.

        Raises:
            DeviceError: as ``compile``.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> DeviceArray:
        """Memory with undefined content, aligned to 256 bytes.

        Raises:
            DeviceMemoryError: the device has no room; names the bytes asked for, free and in all.
        """
        ...

    def free(self, array: DeviceArray) -> None:
        """Give back what ``empty`` returned."""
        ...

    def copy_in(self, target: DeviceArray, values: HostArray) -> None:
        """Queue a copy of ``values`` (same shape; converted to ``target.dtype`` and made contiguous)."""
        ...

    def copy_out(self, source: DeviceArray) -> HostArray:
        """Wait; a host copy."""
        ...

    def fill(self, target: DeviceArray, byte: int) -> None:
        """Queue setting every byte; 0xFF makes every float a NaN."""
        ...

    def capture(self, sections: Sequence[Section]) -> Replay:
        """Record these launches, with the arguments they have now, so that all are queued by one call.

        A device that runs one launch at a time runs them in order.

        Raises:
            DeviceError: the device cannot.
        """
        ...

    def record(self) -> Event:
        """Queue an event."""
        ...

    def elapsed_us(self, start: Event, stop: Event) -> float:
        """Microseconds between two recorded events; both must have been reached."""
        ...

    def stall(self, time_us: float) -> None:
        """Queue a pause of about this length, in which the host can queue what follows.

        Without it, events around a short kernel measure how long the host took to launch it. A device whose launches
        are synchronous has nothing to do.
        """
        ...

    def is_reached(self, event: Event) -> bool:
        """Whether the device has come to this event; does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait until everything queued is done.

        Raises:
            DeviceError: something queued failed.
        """
        ...

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) device memory as the driver sees it."""
        ...

    def describe(self) -> dict[str, str | int | float | None]:
        """What the device is: name, uuid, compute_capability, driver, toolkit ...; for environment.json."""
        ...

    def close(self) -> None:
        """Free everything and leave the device."""
        ...


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "i": (int, np.integer),
    "f": (int, float, np.floating),
}


def check_arguments(
    kernel: str,
    parameters: Mapping[str, Parameter],
    arguments: Mapping[str, Argument],
    *,
    partial: bool = False,
) -> None:
    """Raise unless ``arguments`` are exactly (or, if ``partial``, some of) what the kernel takes.

    Raises:
        TypeError: an argument is missing, unknown, or of the wrong kind or element type.
        DeviceError: an int exceeds 32 bits.
    """
    unknown = [name for name in arguments if name not in parameters]
    missing = [] if partial else [name for name in parameters if name not in arguments]
    if unknown or missing:
        raise TypeError(
            f"{kernel}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}; "
            f"it takes {', '.join(parameters)}"
        )
    for name, value in arguments.items():
        parameter = parameters[name]
        if parameter.code == "P":
            if not isinstance(value, DeviceArray) or value.dtype != parameter.element:
                found = value.dtype if isinstance(value, DeviceArray) else type(value).__name__
                raise TypeError(
                    f"{kernel}: {name} must be {parameter.element} on the device, not {found}"
                )
        elif isinstance(value, bool) or not isinstance(value, _PYTHON_TYPES[parameter.code]):
            wanted = "an int" if parameter.code == "i" else "a float"
            raise TypeError(f"{kernel}: {name} must be {wanted}, not {type(value).__name__}")
        elif parameter.code == "i" and not -(2**31) <= cast(int, value) < 2**31:
            raise DeviceError(
                f"{kernel}: {name} = {value} does not fit a 32-bit int; use a smaller batch_size"
            )
