"""A convolution with its activation and its pooling, in one kernel a pass: host code of ``conv2d_act_pool.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, Literal, NamedTuple

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.errors import DeviceError
from pcnn_bench.layers import SPECS, Shape
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_bench.network import Layer, Network
from pcnn_cuda.conv2d_act_pool_backward_tiles import BackwardTiles, choose_backward
from pcnn_cuda.conv2d_act_pool_tiles import (
    BATCHES,
    ForwardTile,
    Pair,
    Sizes,
    ceil_div,
    choose_forward,
)
from pcnn_cuda.device import BoundLaunch, DeviceArray
from pcnn_cuda.launch import WARP_THREADS, Launch
from pcnn_cuda.op import Direction, Op, PartialSums, Tensors

ACTIVATIONS = ("", "tanh", "relu", "sigmoid")
"""In the order of the enum in conv2d_act_pool.cuh."""
POOLINGS = ("maxpool2d", "avgpool2d")
RUNS = (
    *(("conv2d", *pair) for act in ACTIVATIONS[1:] for pool in POOLINGS for pair in ((act, pool), (pool, act))),
    *(("conv2d", kind) for kind in (*ACTIVATIONS[1:], *POOLINGS)),
)  # fmt: skip
"""The kinds of consecutive layers that the op covers, longer runs first."""
SUM_SLICES = 8
"""Threads that add up one gradient's splits: 396 splits are then 50 loads each."""


class Convolved(NamedTuple):
    """Cells of one map and image that are convolved: forward, and again for the gradients of weight and input."""

    forward: int
    for_weight: int
    for_input: int


class Conv2dActPool(Op):
    """conv2d, then an activation, a pooling, or both in either order.

    The pre-pool map stays in shared memory. For backward, a maximum leaves its position, the mean of ReLUs the signs;
    the mean of another activation leaves nothing, and backward convolves again for the derivatives.
    """

    stem = "conv2d_act_pool"
    sum_kernel = "conv2d_act_pool_backward_sum"
    keeps_slopes: ClassVar[bool] = False
    """Whether the mean of another activation leaves the derivative at each cell instead."""
    backward_reads_x = True
    backward_reads_y = True

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        super().__init__(layers, direction, batch_size)
        conv, *after = self.layers
        assert isinstance(conv.spec, Conv2dSpec)
        kinds = [layer.kind for layer in after]
        self._activation = next((kind for kind in kinds if kind in ACTIVATIONS), "")
        pool = next((layer.spec for layer in after if isinstance(layer.spec, PoolingSpec)), None)
        self._is_max = pool is not None and pool.kind == "maxpool2d"
        self.fold = self.fold_step = Pair(1, 1)
        # activations are monotone: before a maximum, one may as well come after it
        self._activates_cells = bool(self._activation) and kinds[-1] == "avgpool2d"
        self._keeps_signs = self._activates_cells and self._activation == "relu"
        self.sizes = Sizes(
            conv.x_shape[0], conv.y_shape[0], Pair(*conv.x_shape[1:]), Pair(*conv.y_shape[1:]),
            Pair(*after[-1].y_shape[1:]),
            Pair(*conv.spec.kernel), Pair(*conv.spec.stride), Pair(*conv.spec.padding),
            Pair(*(pool.size if pool else (1, 1))), Pair(*(pool.stride if pool else (1, 1))),
            self._activates_cells and not self._keeps_signs and not self.keeps_slopes,
            BATCHES if batch_size < BATCHES[-1] else BATCHES[-1:],
        )  # fmt: skip

    @classmethod
    def fits(cls, layers: Sequence[Layer]) -> bool:
        """Whether the layers' windows are small enough for the shared memory of a block."""
        op = cls(layers)
        try:
            op.constants()
        except DeviceError:
            return False
        return True

    @property
    def direction(self) -> Literal["", "push", "pull"]:
        """As wanted; there is none where no error goes down."""
        return self.wanted_direction if self.layers[0].needs_grad_x else ""

    @property
    def forward_tile(self) -> ForwardTile:
        """What a block of forward owns."""
        return choose_forward(self.sizes)

    @property
    def backward_tiles(self) -> BackwardTiles:
        """What the blocks of backward own."""
        return choose_backward(self.sizes, self.wanted_direction == "push")

    @property
    def threads(self) -> int:
        """Of every block: one for each item, whatever its task."""
        return max(self.forward_tile.threads, self.backward_tiles.threads)

    @property
    def passed_bytes(self) -> int:
        """What forward leaves of each window: the position of its maximum, or a bit or a float a cell."""
        cells = prod(self.sizes.size)
        if self._is_max:
            return ceil_div((cells - 1).bit_length(), 8)
        if self._keeps_signs:
            return ceil_div(cells, 8)
        return FLOAT_BYTES * cells if self._activates_cells and self.keeps_slopes else 0

    def constants(self) -> dict[str, int]:
        """The layers' sizes, all but N, and the tiles."""
        s = self.sizes
        pairs = {
            "IN": s.image, "OUT": s.out, "POOLED": s.pooled, "KERNEL": s.kernel, "STRIDE": s.stride,
            "PAD": s.padding, "SIZE": s.size, "STEP": s.step, "FOLD": self.fold,
            "FOLD_STEP": self.fold_step,
        }  # fmt: skip
        return {
            "CHANNELS": s.channels,
            "MAPS": s.maps,
            **{
                f"{name}_{axis}": extent
                for name, pair in pairs.items()
                for axis, extent in zip("HW", pair, strict=True)
            },
            "ACTIVATION": ACTIVATIONS.index(self._activation),
            "ACTIVATE_CELLS": int(self._activates_cells),
            "MAX_POOL": int(self._is_max),
            "PASSED_BYTES": self.passed_bytes,
            "THREADS": self.threads,
            "SUM_SLICES": SUM_SLICES,
            **self._tile_constants(),
        }

    def _tile_constants(self) -> dict[str, int]:
        """What the host chooses."""
        return {**self.forward_tile.constants(), **self.backward_tiles.constants()}

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """``passed`` (K, U, V, bytes): see the kernels."""
        count = self.passed_bytes
        return {"passed": ((*self.layers[-1].y_shape, count), "uint8")} if count else {}

    def workspace(self, batch_size: int) -> dict[str, tuple[Shape, str]]:
        """``partials`` (splits, K*C*R*S + K): the gradients of each split of the batch."""
        splits = self.backward_tiles.weight.splits(batch_size)
        return {"partials": ((splits, self._partial_size), "float32")}

    @property
    def _partial_size(self) -> int:
        """K*C*R*S + K."""
        s = self.sizes
        return s.maps * s.channels * s.taps + s.maps

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, C, H, W) -> y (N, K, U, V)."""
        tile = self.forward_tile
        return [
            self.kernels[f"{self.stem}_forward"].bind(
                self._launch(n * tile.blocks, tile.shared),
                x=t.x, **t.parameters, y=t.y, passed=self._passed(t),
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K, U, V) -> grad_weight, grad_bias and, where needed, grad_x (N, C, H, W)."""
        assert t.grad_y is not None
        tiles = self.backward_tiles
        partials, splits = t.workspace["partials"], self._splits(n, t)
        inputs = n * tiles.input.blocks if t.grad_x else 0
        blocks = inputs + splits * tiles.weight.groups
        return [
            self.kernels[f"{self.stem}_backward_{self.wanted_direction}"].bind(
                self._launch(blocks, tiles.shared),
                grad_y=t.grad_y, y=t.y, passed=self._passed(t), x=t.x, **t.parameters,
                grad_x=t.grad_x or partials,  # without blocks for it, nothing is written there
                partials=partials, N=n, INPUTS=inputs, SPLITS=splits,
            )
        ]  # fmt: skip

    def partial_sums(self, n: int, t: Tensors) -> list[PartialSums]:
        """The splits' gradients of all filters."""
        assert t.gradient is not None
        return [PartialSums(t.workspace["partials"], self._splits(n, t), t.gradient)]

    def partial_count(self, n: int) -> int:
        """splits * (K*C*R*S + K)."""
        return prod(self.workspace(n)["partials"][0])

    def add_up(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """partials -> grad_weight, grad_bias."""
        blocks = ceil_div(self.layers[0].parameter_count, WARP_THREADS)
        return [
            self.kernels[f"{self.stem}_backward_sum"].bind(
                Launch((blocks, 1, 1), (WARP_THREADS * SUM_SLICES, 1, 1)),
                partials=t.workspace["partials"], SPLITS=self._splits(n, t),
                grad_weight=t.gradients["weight"], grad_bias=t.gradients["bias"],
            )
        ]  # fmt: skip

    def _splits(self, n: int, t: Tensors) -> int:
        """Into how many partial sums n images go."""
        return self.backward_tiles.weight.splits(n)

    def _launch(self, blocks: int, shared: int) -> Launch:
        return Launch((blocks, 1, 1), (self.threads, 1, 1), FLOAT_BYTES * shared)

    def _passed(self, t: Tensors) -> DeviceArray:
        """The saved bytes; any array will do where there are none, since nothing is read or written."""
        return t.saved.get("passed", replace(t.y, dtype="uint8"))

    def _convolved(self, n: int) -> Convolved:
        tiles = self.backward_tiles
        return Convolved(
            self.forward_tile.convolved, tiles.weight.convolved_again, tiles.input.convolved_again
        )

    def work(self, n: int) -> dict[StagePhase, Work]:
        """FLOPs of every cell that is convolved, some more than once; bytes without the maps in between."""
        s, (conv, *after) = self.sizes, self.layers
        x, y = n * prod(conv.x_shape), n * prod(after[-1].y_shape)
        passed = y * self.passed_bytes
        parameters = conv.parameter_count
        each = 2 * n * s.maps * s.channels * s.taps  # of a cell of all maps
        kept = [layer for layer in after if self.fold == (1, 1) or layer.kind != "avgpool2d"]
        convolved = self._convolved(n)
        forward = each * convolved.forward
        forward += sum(layer.spec.forward_flops(layer.batch_x(n)) for layer in kept)
        cells, moved = prod(s.out) + convolved.for_weight, x + y + parameters
        moved += 2 * prod(self.workspace(n)["partials"][0])
        if self._activation and not self._activates_cells:
            moved += y  # for its derivative
        if conv.needs_grad_x or s.recomputes:
            moved += parameters
        if conv.needs_grad_x:
            cells += prod(s.out) + convolved.for_input
            moved += x
        backward = each * cells + n * s.maps * prod(s.out)
        backward += sum(layer.spec.backward_flops(layer.batch_x(n), True) for layer in kept)
        return {
            "forward": Work(forward, FLOAT_BYTES * (x + y + parameters) + passed),
            "backward": Work(backward, FLOAT_BYTES * moved + passed),
        }


class Conv2dActPoolKept(Conv2dActPool):
    """The same, for a card on which writing and reading a derivative takes less time than convolving again."""

    keeps_slopes = True


def __getattr__(name: str) -> tuple[dict[str, int], ...]:
    """``EXAMPLE_CONSTANTS``, what ``conv2d_act_pool.cu`` is test-compiled with; choosing tiles takes a second."""
    if name != "EXAMPLE_CONSTANTS":
        raise AttributeError(name)
    kept = _example(*_EXAMPLES[0], kind=Conv2dActPoolKept)
    return (*(_example(*each).constants() for each in _EXAMPLES), kept.constants())


_EXAMPLES: tuple[tuple[Shape, Direction, tuple[dict[str, object], ...]], ...] = (
    ((6, 14, 14), "push", ({"out_channels": 16, "kernel": 5}, {"kind": "tanh"}, {"kind": "avgpool2d", "size": 2})),
    ((32, 16, 16), "pull", (
        {"out_channels": 32, "kernel": 5, "padding": 2}, {"kind": "relu"}, {"kind": "avgpool2d", "size": 2},
    )),
    ((3, 64, 60), "push", (
        {"out_channels": 24, "kernel": 7, "stride": 2, "padding": 3},
        {"kind": "maxpool2d", "size": 3, "stride": 2}, {"kind": "sigmoid"},
    )),
    ((64, 28, 28), "pull", ({"out_channels": 96, "kernel": 1}, {"kind": "relu"})),
)  # fmt: skip


def _example(
    x_shape: Shape,
    direction: Direction,
    arguments: Sequence[dict[str, object]],
    kind: type[Conv2dActPool] = Conv2dActPool,
) -> Conv2dActPool:
    specs = [
        SPECS[str(each.get("kind", "conv2d"))].model_validate({"kind": "conv2d", **each})
        for each in arguments
    ]
    return kind(Network(x_shape, specs, None).layers, direction)
