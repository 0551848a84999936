"""Kernels of the GPU: checked arguments, prepared launches. Imports no PyCUDA; it is handed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import Argument, DeviceArray, check_arguments
from pcnn_cuda.launch import Launch, Parameter

DEFAULT_SHARED_BYTES = 48 * 1024
"""A kernel must ask for dynamic shared memory beyond this (CUDA C++ Programming Guide)."""
LAUNCH_LIMITS = "a grid is at most 2147483647 x 65535 x 65535 blocks, a block 1024 threads"


Function = Any
"""A ``pycuda.driver.Function``; typed where PyCUDA is imported."""


class Queue(Protocol):
    """What a kernel needs of its device."""

    launched: Counter[str]
    last_kernel: str
    failure: type[Exception]
    """The base of everything that PyCUDA raises."""

    @property
    def stream(self) -> object:
        """The stream that everything is queued on."""
        ...

    def allow_shared(self, function: Function, byte_count: int) -> None:
        """Let the function's blocks have this much dynamic shared memory."""
        ...


class PycudaLaunch:
    """A prepared kernel with its launch shape and its arguments, converted once."""

    def __init__(
        self, kernel: PycudaKernel, launch: Launch, arguments: Mapping[str, Argument]
    ) -> None:
        self.kernel_name = kernel.name
        self._kernel = kernel
        self._launch = launch
        self._arguments = dict(arguments)
        self._values = kernel.convert(self._arguments)

    def __call__(self) -> None:
        """Queue the launch.

        Raises:
            DeviceError: it was refused; names the kernel and the launch shape.
        """
        queue, launch = self._kernel.queue, self._launch
        try:
            self._kernel.function.prepared_async_call(
                launch.grid,
                launch.block,
                queue.stream,
                *self._values,
                shared_size=launch.shared_bytes,
            )
        except queue.failure as error:
            raise DeviceError(
                f"{self.kernel_name}: launch of grid {launch.grid}, block {launch.block}, "
                f"{launch.shared_bytes} bytes of shared memory failed: {one_line(error)} "
                f"({LAUNCH_LIMITS})"
            ) from error
        queue.launched[self.kernel_name] += 1
        queue.last_kernel = self.kernel_name

    def rebind(self, **arguments: Argument) -> None:
        """Replace these arguments for the calls that follow.

        Raises:
            TypeError: an argument is unknown, or of the wrong kind or element type.
            DeviceError: an int exceeds 32 bits.
        """
        check_arguments(self.kernel_name, self._kernel.parameters, arguments, partial=True)
        changed = self._arguments | arguments
        self._values = self._kernel.convert(changed)
        self._arguments = changed


class PycudaKernel:
    """A ``__global__`` function, prepared with the format that its parameters imply."""

    def __init__(
        self, queue: Queue, name: str, parameters: Mapping[str, Parameter], function: Function
    ) -> None:
        self.queue = queue
        self.name = name
        self.parameters = parameters
        self.function = function.prepare("".join(each.code for each in parameters.values()))
        self._shared_bytes = DEFAULT_SHARED_BYTES

    def bind(self, launch: Launch, /, **arguments: Argument) -> PycudaLaunch:
        """Check ``arguments`` against the parameters in the ``.cu`` and fix them.

        Raises:
            TypeError: an argument is missing, unknown, or of the wrong kind or element type.
            DeviceError: the GPU has less shared memory than asked for, or an int exceeds 32 bits.
        """
        check_arguments(self.name, self.parameters, arguments)
        if launch.shared_bytes > self._shared_bytes:
            try:
                self.queue.allow_shared(self.function, launch.shared_bytes)
            except self.queue.failure as error:
                raise DeviceError(
                    f"{self.name}: the GPU does not give a block {launch.shared_bytes} bytes of "
                    f"shared memory; choose another rung for this layer ({one_line(error)})"
                ) from error
            self._shared_bytes = launch.shared_bytes
        return PycudaLaunch(self, launch, arguments)

    def convert(self, arguments: Mapping[str, Argument]) -> list[int | float]:
        """Addresses and plain numbers, in the order of the parameters."""
        values: list[int | float] = []
        for name, parameter in self.parameters.items():
            value = arguments[name]
            if isinstance(value, DeviceArray):
                values.append(value.address)
            else:  # PyCUDA's packing refuses NumPy's numbers
                values.append(float(value) if parameter.code == "f" else int(value))
        return values


def one_line(error: BaseException) -> str:
    """The message without its line breaks."""
    return " ".join(str(error).split())
