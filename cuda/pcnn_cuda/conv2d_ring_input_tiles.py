"""Which strip of the input's gradient a block of the backward kernels of ``conv2d_ring.cu`` walks down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from pcnn_cuda.conv2d_act_pool_backward_tiles import ERROR_ISSUES, input_shares
from pcnn_cuda.conv2d_act_pool_tiles import (
    LOAD_ISSUES,
    LOOP_ISSUES,
    MAX_SHARED,
    WAIT_ISSUES,
    Block,
    Sizes,
    ceil_div,
    read,
    round_up,
    row_stride,
)
from pcnn_cuda.conv2d_ring_tiles import (
    CELL_ISSUES,
    PARTS,
    STEP_ISSUES,
    SourceRows,
    Units,
    Walk,
    extents,
    is_fair,
    joining,
    step_rows,
    whole_warps,
)


@dataclass(frozen=True, slots=True)
class ErrorRows:
    """As ``ErrorRing`` of conv2d_ring_error.cuh."""

    units: Units
    stride: int
    kept: int

    @property
    def floats(self) -> int:
        """Of the ring, and of the filters where units are convolved again."""
        u = self.units
        slots = self.kept + (1 if u.sizes.recomputes else 2) * u.rows
        return u.maps * slots * self.stride + (u.filters if u.sizes.recomputes else 0)

    @property
    def source(self) -> SourceRows:
        """The source rows that are convolved again, none otherwise."""
        return (
            replace(self.units.source, channels=0)
            if not self.units.sizes.recomputes
            else self.units.source
        )

    @property
    def issues(self) -> float:
        """What making a step's errors costs a block."""
        u = self.units
        s = u.sizes
        cells = u.maps * u.rows * u.columns / 32
        if s.recomputes:
            return u.issues + STEP_ISSUES + ERROR_ISSUES * cells
        if s.size.h > s.step.h or s.size.w > s.step.w:
            return ERROR_ISSUES * cells
        return (CELL_ISSUES + ERROR_ISSUES / (s.step.h * s.step.w)) * cells


@dataclass(frozen=True)
class InputStrip:
    """What a block owns of the input's gradient; names as in conv2d_ring_input.cuh."""

    sizes: Sizes
    again: Block
    is_push: bool
    channel_block: int
    column_block: int
    unit_block: int
    parts: int
    channels: int
    rows: int
    columns: int

    @property
    def _behind(self) -> int:
        """Rows of units above the same step down, but one."""
        s = self.sizes
        first = (s.padding.h - s.kernel.h + s.stride.h) // s.stride.h
        return (s.stride.h - 1 + s.padding.h) // s.stride.h - min(first, s.padding.h // s.stride.h)

    @cached_property
    def _first_q(self) -> int:
        s = self.sizes
        return (s.padding.w - s.kernel.w + s.stride.w) // s.stride.w

    @cached_property
    def _unit_columns(self) -> int:
        s = self.sizes
        return (self.columns - 1 + s.padding.w) // s.stride.w - self._first_q + 1

    @property
    def _pull_groups(self) -> int:
        return self.columns // self.column_block

    @property
    def _pull_segment(self) -> int:
        s = self.sizes
        return (self.column_block - 1 + s.padding.w) // s.stride.w - self._first_q + 1

    @cached_property
    def _push_columns(self) -> int:
        return min(self._unit_columns, self.sizes.out.w)

    @cached_property
    def _push_groups(self) -> int:
        return ceil_div(self._push_columns, self.unit_block)

    @property
    def _push_step(self) -> int:
        return self.unit_block * self.sizes.stride.w

    @property
    def _push_phases(self) -> int:
        s = self.sizes
        return ceil_div((self.unit_block - 1) * s.stride.w + s.kernel.w, self._push_step)

    @cached_property
    def _errors(self) -> ErrorRows:
        s = self.sizes
        if self.is_push:
            columns, least = self._push_columns, self._push_groups * self.unit_block
        else:
            step = self.column_block // s.stride.w
            columns = self._unit_columns
            least = (self._pull_groups - 1) * step + round_up(self._pull_segment, 4)
        maps = round_up(s.maps, self.again.maps if s.recomputes else 1)
        units = Units(s, self.again, 1, maps, self.rows, columns)
        stride = row_stride(max(least, round_up(columns, self.again.pixels)))
        return ErrorRows(units, stride, 0 if self.is_push else self._behind)

    @property
    def _sums(self) -> int:
        """Floats of the ring of sums."""
        s = self.sizes
        slots = max(s.kernel.h, s.stride.h) + s.stride.h
        columns = (self._push_groups - 1 + self._push_phases) * self._push_step
        return self.channels * slots * row_stride(columns)

    @cached_property
    def items(self) -> int:
        """Threads' shares of a row of units, or of a step: so many share the maps above a block."""
        blocks = self.parts * (self.channels // self.channel_block)
        if self.is_push:
            return blocks * self.sizes.kernel.h * self._push_groups
        return blocks * self.rows * self.sizes.stride.h * self._pull_groups

    @property
    def threads(self) -> int:
        """Of a block."""
        return whole_warps(self.items)

    @property
    def _filters(self) -> int:
        return self.sizes.maps * self.sizes.taps * row_stride(self.channels)

    @cached_property
    def shared(self) -> int:
        """Floats of shared memory."""
        errors = self._errors
        rings = errors.floats + errors.source.floats + (self._sums if self.is_push else 0)
        return self._filters + rings

    @cached_property
    def walk(self) -> Walk:
        """Down the image, in steps of the stride."""
        s, errors = self.sizes, self._errors
        sums = self._push_issues if self.is_push else self._pull_issues
        made = errors.issues + errors.source.step_issues + STEP_ISSUES
        return Walk(
            strips=ceil_div(s.image.w, self.columns) * ceil_div(s.channels, self.channels),
            extent=ceil_div(s.image.h, s.stride.h),
            rows=self.rows,
            lag=self._behind,
            start=LOAD_ISSUES * self._filters / 32 + errors.source.start_issues + 2 * WAIT_ISSUES,
            lead=made + sums if self.is_push else made,
            step=made + sums,
            threads=self.threads,
            shared=self.shared,
        )

    @property
    def _factor_issues(self) -> int:
        """Reading the factors of a map's row of filters."""
        block = self.channel_block
        return self.sizes.kernel.w * read(block, block, is_same=True) + LOOP_ISSUES

    @property
    def _push_issues(self) -> float:
        s, block = self.sizes, self.channel_block
        line = self._factor_issues + read(self.unit_block, self.unit_block, is_same=False)
        line += s.kernel.w * block * self.unit_block
        # adding to the cells in shared memory: a read, an addition and a write
        adding = 3 * block * self._push_phases * self._push_step
        written = 2 * CELL_ISSUES * self.channels * s.stride.h * self.columns / 32
        joined = joining(self.parts, block * self._push_phases * self._push_step)
        lines = ceil_div(s.maps, self.parts)
        row = ceil_div(self.items, 32) * (lines * line + joined + adding) + written
        return self.rows * (row + self._push_phases * STEP_ISSUES)

    @property
    def _pull_issues(self) -> float:
        s, block = self.sizes, self.channel_block
        step = self.column_block // s.stride.w
        line = self._factor_issues + read(self._pull_segment, step, is_same=False)
        line += s.kernel.w * block * step
        lines = ceil_div(s.maps, self.parts) * s.kernel.h / s.stride.h
        joined = joining(self.parts, block * self.column_block)
        return ceil_div(self.items, 32) * (lines * line + joined)

    def convolved_again(self, n: int) -> int:
        """Cells of one map and image that are convolved again."""
        if not self.sizes.recomputes:
            return 0
        walk = self.walk
        rows = walk.extent + walk.lag * walk.bands(n)
        return rows * self._errors.units.columns * walk.strips

    def price(self) -> float:
        """What the input's gradient costs an image, over all of ``Sizes.batches``."""
        return self.walk.price(self.sizes.batches)

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the strip."""
        return {
            "INPUT_CHANNELS": self.channels, "INPUT_ROWS": self.rows, "INPUT_COLUMNS": self.columns,
            "CHANNEL_BLOCK": self.channel_block, "COLUMN_BLOCK": self.column_block,
            "UNIT_BLOCK": self.unit_block, "INPUT_PARTS": self.parts,
            "PUSHES": int(self.is_push), "INPUT_SHARED": self.shared,
        }  # fmt: skip


def smallest_input(s: Sizes, again: Block, is_push: bool) -> InputStrip:
    """The strip that is compiled where none is walked down."""
    return InputStrip(s, again, is_push, 1, s.stride.w, 1, 1, 1, 1, s.stride.w)


def input_strips(s: Sizes, again: Block, is_push: bool, least: int) -> Iterator[InputStrip]:
    """Every strip that fits and gives a block more than ``least`` items."""
    for (channel_block, column_block, units), parts in product(
        input_shares(s, pushes=is_push), PARTS
    ):
        for channels, columns, rows in product(
            extents(s.channels, channel_block, least),
            extents(s.image.w, column_block, least),
            step_rows(s.out.h),
        ):
            strip = InputStrip(
                s, again, is_push, channel_block, column_block, units, parts, channels, rows, columns
            )  # fmt: skip
            if is_fair(strip.items, parts, s.maps, least) and strip.shared <= MAX_SHARED:
                yield strip
