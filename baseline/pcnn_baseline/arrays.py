"""How the baseline lays arrays out in memory, and the workspace a layer reuses from step to step.

Every layer speaks of maps (N, C, H, W) and vectors (N, F). In memory the batch comes last: maps lie
as (H, C, W, N) and vectors as (F, N), and what layers pass on are transposed views of that. So a
slice over rows or columns still has runs of at least N neighbours, whatever its step; and the rows
that one row of a convolution's output needs lie together and are a matrix already (``conv2d.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
"""float32 on the measured path, float64 where gradients are checked."""

Scalar = TypeVar("Scalar", bound=np.generic)

_AXES_IN_MEMORY = {1: (0,), 2: (1, 0), 4: (2, 1, 3, 0)}
_AXES_OF_BATCH = {1: (0,), 2: (1, 0), 4: (3, 1, 0, 2)}


def in_memory(batch: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """(N, C, H, W) -> (H, C, W, N), (N, F) -> (F, N); contiguous, a copy only of what was not."""
    return np.ascontiguousarray(batch.transpose(_AXES_IN_MEMORY[batch.ndim]))


def of_batch(memory: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The inverse of ``in_memory``, always a view."""
    return memory.transpose(_AXES_OF_BATCH[memory.ndim])


class Workspace:
    """The arrays one layer writes, by name, kept from step to step.

    Memory that is fresh in every step costs page faults: 9.6 ms against 4.1 for a 50 MB array. A
    smaller batch uses the front of the memory of the largest so far.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = dtype
        self._memory: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike | None = None) -> Any:
        """A contiguous array of this shape, holding what was last written under this name or NaN."""
        count = prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.size < count:
            memory = self._memory[name] = np.empty(count, dtype or self._dtype)
            _spoil(memory)
        return memory[:count].reshape(shape)

    def batch(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike | None = None) -> Any:
        """An array of shape (N, C, H, W), (N, F) or (N,) that lies as this module says."""
        axes = _AXES_IN_MEMORY[len(shape)]
        return of_batch(self.array(name, [shape[axis] for axis in axes], dtype))

    def spoil(self) -> None:
        """Fill everything with NaN (integers with -1), so that what is not written shows."""
        for memory in self._memory.values():
            _spoil(memory)

    def byte_counts(self) -> dict[str, int]:
        """Bytes held, by name."""
        return {name: memory.nbytes for name, memory in self._memory.items()}


def _spoil(memory: npt.NDArray[Any]) -> None:
    """Fill with what no right result holds: NaN, or -1 for integers."""
    memory.fill(np.nan if np.issubdtype(memory.dtype, np.floating) else -1)
