"""Which tiles the blocks of the backward kernels of ``conv2d_act_pool.cu`` own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

from pcnn_bench.errors import DeviceError
from pcnn_cuda.conv2d_act_pool_tiles import (
    CHUNK_FLOATS,
    LOAD_ISSUES,
    LOOP_ISSUES,
    MAX_SHARED,
    MAX_THREADS,
    MULTIPROCESSORS,
    WAIT_ISSUES,
    Block,
    ConvolutionTile,
    Pair,
    Sizes,
    ceil_div,
    cheapest,
    cuts,
    even_part,
    makespan,
    read,
    round_up,
    row_stride,
    spread,
)

MAX_SUMS = 48
"""Sums that a thread keeps in registers."""
TARGET_BLOCKS = 3 * MULTIPROCESSORS
"""Blocks that share the filters' gradient: what registers let be on the card at once, since each mostly waits."""
ERROR_ISSUES = 30
"""Making an error from its windows."""
BLOCKS_AGAIN = (Block(4, 4), Block(2, 4), Block(4, 2), Block(2, 2), Block(1, 4), Block(1, 1))
"""What a thread may compute of a convolution that backward repeats: few sums, since it holds others."""


@dataclass(frozen=True, slots=True)
class InputTile:
    """What a block owns of the input's gradient; names as in conv2d_act_pool_input.cuh."""

    sizes: Sizes
    again: Block
    channel_block: int
    column_block: int
    unit_block: int
    channels: int
    rows: int
    columns: int

    @property
    def _first(self) -> Pair:
        s = self.sizes
        return Pair(
            (s.padding.h - s.kernel.h + s.stride.h) // s.stride.h,
            (s.padding.w - s.kernel.w + s.stride.w) // s.stride.w,
        )

    @property
    def units(self) -> Pair:
        """Rows and columns of units above, those beside the map too."""
        s, first = self.sizes, self._first
        return Pair(
            (self.rows - 1 + s.padding.h) // s.stride.h - first.h + 1,
            (self.columns - 1 + s.padding.w) // s.stride.w - first.w + 1,
        )

    @property
    def units_there(self) -> Pair:
        """Those on the map."""
        return Pair(min(self.units.h, self.sizes.out.h), min(self.units.w, self.sizes.out.w))

    @property
    def pull_groups(self) -> int:
        """Items of a row of cells."""
        return self.columns // self.column_block

    @property
    def pull_items(self) -> int:
        """Threads' shares."""
        return self.channels // self.channel_block * self.rows * self.pull_groups

    @property
    def pull_segment(self) -> int:
        """Units above an item, in one row."""
        s = self.sizes
        return (self.column_block - 1 + s.padding.w) // s.stride.w - self._first.w + 1

    @property
    def pull_stride(self) -> int:
        """Floats from row to row of errors."""
        step = self.column_block // self.sizes.stride.w
        return row_stride((self.pull_groups - 1) * step + round_up(self.pull_segment, 4))

    @property
    def push_groups(self) -> int:
        """Items of a row of units."""
        return ceil_div(self.units_there.w, self.unit_block)

    @property
    def push_items(self) -> int:
        """Threads' shares."""
        return self.channels // self.channel_block * self.units_there.h * self.push_groups

    @property
    def push_step(self) -> int:
        """Cells from item to item."""
        return self.unit_block * self.sizes.stride.w

    @property
    def push_phases(self) -> int:
        """Steps that an item's cells reach over."""
        s = self.sizes
        return ceil_div((self.unit_block - 1) * s.stride.w + s.kernel.w, self.push_step)

    @property
    def push_sums(self) -> int:
        """Floats of the cells that a block adds to."""
        columns = (self.push_groups - 1 + self.push_phases) * self.push_step
        return self.channels * self.rows * row_stride(columns)

    @property
    def chunk(self) -> int:
        """Maps at a time."""
        s = self.sizes
        unit = self.again.maps if s.recomputes else 1
        each = self.units.h * self.pull_stride + s.taps * row_stride(self.channels)
        return round_up(even_part(s.maps, CHUNK_FLOATS // each // unit * unit), unit)

    @property
    def convolved(self) -> ConvolutionTile:
        """What is convolved again for a chunk."""
        return ConvolutionTile(self.sizes, self.again, self.chunk, *self.units_there)

    @property
    def shared(self) -> int:
        """Floats of shared memory, enough for either direction."""
        filters = self.chunk * self.sizes.taps * row_stride(self.channels)
        scratch = max(filters, self.convolved.scratch if self.sizes.recomputes else 0)
        pull = self.units.h * self.pull_stride
        push = self.units_there.h * row_stride(self.push_groups * self.unit_block)
        return scratch + max(self.chunk * pull, self.chunk * push + self.push_sums)

    @property
    def threads(self) -> int:
        """One for each item of either direction, in whole warps."""
        return round_up(max(self.pull_items, self.push_items), 32)

    @property
    def groups(self) -> int:
        """Blocks that share a tile of the image."""
        return ceil_div(self.sizes.channels, self.channels)

    @property
    def blocks(self) -> int:
        """Blocks of one image."""
        h, w = self.sizes.image
        return ceil_div(h, self.rows) * ceil_div(w, self.columns) * self.groups

    @property
    def convolved_again(self) -> int:
        """Cells of one map that are convolved again for one image."""
        s = self.sizes
        if not s.recomputes:
            return 0
        rows = spread(
            s.out.h, self.rows // s.stride.h, self.units_there.h, ceil_div(s.image.h, self.rows)
        )
        columns = spread(
            s.out.w,
            self.columns // s.stride.w,
            self.units_there.w,
            ceil_div(s.image.w, self.columns),
        )
        return rows * columns * self.groups

    def price(self, is_push: bool) -> float:
        """What the input's gradient costs an image, over all of ``Sizes.batches``."""
        s = self.sizes
        if is_push:
            items, units, sums = self.push_items, self.units_there, float(self.unit_block)
            line = read(self.unit_block, self.unit_block, is_same=False)
            # adding to the cells in shared memory: a read, an addition and a write, once a chunk
            line += ceil_div(3 * self.channel_block * self.push_phases * self.push_step, self.chunk)
        else:
            items, units, sums = self.pull_items, self.units, self.column_block / s.stride.w
            line = read(self.pull_segment, self.column_block // s.stride.w, is_same=False)
        block = self.channel_block
        line += LOOP_ISSUES + s.kernel.w * read(block, block, is_same=True)
        lines = s.maps * s.kernel.h / (1 if is_push else s.stride.h)
        issues = (
            ceil_div(items, 32) * lines * (line + s.kernel.w * block * sums)
            + LOAD_ISSUES * s.maps * s.taps * self.channels / 32
            + ERROR_ISSUES * s.maps * units.h * units.w / 32
            + WAIT_ISSUES * ceil_div(s.maps, self.chunk)
        )
        if s.recomputes:
            issues += ceil_div(s.maps, self.chunk) * self.convolved.issues(self.threads)
        return sum(
            makespan(n * self.blocks, self.threads, self.shared, issues) / n for n in s.batches
        )

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the tile."""
        return {
            "INPUT_CHANNELS": self.channels, "INPUT_ROWS": self.rows, "INPUT_COLUMNS": self.columns,
            "INPUT_CHUNK": self.chunk, "CHANNEL_BLOCK": self.channel_block,
            "COLUMN_BLOCK": self.column_block, "UNIT_BLOCK": self.unit_block,
        }  # fmt: skip


def input_shares(s: Sizes, *, pushes: bool) -> Iterator[tuple[int, int, int]]:
    """What a thread may compute of the input's gradient: channels, columns when it pulls, units when it pushes."""
    for channel_block, units in product((8, 4, 2, 1), (4, 2, 1)):
        pushed = channel_block * round_up((units - 1) * s.stride.w + s.kernel.w, units * s.stride.w)
        is_smallest = channel_block == units == 1
        is_too_large = channel_block >= 2 * s.channels or units >= 2 * s.image.w
        if is_smallest or not (is_too_large or (pushes and pushed > MAX_SUMS)):
            yield channel_block, s.stride.w * max(1, units // s.stride.w), units


def input_tiles(s: Sizes, again: Block, least: int) -> Iterator[InputTile]:
    """Every tile that fits and gives a block more than ``least`` items."""
    for channel_block, column_block, units in input_shares(s, pushes=True):
        for extents in product(
            cuts(s.channels, channel_block),
            cuts(s.image.h, s.stride.h),
            cuts(s.image.w, column_block),
        ):
            tile = InputTile(s, again, channel_block, column_block, units, *extents)
            items = max(tile.pull_items, tile.push_items)
            if least < items <= MAX_THREADS and tile.shared <= MAX_SHARED:
                yield tile


@dataclass(frozen=True, slots=True)
class WeightTile:
    """What a block owns of the filters' gradient; names as in conv2d_act_pool_weight.cuh."""

    sizes: Sizes
    again: Block
    map_block: int
    channel_block: int
    row_groups: int
    maps: int
    channels: int
    rows: int
    columns: int

    @property
    def items(self) -> int:
        """Threads' shares."""
        filters = self.maps // self.map_block * (self.channels // self.channel_block)
        return filters * self.sizes.kernel.h * self.row_groups

    @property
    def threads(self) -> int:
        """One for each item, in whole warps."""
        return round_up(self.items, 32)

    @property
    def segment(self) -> int:
        """Cells below four units."""
        return 3 * self.sizes.stride.w + self.sizes.kernel.w

    @property
    def plane(self) -> int:
        """Floats of a channel of inputs."""
        s = self.sizes
        rows = (self.rows - 1) * s.stride.h + s.kernel.h
        stride = row_stride(
            (round_up(self.columns, 4) - 4) * s.stride.w + round_up(self.segment, 4)
        )
        return rows * stride + (s.kernel.h - rows) * stride % 32

    @property
    def convolved(self) -> ConvolutionTile:
        """What is convolved again for a tile."""
        return ConvolutionTile(self.sizes, self.again, self.maps, self.rows, self.columns)

    @property
    def shared(self) -> int:
        """Floats of shared memory."""
        errors = self.maps * self.rows * row_stride(self.columns)
        again = self.convolved.scratch if self.sizes.recomputes else 0
        sums = self.items * self.map_block * self.channel_block * self.sizes.kernel.w
        return max(round_up(self.maps, 4) + errors + max(self.channels * self.plane, again), sums)

    @property
    def channel_groups(self) -> int:
        """Blocks that share a tile of the batch and its maps."""
        return ceil_div(self.sizes.channels, self.channels)

    @property
    def groups(self) -> int:
        """Blocks that share a tile of the batch."""
        return ceil_div(self.sizes.maps, self.maps) * self.channel_groups

    @property
    def tiles(self) -> int:
        """Tiles of one image."""
        return ceil_div(self.sizes.out.h, self.rows) * ceil_div(self.sizes.out.w, self.columns)

    @property
    def convolved_again(self) -> int:
        """Cells of one map that are convolved again for one image."""
        s = self.sizes
        return s.out.h * s.out.w * self.channel_groups if s.recomputes else 0

    def splits(self, n: int) -> int:
        """How many partial sums n images make."""
        return min(n * self.tiles, max(1, TARGET_BLOCKS // self.groups))

    def price(self) -> float:
        """What the filters' gradient costs an image, over all of ``Sizes.batches``."""
        s = self.sizes
        four = (
            4 * self.map_block * self.channel_block * s.kernel.w
            + self.map_block * read(4, 4, is_same=True)
            + self.channel_block * read(self.segment, 4, is_same=False)
            + LOOP_ISSUES
        )
        fours = ceil_div(self.rows, self.row_groups) * ceil_div(self.columns, 4)
        tile = (
            ceil_div(self.items, 32) * fours * four
            + LOAD_ISSUES * self.channels * self.plane / 32
            + ERROR_ISSUES * self.maps * self.rows * self.columns / 32
            + WAIT_ISSUES
        )
        if s.recomputes:
            tile += self.convolved.issues(self.threads)
        price = 0.0
        for n in s.batches:
            splits = self.splits(n)
            joining = LOAD_ISSUES * splits * s.maps * s.channels * s.taps / 32 / MULTIPROCESSORS
            issues = ceil_div(n * self.tiles, splits) * tile
            blocks = self.groups * splits
            price += (makespan(blocks, self.threads, self.shared, issues) + joining) / n
        return price

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the tile."""
        return {
            "WEIGHT_MAPS": self.maps, "WEIGHT_CHANNELS": self.channels, "WEIGHT_ROWS": self.rows,
            "WEIGHT_COLUMNS": self.columns, "WEIGHT_MAP_BLOCK": self.map_block,
            "WEIGHT_CHANNEL_BLOCK": self.channel_block, "WEIGHT_ROW_GROUPS": self.row_groups,
        }  # fmt: skip


def weight_shares(s: Sizes, again: Block) -> Iterator[tuple[int, int, int]]:
    """What a thread may compute of the filters' gradient: maps, channels; and what a block's maps are a multiple of."""
    # sums stay in registers while errors are made, which may take the sums of a convolution beside them
    most = MAX_SUMS // 2 if s.recomputes else MAX_SUMS
    for map_block, channel_block in product((8, 4, 2, 1), (4, 2, 1)):
        is_smallest = map_block == channel_block == 1
        is_too_large = (
            map_block >= 2 * s.maps
            or channel_block >= 2 * s.channels
            or map_block * channel_block * s.kernel.w > most
        )
        if is_smallest or not is_too_large:
            yield (
                map_block,
                channel_block,
                max(map_block, again.maps) if s.recomputes else map_block,
            )


def weight_tiles(s: Sizes, again: Block, least: int) -> Iterator[WeightTile]:
    """Every tile that fits and gives a block more than ``least`` items."""
    for map_block, channel_block, unit in weight_shares(s, again):
        for maps, channels, rows, columns in product(
            cuts(s.maps, unit), cuts(s.channels, channel_block), cuts(s.out.h), cuts(s.out.w)
        ):
            filters = maps // map_block * (channels // channel_block) * s.kernel.h
            row_groups = max(1, min(rows, MAX_THREADS // filters))
            if not least < filters * row_groups <= MAX_THREADS:
                continue
            tile = WeightTile(
                s, again, map_block, channel_block, row_groups, maps, channels, rows, columns
            )
            if tile.shared <= MAX_SHARED:
                yield tile


@dataclass(frozen=True, slots=True)
class BackwardTiles:
    """Both tasks of a backward launch."""

    input: InputTile
    weight: WeightTile

    @property
    def threads(self) -> int:
        """Of a block that may have either task."""
        return max(self.input.threads, self.weight.threads)

    @property
    def shared(self) -> int:
        """Floats, likewise."""
        return max(self.input.shared, self.weight.shared)

    def price(self, is_push: bool) -> float:
        """What backward costs an image, over all of ``Sizes.batches``."""
        return self.input.price(is_push) + self.weight.price()

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the tiles."""
        return {
            **self.input.constants(), **self.weight.constants(), "BACKWARD_SHARED": self.shared,
            "ERROR_CHUNK": min(self.input.convolved.chunk, self.weight.convolved.chunk),
            "ERROR_MAP_BLOCK": self.input.again.maps, "ERROR_PIXEL_BLOCK": self.input.again.pixels,
        }  # fmt: skip


@cache
def choose_backward(sizes: Sizes, is_push: bool) -> BackwardTiles:
    """The cheapest tiles of the backward kernels.

    Raises:
        DeviceError: not even the smallest tile fits a block.
    """
    found: list[BackwardTiles] = []
    for again in BLOCKS_AGAIN if sizes.recomputes else BLOCKS_AGAIN[-1:]:
        below = cheapest(partial(input_tiles, sizes, again), lambda tile: tile.price(is_push))
        weight = cheapest(partial(weight_tiles, sizes, again), WeightTile.price)
        if below and weight:
            found.append(BackwardTiles(below, weight))
    if not found:
        raise DeviceError(
            f"a convolution of {sizes.kernel.h} x {sizes.kernel.w} over {sizes.channels} channels is too large for "
            "one block; choose rung naive for this layer"
        )
    return min(found, key=lambda tiles: tiles.price(is_push))
