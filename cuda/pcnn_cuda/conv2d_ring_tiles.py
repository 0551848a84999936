"""Which strip of a map a block of the kernels of ``conv2d_ring.cu`` walks down, and in which steps.

Every strip that fits is priced, as ``conv2d_act_pool_tiles`` prices tiles, and the cheapest taken. The classes repeat
the arithmetic of the structs in the ``.cuh`` files that size shared memory and count items; the kernels assert at
compile time that both agree. How far down a walk goes is chosen for each batch size: few images are cut into bands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product

from pcnn_bench.errors import DeviceError
from pcnn_cuda.conv2d_act_pool_tiles import (
    LOAD_ISSUES,
    LOOP_ISSUES,
    MAX_SHARED,
    MAX_THREADS,
    WAIT_ISSUES,
    Block,
    Sizes,
    ceil_div,
    cheapest,
    cuts,
    makespan,
    read,
    round_up,
    row_stride,
    spread,
)

BRING_ISSUES = 8
"""A value copied into a ring: index arithmetic, guards, and the copy."""
WINDOW_ISSUES, CELL_ISSUES = 10, 6
"""A pooling window, and each of its cells."""
STEP_ISSUES = 120
"""A barrier and what it leaves idle, as far as other blocks do not hide it."""
PARTS = (1, 2, 4)
"""Threads that may share the terms of the same sums."""
MAX_PASSES = 2
"""Passes of the block's threads over the items of a step: more would not make the barriers cheaper."""


def too_large(s: Sizes) -> DeviceError:
    """That no strip fits."""
    return DeviceError(
        f"rows of {s.channels} channels and {s.maps} maps with filters of {s.kernel.h} x {s.kernel.w} are too large "
        "for one block; choose rung fused for these layers"
    )


def step_rows(extent: int) -> list[int]:
    """How many of ``extent`` rows a step may take."""
    return [rows for rows in (1, 2, 4, 8, 16) if rows <= extent]


def is_fair(items: int, parts: int, terms: int, least: int) -> bool:
    """Whether a block's threads have enough to do, and only share sums, of so many terms, if they had not otherwise."""
    if not least < items <= MAX_PASSES * MAX_THREADS:
        return False
    return parts == 1 or (items // parts <= MAX_THREADS // 2 and terms >= 4 * parts)


def joining(parts: int, sums: int) -> int:
    """Issues of adding up the sums of so many threads, a shuffle and an addition each time their number halves."""
    return 2 * sums * (parts.bit_length() - 1)


def extents(count: int, unit: int, least: int) -> list[int]:
    """Parts of ``count`` that a strip may take; all of it where a block cannot have more than ``least`` items.

    With less of the layer and as few items, most of a block's threads would have nothing to do.
    """
    return cuts(count, unit) if least else [round_up(count, unit)]


def whole_warps(items: int) -> int:
    """Threads for these items, in one pass or several."""
    return min(MAX_THREADS, round_up(items, 32))


@dataclass(frozen=True, slots=True)
class SourceRows:
    """As ``SourceRing`` of conv2d_ring.cuh: the rows below ``unit_rows`` rows of units, and those of the next step."""

    sizes: Sizes
    channels: int
    unit_rows: int
    columns: int

    @property
    def _step(self) -> int:
        return self.unit_rows * self.sizes.stride.h

    @property
    def _start(self) -> int:
        return (self.unit_rows - 1) * self.sizes.stride.h + self.sizes.kernel.h

    @property
    def floats(self) -> int:
        """Of the ring."""
        return self.channels * (self._start + self._step) * row_stride(self.columns)

    @property
    def start_issues(self) -> float:
        """What bringing the first rows costs a block."""
        return BRING_ISSUES * self.channels * self._start * row_stride(self.columns) / 32

    @property
    def step_issues(self) -> float:
        """What bringing those of a step costs."""
        return BRING_ISSUES * self.channels * self._step * row_stride(self.columns) / 32


@dataclass(frozen=True, slots=True)
class Walk:
    """Blocks that walk down the ``strips`` of an image, ``rows`` of its ``extent`` rows a step.

    The first ``lag`` rows of a walk complete nothing. ``start``, ``lead`` and ``step`` are what a block's start, a step
    that completes nothing and any other step cost.
    """

    strips: int
    extent: int
    rows: int
    lag: int
    start: float
    lead: float
    step: float
    threads: int
    shared: int

    def makespan(self, n: int, band: int) -> float:
        """What n images cost if each walk goes down ``band`` rows."""
        steps = ceil_div(band, self.rows)
        leading = ceil_div(band + self.lag, self.rows) - steps
        issues = self.start + leading * self.lead + steps * self.step
        blocks = n * self.strips * ceil_div(self.extent, band)
        return makespan(blocks, self.threads, self.shared, issues)

    def band(self, n: int) -> int:
        """The rows of a walk: of all ways to cut the extent into a few equal bands, the cheapest."""
        return min(cuts(self.extent), key=lambda band: self.makespan(n, band))

    def bands(self, n: int) -> int:
        """Walks one below the other."""
        return ceil_div(self.extent, self.band(n))

    def blocks(self, n: int) -> int:
        """Blocks for n images."""
        return n * self.strips * self.bands(n)

    def price(self, batches: tuple[int, ...]) -> float:
        """What an image costs, over all batches."""
        return sum(min(self.makespan(n, band) for band in cuts(self.extent)) / n for n in batches)


@dataclass(frozen=True, slots=True)
class Units:
    """As ``Units`` of conv2d_ring.cuh: what a step convolves."""

    sizes: Sizes
    block: Block
    parts: int
    maps: int
    rows: int
    columns: int

    @property
    def groups(self) -> int:
        """Blocks of a row."""
        return ceil_div(self.columns, self.block.pixels)

    @property
    def items(self) -> int:
        """Threads' shares: so many share the channels of a block."""
        return self.parts * (self.maps // self.block.maps) * self.rows * self.groups

    @property
    def segment(self) -> int:
        """Cells below a block, in one row."""
        return (self.block.pixels - 1) * self.sizes.stride.w + self.sizes.kernel.w

    @property
    def cells_below(self) -> int:
        """Cells of a row of the ring."""
        step = self.block.pixels * self.sizes.stride.w
        return (self.groups - 1) * step + round_up(self.segment, 4)

    @property
    def filters(self) -> int:
        """Floats of the filters."""
        return self.sizes.channels * self.sizes.taps * row_stride(self.maps)

    @property
    def source(self) -> SourceRows:
        """The source rows below, of all channels."""
        return SourceRows(self.sizes, self.sizes.channels, self.rows, self.cells_below)

    @property
    def issues(self) -> float:
        """What convolving a step's units costs a block."""
        s, block = self.sizes, self.block
        line = (
            s.kernel.w * (block.maps * block.pixels + read(block.maps, block.maps, is_same=True))
            + read(self.segment, block.pixels * s.stride.w, is_same=False)
            + LOOP_ISSUES
        )
        lines = ceil_div(s.channels, self.parts) * s.kernel.h
        joined = joining(self.parts, block.maps * block.pixels)
        return ceil_div(self.items, 32) * (lines * line + joined)


@dataclass(frozen=True)
class ForwardStrip:
    """What a block of the forward kernel walks down: ``columns`` pooled columns, ``rows`` pooled rows a step."""

    units: Units
    rows: int
    columns: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return whole_warps(self.units.items)

    @property
    def _lag(self) -> int:
        """Pooled rows that wait for later units."""
        s = self.units.sizes
        return ceil_div(s.size.h, s.step.h) - 1

    @cached_property
    def shared(self) -> int:
        """Floats of shared memory."""
        u = self.units
        slots = u.rows + self._lag * u.sizes.step.h
        units = u.maps * slots * row_stride(u.groups * u.block.pixels)
        return u.filters + units + u.source.floats

    @cached_property
    def walk(self) -> Walk:
        """Down the pooled rows."""
        s, u = self.units.sizes, self.units
        windows = u.maps * self.rows * self.columns
        pooled = windows * (WINDOW_ISSUES + CELL_ISSUES * s.size.h * s.size.w)
        stored = 2 * u.maps * u.rows * u.columns
        lead = u.issues + u.source.step_issues + stored / 32 + 2 * STEP_ISSUES
        return Walk(
            strips=ceil_div(s.pooled.w, self.columns) * ceil_div(s.maps, u.maps),
            extent=s.pooled.h,
            rows=self.rows,
            lag=self._lag,
            start=LOAD_ISSUES * u.filters / 32 + u.source.start_issues + 2 * WAIT_ISSUES,
            lead=lead,
            step=lead + pooled / 32,
            threads=self.threads,
            shared=self.shared,
        )

    def convolved(self, n: int) -> int:
        """Cells of one map and image that are convolved, those that bands or strips share each time."""
        s, band, bands = self.units.sizes, self.walk.band(n), self.walk.bands(n)
        rows = (band - 1) * s.step.h + s.size.h
        strips = ceil_div(s.pooled.w, self.columns)
        across = spread(s.out.w, self.columns * s.step.w, self.units.columns, strips)
        return spread(s.out.h, band * s.step.h, rows, bands) * across

    def price(self) -> float:
        """What forward costs an image, over all of ``Sizes.batches``."""
        return self.walk.price(self.units.sizes.batches)

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the strip."""
        return {
            "FORWARD_MAPS": self.units.maps, "FORWARD_ROWS": self.rows, "FORWARD_COLUMNS": self.columns,
            "FORWARD_MAP_BLOCK": self.units.block.maps, "FORWARD_PIXEL_BLOCK": self.units.block.pixels,
            "FORWARD_PARTS": self.units.parts, "FORWARD_SHARED": self.shared,
        }  # fmt: skip


def forward_strips(s: Sizes, least: int) -> Iterator[ForwardStrip]:
    """Every strip that fits and gives a block more than ``least`` items."""
    for *each, parts in product((8, 4, 2, 1), (4, 2, 1), PARTS):
        block = Block(*each)
        if block.maps >= 2 * s.maps or block.pixels >= 2 * s.out.w:
            continue
        for maps, columns, rows in product(
            extents(s.maps, block.maps, least), extents(s.pooled.w, 1, least), step_rows(s.pooled.h)
        ):
            units_of = rows * s.step.h, (columns - 1) * s.step.w + s.size.w
            units = Units(s, block, parts, maps, *units_of)
            strip = ForwardStrip(units, rows, columns)
            if not is_fair(units.items, parts, s.channels, least):
                continue
            if strip.shared <= MAX_SHARED:
                yield strip


@cache
def choose_forward(sizes: Sizes) -> ForwardStrip:
    """The cheapest strip of the forward kernel.

    Raises:
        DeviceError: filters and rings of the narrowest strip do not fit a block.
    """
    found = cheapest(partial(forward_strips, sizes), ForwardStrip.price)
    if found is None:
        raise too_large(sizes)
    return found
