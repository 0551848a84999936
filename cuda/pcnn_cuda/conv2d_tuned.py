"""Convolution with tiles in shared memory and registers: host code of ``conv2d_tuned.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import cast

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.layers import Shape
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.network import Layer, Network
from pcnn_cuda.conv2d import Conv2d
from pcnn_cuda.conv2d_tiles import (
    MAX_EDGE,
    Geometry,
    Tile,
    choose_tile,
    choose_weight_tile,
)
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import WARP_THREADS, Launch
from pcnn_cuda.op import Direction, PartialSums, Tensors

WANTED_BLOCKS = 528
"""Of the weight gradient: four for each multiprocessor of an H200; smaller GPUs take them in turns."""
SUM_GROUPS = 16
"""Threads that share a weight's slices: 528 slices are then 33 loads each."""


class Conv2dTuned(Conv2d):
    """Device twin of ``pcnn_baseline.conv2d``; a kernel or stride beyond ``MAX_EDGE`` is left to ``conv2d.cu``."""

    stem = "conv2d_tuned"
    sum_kernel = "conv2d_tuned_backward_sum"

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        super().__init__(layers, direction, batch_size)
        spec = cast(Conv2dSpec, self.layer.spec)
        (c, h, w), (k, p, q) = self.layer.x_shape, self.layer.y_shape
        self.is_tiled = max(*spec.kernel, *spec.stride) <= MAX_EDGE
        self.geometry = Geometry(
            c, k, (p, q), spec.kernel, up=spec.stride, down=(1, 1), shift=spec.padding
        )
        mirrored = tuple(r - 1 - pad for r, pad in zip(spec.kernel, spec.padding, strict=True))
        self.transposed = Geometry(
            k, c, (h, w), spec.kernel, up=(1, 1), down=spec.stride, shift=(mirrored[0], mirrored[1])
        )
        if self.is_tiled:
            self._forward_tile = choose_tile(self.geometry)
            self._input_tile = choose_tile(self.transposed)
            self.weight_tile = choose_weight_tile(self.geometry)

    @property
    def source(self) -> str:
        """The ``.cu`` file that holds the op's kernels."""
        return f"{self.stem}.cu" if self.is_tiled else f"{Conv2d.stem}.cu"

    def constants(self) -> dict[str, int]:
        """The layer's sizes and the tiles chosen for them."""
        window = super().constants()
        if not self.is_tiled:
            return window
        del window["MAX_BLOCK_THREADS"]
        axes = ("CHANNELS", "HEIGHT", "WIDTH")
        return {
            **{f"IN_{axis}": size for axis, size in zip(axes, self.layer.x_shape, strict=True)},
            **{f"OUT_{axis}": size for axis, size in zip(axes, self.layer.y_shape, strict=True)},
            **window,
            **self._forward_tile.constants("FORWARD"),
            **self._input_tile.constants("INPUT"),
            **self.weight_tile.constants(),
            "SUM_GROUPS": SUM_GROUPS,
        }

    def workspace(self, batch_size: int) -> dict[str, tuple[Shape, str]]:
        """The sums of each slice of the batch."""
        if not self.is_tiled:
            return super().workspace(batch_size)
        return {"partial": ((self._most_slices(batch_size), self.layer.parameter_count), "float32")}

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, C, H, W) -> y (N, K, P, Q)."""
        if not self.is_tiled:
            return super().forward(n, t)
        launch = _launch(self._forward_tile, self.geometry, n)
        return [
            self.kernels["conv2d_tuned_forward"].bind(launch, x=t.x, y=t.y, **t.parameters, N=n)
        ]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K, P, Q) -> partial and, where needed, grad_x (N, C, H, W)."""
        if not self.is_tiled:
            return super().backward(n, t)
        assert t.grad_y is not None
        slice_size, slice_count = self.slices(n)
        threads = self.weight_tile.threads(self.geometry.kernel[0])
        tiles = self.weight_tile.tile_count(self.geometry)
        launches = [
            self.kernels["conv2d_tuned_backward_weight"].bind(
                Launch((slice_count, tiles, 1), (threads, 1, 1)),
                x=t.x, grad_y=t.grad_y, partial=t.workspace["partial"], N=n, slice_size=slice_size,
            )
        ]  # fmt: skip
        if t.grad_x is not None:
            launches.append(
                self.kernels["conv2d_tuned_backward_input"].bind(
                    _launch(self._input_tile, self.transposed, n),
                    grad_y=t.grad_y, weight=t.parameters["weight"], grad_x=t.grad_x, N=n,
                )
            )  # fmt: skip
        return launches

    def partial_sums(self, n: int, t: Tensors) -> list[PartialSums]:
        """The slices' gradients of all filters."""
        if not self.is_tiled:
            return super().partial_sums(n, t)
        assert t.gradient is not None
        return [PartialSums(t.workspace["partial"], self.slices(n)[1], t.gradient)]

    def partial_count(self, n: int) -> int:
        """slices * (K*C*R*S + K)."""
        return self.slices(n)[1] * self.layer.parameter_count if self.is_tiled else 0

    def add_up(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """partial -> grad_weight, grad_bias."""
        if not self.is_tiled:
            return super().add_up(n, t)
        return [
            self.kernels[self.sum_kernel].bind(
                Launch(
                    (ceil(self.layer.parameter_count / WARP_THREADS), 1, 1),
                    (WARP_THREADS * SUM_GROUPS, 1, 1),
                ),
                partial=t.workspace["partial"],
                grad_weight=t.gradients["weight"], grad_bias=t.gradients["bias"],
                slice_count=self.slices(n)[1],
            )
        ]  # fmt: skip

    def work(self, n: int) -> dict[StagePhase, Work]:
        """The layer's own, and the slices' sums written and read."""
        work = super().work(n)
        if self.is_tiled and "backward" in work:
            backward = work["backward"]
            moved = backward.byte_count + 2 * FLOAT_BYTES * self.partial_count(n)
            work["backward"] = replace(backward, byte_count=moved)
        return work

    def _most_slices(self, n: int) -> int:
        """No batch of at most n images is cut into more."""
        strips = n * self.weight_tile.strip_count(self.geometry)
        return max(1, min(strips, WANTED_BLOCKS // self.weight_tile.tile_count(self.geometry)))

    def slices(self, n: int) -> tuple[int, int]:
        """(strips in a slice, slices) that give about ``WANTED_BLOCKS``."""
        strips = n * self.weight_tile.strip_count(self.geometry)
        size = ceil(strips / self._most_slices(n))
        return size, ceil(strips / size)


def _launch(tile: Tile, geometry: Geometry, n: int) -> Launch:
    return Launch(tile.grid(geometry, n), (tile.threads, 1, 1))


def _example(x_shape: Shape, **arguments: object) -> dict[str, int]:
    spec = Conv2dSpec.model_validate(arguments)
    return Conv2dTuned(Network(x_shape, [spec], None).layers).constants()


EXAMPLE_CONSTANTS = (
    _example((6, 14, 14), out_channels=16, kernel=5),
    _example((32, 16, 16), out_channels=32, kernel=5, padding=2),
    _example((3, 7, 5), out_channels=4, kernel=[3, 2], stride=[2, 3], padding=[1, 0]),
    _example((64, 16, 16), out_channels=64, kernel=1),
    _example((3, 64, 64), out_channels=64, kernel=32, stride=32),
)
"""What ``conv2d_tuned.cu`` is test-compiled with: common windows, awkward ones, and the largest."""
