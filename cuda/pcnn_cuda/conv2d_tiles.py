"""Tile sizes for ``conv2d_tuned.cu``, chosen from a layer's shape; arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import ceil

MAX_EDGE = 32
"""Largest kernel and stride: a thread holds a row of taps in registers, a block a stride of rows."""
PIXEL_THREADS = 32
"""Threads of a block that share a map: a warp, for which a weight is one broadcast."""
BLOCK_THREADS = 128
"""Wanted in a block; several such blocks a multiprocessor hide each other's loads."""
IMAGE_THREADS = 128
"""Wanted for an image, so that 64 images give each of an H200's 528 schedulers about half a warp at least."""
THREAD_OUTPUTS = 32
"""Most outputs a thread; with cells and weights about 80 registers, so that 5 blocks find room."""
THREAD_CELLS = 48
"""Most cells or sums a thread keeps in registers."""
TILE_FLOATS = 8192
"""Wanted in shared memory for a block: 32 KiB, of which a Hopper multiprocessor holds 7 and one with 100 KiB 3."""
MAX_FLOATS = 12288
"""48 KiB, what a kernel may declare."""
LOAD_COST = 4
"""Shared memory returns one cell a lane and clock to a multiprocessor that makes four multiplications meanwhile."""


def balanced(count: int, limit: int) -> int:
    """The part of ``count`` when it is cut into as few equal parts of at most ``limit`` as possible."""
    return ceil(count / ceil(count / max(1, limit)))


def vector_width(step: int) -> int:
    """Cells that one load may bring if addresses are multiples of ``step``."""
    return 4 if step % 4 == 0 else 2 if step % 2 == 0 else 1


def odd_pitch(length: int, vector: int) -> int:
    """``length`` rounded up to an odd number of vectors: then consecutive rows begin in different banks."""
    return vector * (ceil(length / vector) | 1)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution or its transpose: output o and tap t meet input (o * up + t - shift) / down where that divides.

    Pairs are (rows, columns).
    """

    in_channels: int
    out_channels: int
    out_shape: tuple[int, int]
    kernel: tuple[int, int]
    up: tuple[int, int]
    down: tuple[int, int]
    shift: tuple[int, int]

    def extent(self, axis: int, outputs: int) -> int:
        """Input cells that ``outputs`` outputs reach, the first at a multiple of ``down``."""
        last = (outputs - 1) * self.up[axis] + self.kernel[axis] - 1 - self.shift[axis]
        first = ceil(-self.shift[axis] / self.down[axis])
        return last // self.down[axis] - first + 1


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block of ``conv2d_tile.cuh`` computes; its constants by the same names."""

    thread_maps: int
    thread_columns: int
    map_groups: int
    column_groups: int
    rows: int
    images: int
    channels: int
    lines: int
    cells: int
    pitch: int
    filter_pitch: int

    @property
    def threads(self) -> int:
        """In a block."""
        return self.map_groups * self.column_groups * self.rows * self.images

    def floats(self, taps: int) -> int:
        """Shared memory of a block."""
        return self.channels * (self.images * self.lines * self.pitch + taps * self.filter_pitch)

    def grid(self, g: Geometry, image_count: int) -> tuple[int, int, int]:
        """(tiles of pixels, tiles of maps, 1)."""
        p, q = g.out_shape
        row_tiles, column_tiles = (
            ceil(p / self.rows),
            ceil(q / (self.column_groups * self.thread_columns)),
        )
        map_tiles = ceil(g.out_channels / (self.map_groups * self.thread_maps))
        return ceil(image_count / self.images) * row_tiles * column_tiles, map_tiles, 1

    def constants(self, prefix: str) -> dict[str, int]:
        """``FORWARD_ROWS`` and the like."""
        return {f"{prefix}_{name.upper()}": value for name, value in asdict(self).items()}


def choose_tile(g: Geometry) -> Tile:
    """The tile with the fewest issue slots a multiplication, among those with enough threads for an image."""

    def key(shape: tuple[int, int]) -> tuple[int, float]:
        maps, columns = shape
        threads = ceil(g.out_channels / maps) * g.out_shape[0] * ceil(g.out_shape[1] / columns)
        return max(0, IMAGE_THREADS - threads), _cost(g, maps, columns)

    return _block_of(g, *min(_thread_shapes(g), key=key))


def _thread_shapes(g: Geometry) -> Iterator[tuple[int, int]]:
    """(maps, columns) that a thread may compute."""
    width, down = g.out_shape[1], g.down[1]
    # the width in equal parts of at most THREAD_OUTPUTS, since no thread takes more
    parts = {balanced(width, limit) for limit in range(1, min(width, THREAD_OUTPUTS) + 1)}
    columns = {ceil(part / down) * down for part in parts}
    smallest = min(columns)
    for count in sorted(columns):
        for maps in (1, 2, 4, 8):
            fits = maps * count <= THREAD_OUTPUTS and g.extent(1, count) <= THREAD_CELLS
            if fits or (maps, count) == (1, smallest):
                yield maps, count


def _cost(g: Geometry, maps: int, columns: int) -> float:
    """Issue slots, or clocks of shared memory where they are more, for each multiplication that counts."""
    taps = g.kernel[1]
    products = taps * maps * columns / g.down[1]
    cells = g.extent(1, columns)
    is_whole = columns >= g.out_shape[1]
    loads = cells / (4 if is_whole else vector_width(columns * g.up[1] // g.down[1]))
    loads += taps * maps / vector_width(maps)
    useful = g.out_shape[1] / (ceil(g.out_shape[1] / columns) * columns)
    useful *= g.out_channels / (ceil(g.out_channels / maps) * maps)
    return max(products + loads, LOAD_COST * (cells + taps * maps)) / (products * useful)


def _block_of(g: Geometry, maps: int, columns: int) -> Tile:
    """Threads of that shape gathered to a block that fits shared memory."""
    (p, q), down = g.out_shape, g.down[0]
    map_groups = ceil(g.out_channels / maps)
    all_column_groups = ceil(q / columns)
    column_groups = balanced(all_column_groups, min(16, PIXEL_THREADS // down))
    rows = ceil(balanced(p, PIXEL_THREADS // column_groups) / down) * down
    images = 1
    if rows >= p and column_groups == all_column_groups:
        images = max(1, PIXEL_THREADS // (rows * column_groups))
    while True:
        groups = balanced(map_groups, BLOCK_THREADS // (rows * column_groups * images))
        tile = _with_extents(g, maps, columns, groups, column_groups, rows, images)
        if tile.floats(g.kernel[0] * g.kernel[1]) <= MAX_FLOATS:
            return tile
        if images > 1:
            images //= 2
        elif groups > 1:
            map_groups = groups // 2
        elif rows > down:
            rows = ceil(rows // 2 / down) * down
        elif column_groups > 1:
            column_groups //= 2
        else:
            maps //= 2  # with one map, the largest window leaves three quarters free


def _with_extents(
    g: Geometry,
    maps: int,
    columns: int,
    map_groups: int,
    column_groups: int,
    rows: int,
    images: int,
) -> Tile:
    """The tile's cells in shared memory, and as many channels at once as are wanted there."""
    step = columns * g.up[1] // g.down[1]
    vector = 4 if column_groups == 1 else vector_width(step)
    cells = ceil(g.extent(1, columns) / vector) * vector
    tile = Tile(
        maps, columns, map_groups, column_groups, rows, images,
        channels=1,
        lines=g.extent(0, rows),
        cells=cells,
        pitch=odd_pitch((column_groups - 1) * step + cells, vector),
        filter_pitch=odd_pitch(map_groups * maps, vector_width(maps)),
    )  # fmt: skip
    limit = TILE_FLOATS // tile.floats(g.kernel[0] * g.kernel[1])
    return replace(tile, channels=balanced(g.in_channels, limit))


@dataclass(frozen=True, slots=True)
class WeightTile:
    """What a block of ``conv2d_tuned_backward_weight`` sums; its constants by the same names."""

    thread_maps: int
    thread_channels: int
    thread_columns: int
    map_groups: int
    channel_groups: int
    column_groups: int
    pixel_groups: int
    rows: int
    lines: int
    cells: int
    pitch: int
    grad_pitch: int

    def threads(self, kernel_rows: int) -> int:
        """In a block."""
        return kernel_rows * self.channel_groups * self.map_groups * self.pixel_groups

    def tile_count(self, g: Geometry) -> int:
        """Blocks that together own every weight."""
        channels = self.channel_groups * self.thread_channels
        maps = self.map_groups * self.thread_maps
        return ceil(g.in_channels / channels) * ceil(g.out_channels / maps)

    def strip_count(self, g: Geometry) -> int:
        """Strips of an image."""
        p, q = g.out_shape
        return ceil(p / self.rows) * ceil(q / (self.column_groups * self.thread_columns))

    def floats(self, g: Geometry) -> tuple[int, int]:
        """Shared memory of a block: for a strip, and for its sums."""
        channels = self.channel_groups * self.thread_channels
        maps = self.map_groups * self.thread_maps
        strip = channels * self.lines * self.pitch + maps * self.rows * self.grad_pitch
        return strip, self.pixel_groups * maps * (channels * g.kernel[0] * g.kernel[1] + 1)

    def constants(self) -> dict[str, int]:
        """``WEIGHT_ROWS`` and the like."""
        return {f"WEIGHT_{name.upper()}": value for name, value in asdict(self).items()}


def choose_weight_tile(g: Geometry) -> WeightTile:
    """Sums in registers first, then as many rows of a strip as are wanted in shared memory.

    ``g`` is the forward pass.
    """
    (r, s), stride = g.kernel, g.up[1]
    maps = balanced(g.out_channels, min(8, THREAD_CELLS // s))
    channels = min(4, g.in_channels, max(1, THREAD_CELLS // (maps * s)))
    widest = max(1, (THREAD_CELLS // channels - s) // stride + 1)
    columns = _strip_columns(g.out_shape[1], min(16, widest))
    map_groups = balanced(ceil(g.out_channels / maps), 4)
    channel_groups = balanced(ceil(g.in_channels / channels), max(1, 160 // (r * map_groups)))
    column_groups = balanced(ceil(g.out_shape[1] / columns), max(1, 32 // columns))
    while True:
        tile = _strip_of(g, (maps, channels, columns), map_groups, channel_groups, column_groups)
        if max(tile.floats(g)) <= MAX_FLOATS:
            return tile
        if channel_groups > 1:
            channel_groups //= 2
        elif map_groups > 1:
            map_groups //= 2
        elif column_groups > 1:
            column_groups //= 2
        elif channels > 1:
            channels //= 2
        else:
            maps = max(1, maps // 2)


def _strip_columns(width: int, limit: int) -> int:
    """Columns for a thread at a time: the whole row if it may, else whole vectors, with the least left over."""
    if width <= limit or limit < 4:
        return min(width, limit)
    return min(
        (4, 8, 12, 16),
        key=lambda columns: (columns > limit, -(-width // columns) * columns, -columns),
    )


def _strip_of(
    g: Geometry,
    shape: tuple[int, int, int],
    map_groups: int,
    channel_groups: int,
    column_groups: int,
) -> WeightTile:
    """The tallest strip that is wanted in shared memory, at most half an image where one tile holds all weights."""
    maps, channels, columns = shape
    (r, _), stride = g.kernel, g.up
    owners = r * channel_groups * map_groups
    vector = 4 if column_groups == 1 else vector_width(columns * stride[1])
    grad_vector = 4 if column_groups == 1 else vector_width(columns)
    cells = ceil(g.extent(1, columns) / vector) * vector
    tile = WeightTile(
        maps, channels, columns, map_groups, channel_groups, column_groups,
        pixel_groups=1,
        rows=1,
        lines=r,
        cells=cells,
        pitch=odd_pitch((column_groups - 1) * columns * stride[1] + cells, vector),
        grad_pitch=odd_pitch(column_groups * columns, grad_vector),
    )  # fmt: skip
    height = g.out_shape[0]
    tallest = min(height if tile.tile_count(g) > 1 else ceil(height / 2), TILE_FLOATS)
    heights = [replace(tile, rows=rows, lines=g.extent(0, rows)) for rows in range(1, tallest + 1)]
    wanted = [each for each in heights if each.floats(g)[0] <= TILE_FLOATS] or heights[:1]
    tile = min(wanted, key=lambda each: (-(-height // each.rows) * each.rows, -each.rows))
    sums = tile.floats(g)[1]
    groups = min(BLOCK_THREADS // owners, tile.rows * column_groups, MAX_FLOATS // sums)
    return replace(tile, pixel_groups=max(1, groups))
