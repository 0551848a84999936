"""A training set that lies on the device, and how batches are taken from it: host code of ``load_batch.cu``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from pcnn_bench.engine import MemoryUse, ResidentData
from pcnn_bench.errors import DataError
from pcnn_bench.network import Floats, Labels
from pcnn_cuda.device import BoundLaunch, Device, DeviceArray, HostArray, Kernel
from pcnn_cuda.launch import ONE_THREAD, linear

SOURCE = "load_batch.cu"


class LoadBatch:
    """Satisfies ``pcnn_bench.engine.DataKeeper``.

    The position in the order lies on the device too, so that a step is the same launches every time; the host counts
    along to know how many images the next step has.
    """

    def __init__(
        self, device: Device, x: DeviceArray, label: DeviceArray, first: DeviceArray
    ) -> None:
        """``x`` (batch, C, H, W) and ``label`` (batch,) are where the batch is put.

        ``first`` (1,) is the place of the next losses in the history; it moves on with every step.
        """
        self._device = device
        self._kernels: Mapping[str, Kernel] = device.compile(SOURCE)
        self._x, self._label, self._first = x, label, first
        self._position = device.empty((1,), "int32")
        self._arrays: dict[str, DeviceArray] = {}
        self._count = 0
        self._done = 0
        self.is_source = False
        """Whether the next step takes its batch from here."""
        self.is_ahead = False
        """Whether the next batch is in its place already."""

    def keep(self, data: ResidentData) -> None:
        """Bring the training set to the device, in its own order.

        Raises:
            DeviceMemoryError: it does not fit.
        """
        self._forget()
        order = np.arange(len(data.labels), dtype=np.int32)
        arrays: dict[str, HostArray] = {
            "images": data.images,
            "labels": data.labels,
            "value": data.values,
            "order": order,
        }
        for name, values in arrays.items():
            self._arrays[name] = self._device.empty(values.shape, values.dtype.name)
            self._device.copy_in(self._arrays[name], values)
        self.set_order(order)

    def set_order(self, order: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Begin anew with these indices into the training set.

        Raises:
            DataError: an index is none of the training set's, or there are more than it has images.
        """
        available = self._arrays["labels"].size
        order = np.asarray(order, np.int64)
        if not 1 <= len(order) <= available or not 0 <= order.min() <= order.max() < available:
            raise DataError(f"order: 1 to {available} indices from 0 to {available - 1} are needed")
        self._device.copy_in(self._arrays["order"].view((len(order),)), order)
        self._device.fill(self._position, 0)
        self._count, self._done = len(order), 0
        self.is_source, self.is_ahead = True, False

    @property
    def state(self) -> int:
        """What the launches of a step depend on besides its images: the length of the order, 0 without one."""
        return self._count if self.is_source else 0

    def next_count(self) -> int:
        """Images of the next batch: what is left of the order, at most a whole batch."""
        return min(self._x.shape[0], self._count - self._done)

    def take(self, n: int) -> None:
        """Note that a step of n images is queued."""
        self._done = (self._done + n) % self._count

    def gather(self, n: int) -> list[BoundLaunch]:
        """The launches that put the next n images and labels in place."""
        _, channels, *extents = self._x.shape
        return [
            self._kernels["load_batch_gather"].bind(
                linear(n * prod(self._x.shape[1:])),
                **self._arrays, position=self._position, x=self._x, label=self._label, N=n, C=channels, M=prod(extents),
            )
        ]  # fmt: skip

    def advance(self, n: int, *, loss_count: int | None = None) -> list[BoundLaunch]:
        """The launches that end a step of n images: the position and the place of the losses move on.

        ``loss_count`` is how many losses there are, one an image unless it says otherwise.
        """
        taken, count = (n, self._count) if self.is_source else (0, 1)
        return [
            self._kernels["load_batch_advance"].bind(
                ONE_THREAD,
                position=self._position, first=self._first,
                TAKEN=taken, N=n if loss_count is None else loss_count, COUNT=count,
            )
        ]  # fmt: skip

    def next_batch(self) -> tuple[Floats, Labels]:
        """Take the next batch as a step would, and bring it to the host: for checking."""
        n = self.next_count()
        for array in (self._x, self._label):
            self._device.fill(array, 0xFF)
        for launch in [*self.gather(n), *self.advance(n, loss_count=0)]:
            launch()
        self.take(n)
        self.is_ahead = False
        x, label = self._device.copy_out(self._x)[:n], self._device.copy_out(self._label)[:n]
        return np.asarray(x, np.float32), np.asarray(label, np.int32)

    def memory(self) -> list[MemoryUse]:
        """One row an array."""
        return [
            MemoryUse("dataset", "", name, array.byte_count) for name, array in self._arrays.items()
        ]

    def close(self) -> None:
        """Free everything."""
        self._forget()
        self._device.free(self._position)

    def _forget(self) -> None:
        """Free the training set."""
        for array in self._arrays.values():
            self._device.free(array)
        self._arrays.clear()
