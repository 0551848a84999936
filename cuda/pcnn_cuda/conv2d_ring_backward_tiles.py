"""Which strips the blocks of the backward kernels of ``conv2d_ring.cu`` walk down: of weights, and both together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product

from pcnn_cuda.conv2d_act_pool_backward_tiles import (
    BLOCKS_AGAIN,
    TARGET_BLOCKS,
    weight_shares,
)
from pcnn_cuda.conv2d_act_pool_tiles import (
    LOAD_ISSUES,
    LOOP_ISSUES,
    MAX_SHARED,
    MAX_THREADS,
    MULTIPROCESSORS,
    WAIT_ISSUES,
    Block,
    Sizes,
    ceil_div,
    cheapest,
    makespan,
    read,
    round_up,
    row_stride,
)
from pcnn_cuda.conv2d_ring_input_tiles import ErrorRows, InputStrip, input_strips, smallest_input
from pcnn_cuda.conv2d_ring_tiles import (
    STEP_ISSUES,
    SourceRows,
    Units,
    extents,
    forward_strips,
    step_rows,
    too_large,
)


@dataclass(frozen=True)
class WeightStrip:
    """What a block owns of the filters' gradient; names as in conv2d_ring_weight.cuh."""

    sizes: Sizes
    again: Block
    map_block: int
    channel_block: int
    row_groups: int
    column_groups: int
    maps: int
    channels: int
    rows: int
    columns: int

    @cached_property
    def items(self) -> int:
        """Threads' shares."""
        filters = self.maps // self.map_block * (self.channels // self.channel_block)
        return filters * self.sizes.kernel.h * self.row_groups * self.column_groups

    @property
    def threads(self) -> int:
        """One for each item, in whole warps."""
        return round_up(self.items, 32)

    @property
    def _segment(self) -> int:
        """Cells below four units."""
        return 3 * self.sizes.stride.w + self.sizes.kernel.w

    @cached_property
    def _errors(self) -> ErrorRows:
        units = Units(self.sizes, self.again, 1, self.maps, self.rows, self.columns)
        stride = row_stride(round_up(self.columns, max(4, self.again.pixels)))
        return ErrorRows(units, stride, 0)

    @cached_property
    def _source(self) -> SourceRows:
        s = self.sizes
        columns = (round_up(self.columns, 4) - 4) * s.stride.w + round_up(self._segment, 4)
        if not s.recomputes:
            return SourceRows(s, self.channels, self.rows, columns)
        columns = max(columns, self._errors.units.cells_below)
        return SourceRows(s, s.channels, self.rows, columns)

    @cached_property
    def shared(self) -> int:
        """Floats of shared memory."""
        sums = self.items * self.map_block * self.channel_block * self.sizes.kernel.w
        return max(32 * self.maps + self._errors.floats + self._source.floats, sums)

    @property
    def _channel_groups(self) -> int:
        return ceil_div(self.sizes.channels, self.channels)

    @cached_property
    def groups(self) -> int:
        """Blocks that share a walk."""
        return ceil_div(self.sizes.maps, self.maps) * self._channel_groups

    @property
    def _step_issues(self) -> float:
        """What a step costs a block."""
        s = self.sizes
        four = (
            4 * self.map_block * self.channel_block * s.kernel.w
            + self.map_block * read(4, 4, is_same=True)
            + self.channel_block * read(self._segment, 4, is_same=False)
            + LOOP_ISSUES
        )
        columns = ceil_div(ceil_div(self.columns, 4), self.column_groups)
        fours = ceil_div(self.rows, self.row_groups) * columns
        added = 3 * self.maps * self.rows * self.columns / 32  # errors, for the gradient of bias
        sums = ceil_div(self.items, 32) * fours * four + added
        return sums + self._errors.issues + self._source.step_issues + STEP_ISSUES

    def _walks(self, n: int, band: int) -> int:
        out = self.sizes.out
        return n * ceil_div(out.w, self.columns) * ceil_div(out.h, band)

    def band(self, n: int) -> int:
        """Rows of units that a block walks down at a time.

        As few as leave each split one walk; where there are more strips than splits, as leave each about as many.
        """
        height = self.sizes.out.h
        strips = self._walks(n, height)
        bands = self._most_splits // strips or (1 if strips >= 4 * self._most_splits else 4)
        return max(self.rows, ceil_div(height, bands))

    @cached_property
    def _most_splits(self) -> int:
        return max(1, TARGET_BLOCKS // self.groups)

    def splits(self, n: int) -> int:
        """How many partial sums n images make."""
        return min(self._walks(n, self.band(n)), self._most_splits)

    @property
    def convolved_again(self) -> int:
        """Cells of one map and image that are convolved again."""
        s = self.sizes
        return s.out.h * s.out.w * self._channel_groups if s.recomputes else 0

    def price(self) -> float:
        """What the filters' gradient costs an image, over all of ``Sizes.batches``."""
        s, step, price = self.sizes, self._step_issues, 0.0
        start = self._source.start_issues + WAIT_ISSUES
        for n in s.batches:
            band = self.band(n)
            walks = self._walks(n, band)
            splits = min(walks, self._most_splits)
            issues = ceil_div(walks, splits) * (start + ceil_div(band, self.rows) * step)
            joining = LOAD_ISSUES * splits * s.maps * s.channels * s.taps / 32 / MULTIPROCESSORS
            blocks = self.groups * splits
            price += (makespan(blocks, self.threads, self.shared, issues) + joining) / n
        return price

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the strip."""
        return {
            "WEIGHT_MAPS": self.maps, "WEIGHT_CHANNELS": self.channels, "WEIGHT_ROWS": self.rows,
            "WEIGHT_COLUMNS": self.columns, "WEIGHT_MAP_BLOCK": self.map_block,
            "WEIGHT_CHANNEL_BLOCK": self.channel_block, "WEIGHT_ROW_GROUPS": self.row_groups,
            "WEIGHT_COLUMN_GROUPS": self.column_groups, "WEIGHT_SHARED": self.shared,
        }  # fmt: skip


def weight_strips(s: Sizes, again: Block, least: int) -> Iterator[WeightStrip]:
    """Every strip that fits and gives a block more than ``least`` items."""
    for map_block, channel_block, unit in weight_shares(s, again):
        for maps, channels in product(
            extents(s.maps, unit, least), extents(s.channels, channel_block, least)
        ):
            filters = maps // map_block * (channels // channel_block) * s.kernel.h
            if filters > MAX_THREADS:
                continue
            for columns, rows in product(extents(s.out.w, 1, least), step_rows(s.out.h)):
                row_groups = min(rows, MAX_THREADS // filters)
                column_groups = min(ceil_div(columns, 4), MAX_THREADS // (filters * row_groups))
                strip = WeightStrip(
                    s, again, map_block, channel_block, row_groups, column_groups, maps, channels,
                    rows, columns,
                )  # fmt: skip
                if strip.items > least and strip.shared <= MAX_SHARED:
                    yield strip


@dataclass(frozen=True, slots=True)
class BackwardStrips:
    """Both tasks of a backward launch, or that of weights alone: the other is compiled all the same."""

    input: InputStrip
    weight: WeightStrip
    has_input: bool

    @property
    def threads(self) -> int:
        """Of a block that may have either task."""
        return max(self.input.threads if self.has_input else 0, self.weight.threads)

    @property
    def shared(self) -> int:
        """Floats, likewise."""
        return max(self.input.shared if self.has_input else 0, self.weight.shared)

    def price(self) -> float:
        """What backward costs an image, over all of ``Sizes.batches``."""
        return (self.input.price() if self.has_input else 0.0) + self.weight.price()

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the strips."""
        return {
            **self.input.constants(), **self.weight.constants(),
            "ERROR_MAP_BLOCK": self.input.again.maps, "ERROR_PIXEL_BLOCK": self.input.again.pixels,
        }  # fmt: skip


@cache
def choose_backward(sizes: Sizes, is_push: bool, has_input: bool) -> BackwardStrips:
    """The cheapest strips of the backward kernels; ``has_input`` says whether an error goes down.

    Raises:
        DeviceError: filters and rings of the narrowest strip do not fit a block.
    """
    found: list[BackwardStrips] = []
    for again in BLOCKS_AGAIN if sizes.recomputes else BLOCKS_AGAIN[-1:]:
        below: InputStrip | None = smallest_input(sizes, again, is_push)
        if has_input:
            below = cheapest(partial(input_strips, sizes, again, is_push), InputStrip.price)
        weight = cheapest(partial(weight_strips, sizes, again), WeightStrip.price)
        if below and weight:
            found.append(BackwardStrips(below, weight, has_input))
    if not found:
        raise too_large(sizes)
    return min(found, key=BackwardStrips.price)


def fit(sizes: Sizes, has_input: bool) -> bool:
    """Whether there are strips for all tasks, in either direction."""
    leasts = (MAX_THREADS // 2, 0)  # as ``cheapest``

    def exists(strips: Callable[[int], Iterator[object]]) -> bool:
        return any(next(strips(least), None) is not None for least in leasts)

    def backward(is_push: bool, again: Block) -> bool:
        below = not has_input or exists(partial(input_strips, sizes, again, is_push))
        return below and exists(partial(weight_strips, sizes, again))

    blocks = BLOCKS_AGAIN if sizes.recomputes else BLOCKS_AGAIN[-1:]
    return exists(partial(forward_strips, sizes)) and all(
        any(backward(is_push, again) for again in blocks) for is_push in (True, False)
    )
