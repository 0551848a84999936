"""The windows of a pooling layer, seen cell by cell."""

from __future__ import annotations

from collections.abc import Iterator

from pcnn_baseline.arrays import Array
from pcnn_bench.layers.pooling import PoolingSpec


def cells(maps: Array, spec: PoolingSpec, p: int, q: int) -> Iterator[Array]:
    """maps (N, C, H, W) -> views (N, C, P, Q), one for each cell of a window, in row order.

    Each view shows its cell in all P x Q windows at once.
    """
    (rows, columns), (down, right) = spec.size, spec.stride
    for r in range(rows):
        for s in range(columns):
            yield maps[:, :, r : r + (p - 1) * down + 1 : down, s : s + (q - 1) * right + 1 : right]
