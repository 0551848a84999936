"""Which tile a block of the forward kernel of ``conv2d_act_pool.cu`` owns, and how tiles are priced.

Every tile that fits is priced, and the cheapest taken. ``conv2d_act_pool_backward_tiles`` does the same for backward.
The classes repeat the arithmetic of the structs in the ``.cuh`` files that size shared memory and count items; the
kernels assert at compile time that both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil
from typing import NamedTuple, TypeVar

from pcnn_bench.errors import DeviceError

FLOAT_BYTES = 4
MAX_THREADS = 256
"""Of a block: two of them, with 128 registers a thread, fill a multiprocessor."""
MAX_SHARED = 96 * 1024 // FLOAT_BYTES
"""Floats of shared memory of a block, so that two of them fit a multiprocessor of compute capability 9.0."""
CHUNK_FLOATS = 40 * 1024 // FLOAT_BYTES
"""Inputs and filters that a block loads at once: more would not make the loop over chunks cheaper."""
BATCHES = (64, 256)
"""What tiles are chosen for: small enough that idle multiprocessors count, and large enough that they do not. From the
last one on, a batch counts as large, and only that matters."""
MULTIPROCESSORS = 132
"""Of the card that tiles are chosen for, an H200; others get good tiles too."""

# What a price counts: warp instructions, of which a multiprocessor issues four a cycle. Rough, and only compared.
LOAD_ISSUES = 14
"""A value from global into shared memory: index arithmetic, guards, load and store."""
SHARED_ISSUES = 2
"""A cycle of shared memory: four, of which arithmetic hides about a half."""
LOOP_ISSUES = 6
"""A turn of an inner loop."""
WAIT_ISSUES = 1500
"""Waiting for what is loaded at once, as far as other blocks do not hide it."""
START_ISSUES = 4000
"""A block's start and its waits, during which few warps issue."""
HIDING_WARPS = 12
"""Warps that keep a multiprocessor busy."""

Tile = TypeVar("Tile")


class Pair(NamedTuple):
    """Rows and columns."""

    h: int
    w: int


class Block(NamedTuple):
    """What a thread computes of a convolution: so many maps x neighbouring pixels."""

    maps: int
    pixels: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """A convolution block: C x H x W in, K maps of P x Q after the convolution, U x V after pooling."""

    channels: int
    maps: int
    image: Pair
    out: Pair
    pooled: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    size: Pair
    step: Pair
    recomputes: bool
    """Whether backward convolves again."""
    batches: tuple[int, ...] = BATCHES
    """What to choose tiles for."""

    @property
    def taps(self) -> int:
        """R * S."""
        return self.kernel.h * self.kernel.w


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(value: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return ceil_div(value, unit) * unit


def row_stride(columns: int) -> int:
    """As ``row_stride`` of conv2d_act_pool.cuh."""
    fours = ceil_div(columns, 4)
    return 4 * (fours if fours % 2 else fours + 1)


def even_part(count: int, most: int) -> int:
    """The size of the parts when ``count`` is cut into as few equal parts of at most ``most`` as will do."""
    return ceil_div(count, ceil_div(count, max(1, min(most, count))))


def cuts(count: int, unit: int = 1) -> list[int]:
    """Sizes of some equal parts of ``count``, as multiples of ``unit``."""
    parts = {1, 2, 3, 4, 6, *(1 << power for power in range(3, count.bit_length() + 1))}
    return sorted({round_up(ceil_div(count, each), unit) for each in parts}, reverse=True)


def read(count: int, alignment: int, *, is_same: bool) -> int:
    """Issues of a thread's reads of ``count`` shared floats at multiples of ``alignment``.

    ``is_same``: all lanes read the same ones, a cycle a load; else each float takes a cycle.
    """
    loads = ceil_div(count, 4 if alignment % 4 == 0 else 2 if alignment % 2 == 0 else 1)
    return loads + SHARED_ISSUES * (loads if is_same else count)


def makespan(block_count: int, threads: int, shared: int, issues: float) -> float:
    """Issues until ``block_count`` blocks of ``issues`` each are done: a multiprocessor's share, then the last block.

    Too few warps on a multiprocessor cannot hide each other's waits.
    """
    share = block_count / MULTIPROCESSORS
    fitting = 227 * 1024 // (FLOAT_BYTES * shared + 1024)  # 1 KiB more is the system's
    resident = min(ceil(share), fitting, 2 * MAX_THREADS // threads)
    busy = min(1.0, resident * threads / 32 / HIDING_WARPS)
    return share * issues / busy + issues + START_ISSUES


def cheapest(tiles: Callable[[int], Iterable[Tile]], price: Callable[[Tile], float]) -> Tile | None:
    """The cheapest of the tiles that have items for half of ``MAX_THREADS`` at least, or, where none has, of all."""
    for least in (MAX_THREADS // 2, 0):
        found = min(tiles(least), key=price, default=None)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """As ``ConvolutionTile`` of conv2d_act_pool_forward.cuh."""

    sizes: Sizes
    block: Block
    maps: int
    rows: int
    columns: int

    @property
    def groups(self) -> int:
        """Blocks of a row."""
        return ceil_div(self.columns, self.block.pixels)

    @property
    def items(self) -> int:
        """Threads' shares."""
        return self.maps // self.block.maps * self.rows * self.groups

    @property
    def segment(self) -> int:
        """Input cells below a block, in one row."""
        return (self.block.pixels - 1) * self.sizes.stride.w + self.sizes.kernel.w

    @property
    def channel_floats(self) -> int:
        """Inputs of a channel."""
        s = self.sizes
        columns = (self.groups - 1) * self.block.pixels * s.stride.w + round_up(self.segment, 4)
        return ((self.rows - 1) * s.stride.h + s.kernel.h) * row_stride(columns)

    @property
    def chunk(self) -> int:
        """Channels at a time."""
        return even_part(self.sizes.channels, CHUNK_FLOATS // self._floats)

    @property
    def scratch(self) -> int:
        """Inputs and filters of a chunk."""
        return self.chunk * self._floats

    @property
    def _floats(self) -> int:
        return self.channel_floats + self.sizes.taps * row_stride(self.maps)

    def issues(self, threads: int) -> float:
        """What it costs a block."""
        s, block = self.sizes, self.block
        line = (
            s.kernel.w * (block.maps * block.pixels + read(block.maps, block.maps, is_same=True))
            + read(self.segment, block.pixels * s.stride.w, is_same=False)
            + LOOP_ISSUES
        )
        loaded = LOAD_ISSUES * (self.channel_floats + s.taps * self.maps) / 32
        waits = WAIT_ISSUES * ceil_div(s.channels, self.chunk)
        passes = ceil_div(self.items, threads)
        return ceil_div(self.items, 32) * s.channels * s.kernel.h * line + passes * (
            s.channels * loaded + waits
        )


@dataclass(frozen=True, slots=True)
class ForwardTile:
    """What a block of the forward kernel owns: ``rows`` x ``columns`` pooled cells."""

    convolution: ConvolutionTile
    rows: int
    columns: int

    @property
    def threads(self) -> int:
        """One for each item, in whole warps."""
        return round_up(self.convolution.items, 32)

    @property
    def shared(self) -> int:
        """Floats of shared memory."""
        c = self.convolution
        return max(c.scratch, c.maps * c.rows * (c.columns | 1))

    @property
    def blocks(self) -> int:
        """Blocks of one image."""
        s = self.convolution.sizes
        tiles = ceil_div(s.pooled.h, self.rows) * ceil_div(s.pooled.w, self.columns)
        return tiles * ceil_div(s.maps, self.convolution.maps)

    @property
    def convolved(self) -> int:
        """Cells of one map that are convolved, those of overlapping windows of neighbouring tiles each time."""
        s = self.convolution.sizes
        rows = spread(
            s.out.h, self.rows * s.step.h, self.convolution.rows, ceil_div(s.pooled.h, self.rows)
        )
        return rows * spread(
            s.out.w,
            self.columns * s.step.w,
            self.convolution.columns,
            ceil_div(s.pooled.w, self.columns),
        )

    def price(self) -> float:
        """What forward costs an image, over all of ``Sizes.batches``."""
        issues = self.convolution.issues(self.threads)
        return sum(
            makespan(n * self.blocks, self.threads, self.shared, issues) / n
            for n in self.convolution.sizes.batches
        )

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants of the tile."""
        c = self.convolution
        return {
            "FORWARD_MAPS": c.maps, "FORWARD_ROWS": self.rows, "FORWARD_COLUMNS": self.columns,
            "FORWARD_CHUNK": c.chunk, "FORWARD_MAP_BLOCK": c.block.maps,
            "FORWARD_PIXEL_BLOCK": c.block.pixels, "FORWARD_SHARED": self.shared,
        }  # fmt: skip


def spread(count: int, step: int, extent: int, tiles: int) -> int:
    """Cells of an axis of ``count`` in all tiles together, which are ``step`` apart and ``extent`` long."""
    return sum(max(0, min(extent, count - tile * step)) for tile in range(tiles))


def forward_tiles(s: Sizes, least: int) -> Iterator[ForwardTile]:
    """Every tile that fits and gives a block more than ``least`` items."""
    for block in (Block(*pair) for pair in product((8, 4, 2, 1), (4, 2, 1))):
        if block.maps >= 2 * s.maps or block.pixels >= 2 * s.out.w:
            continue
        for maps, rows, columns in product(
            cuts(s.maps, block.maps), cuts(s.pooled.h), cuts(s.pooled.w)
        ):
            extents = (rows - 1) * s.step.h + s.size.h, (columns - 1) * s.step.w + s.size.w
            tile = ForwardTile(ConvolutionTile(s, block, maps, *extents), rows, columns)
            if least < tile.convolution.items <= MAX_THREADS and tile.shared <= MAX_SHARED:
                yield tile


@cache
def choose_forward(sizes: Sizes) -> ForwardTile:
    """The cheapest tile of the forward kernel.

    Raises:
        DeviceError: a single pooled cell's window does not fit a block.
    """
    found = cheapest(lambda least: forward_tiles(sizes, least), ForwardTile.price)
    if found is None:
        raise DeviceError(
            f"a pooling window of {sizes.size.h} x {sizes.size.w} over a convolution of {sizes.kernel.h} x "
            f"{sizes.kernel.w} is too large for one block; choose rung naive for these layers"
        )
    return found
