"""A convolution with its activation and its pooling, walking down the maps: host code of ``conv2d_ring.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pcnn_bench.layers import SPECS, Shape
from pcnn_bench.network import Layer, Network
from pcnn_cuda.conv2d_act_pool import Conv2dActPool, Convolved
from pcnn_cuda.conv2d_ring_backward_tiles import BackwardStrips, choose_backward, fit
from pcnn_cuda.conv2d_ring_tiles import ForwardStrip, choose_forward
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.op import Direction, Tensors


class Conv2dRing(Conv2dActPool):
    """conv2d, then an activation, a pooling, or both in either order, with rings of rows in shared memory.

    A block walks down a strip of a map, and a step brings only the rows that are new: source rows in forward, rows of
    errors in backward. Few images are cut into bands, so that there are blocks enough.
    """

    stem = "conv2d_ring"
    sum_kernel = "conv2d_ring_backward_sum"

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        super().__init__(layers, direction, batch_size)
        self.sizes = replace(self.sizes, batches=(batch_size,))

    @classmethod
    def fits(cls, layers: Sequence[Layer]) -> bool:
        """Whether filters and rings of all channels, or maps, fit a block, in a strip wide enough for its threads."""
        return fit(cls(layers).sizes, layers[0].needs_grad_x)

    @property
    def forward_strip(self) -> ForwardStrip:
        """What a block of forward walks down."""
        return choose_forward(self.sizes)

    @property
    def backward_strips(self) -> BackwardStrips:
        """What the blocks of backward walk down."""
        is_push = self.wanted_direction == "push"
        return choose_backward(self.sizes, is_push, self.layers[0].needs_grad_x)

    @property
    def threads(self) -> int:
        """Of every block."""
        return max(self.forward_strip.threads, self.backward_strips.threads)

    def _tile_constants(self) -> dict[str, int]:
        return {**self.forward_strip.constants(), **self.backward_strips.constants()}

    def workspace(self, batch_size: int) -> dict[str, tuple[Shape, str]]:
        """``partials`` (splits, K*C*R*S + K): the gradients of each split of the batch."""
        splits = self.backward_strips.weight.splits(batch_size)
        return {"partials": ((splits, self._partial_size), "float32")}

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, C, H, W) -> y (N, K, U, V)."""
        strip = self.forward_strip
        return [
            self.kernels["conv2d_ring_forward"].bind(
                self._launch(strip.walk.blocks(n), strip.shared),
                x=t.x, **t.parameters, y=t.y, passed=self._passed(t), BAND=strip.walk.band(n),
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K, U, V) -> grad_weight, grad_bias and, where needed, grad_x (N, C, H, W)."""
        assert t.grad_y is not None
        strips = self.backward_strips
        partials, splits = t.workspace["partials"], self._splits(n, t)
        inputs = strips.input.walk.blocks(n) if t.grad_x else 0
        return [
            self.kernels[f"conv2d_ring_backward_{self.wanted_direction}"].bind(
                self._launch(inputs + splits * strips.weight.groups, strips.shared),
                grad_y=t.grad_y, y=t.y, passed=self._passed(t), x=t.x, **t.parameters,
                grad_x=t.grad_x or partials,  # without blocks for it, nothing is written there
                partials=partials, N=n, INPUTS=inputs, SPLITS=splits,
                INPUT_BAND=strips.input.walk.band(n), WEIGHT_BAND=strips.weight.band(n),
            )
        ]  # fmt: skip

    def _splits(self, n: int, t: Tensors) -> int:
        """No more than there is room for: fewer images are cut into more bands."""
        return min(self.backward_strips.weight.splits(n), t.workspace["partials"].shape[0])

    def _convolved(self, n: int) -> Convolved:
        strips = self.backward_strips
        return Convolved(
            self.forward_strip.convolved(n),
            strips.weight.convolved_again,
            strips.input.convolved_again(n),
        )


def __getattr__(name: str) -> tuple[dict[str, int], ...]:
    """``EXAMPLE_CONSTANTS``, what ``conv2d_ring.cu`` is test-compiled with; choosing strips takes seconds."""
    if name != "EXAMPLE_CONSTANTS":
        raise AttributeError(name)
    found = []
    for x_shape, direction, arguments in _EXAMPLES:
        specs = [SPECS[str(each["kind"])].model_validate(each) for each in arguments]
        found.append(Conv2dRing(Network(x_shape, specs, None).layers, direction).constants())
    return tuple(found)


_EXAMPLES: tuple[tuple[Shape, Direction, tuple[dict[str, object], ...]], ...] = (
    ((6, 14, 14), "push", (
        {"kind": "conv2d", "out_channels": 16, "kernel": 5}, {"kind": "tanh"}, {"kind": "avgpool2d", "size": 2},
    )),
    ((32, 16, 16), "pull", (
        {"kind": "conv2d", "out_channels": 32, "kernel": 5, "padding": 2}, {"kind": "relu"},
        {"kind": "avgpool2d", "size": 2},
    )),
    ((3, 512, 512), "push", (
        {"kind": "conv2d", "out_channels": 24, "kernel": 7, "stride": 2, "padding": 3},
        {"kind": "maxpool2d", "size": 3, "stride": 2}, {"kind": "sigmoid"},
    )),
    ((16, 128, 128), "pull", ({"kind": "conv2d", "out_channels": 24, "kernel": 3}, {"kind": "relu"})),
)  # fmt: skip
