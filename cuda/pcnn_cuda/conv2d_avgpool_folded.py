"""A convolution and the average pooling after it as one convolution: host code of ``conv2d_avgpool_folded.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from pcnn_bench.layers import SPECS
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.network import Layer, Network
from pcnn_cuda.conv2d_act_pool import ACTIVATIONS, Conv2dActPool
from pcnn_cuda.conv2d_act_pool_tiles import Pair
from pcnn_cuda.op import Direction, PartialSums, Tensors

RUNS = (
    *(("conv2d", "avgpool2d", activation) for activation in ACTIVATIONS[1:]),
    ("conv2d", "avgpool2d"),
)
"""The kinds of consecutive layers that the op covers, longer runs first."""


class Conv2dAvgPoolFolded(Conv2dActPool):
    """conv2d and avgpool2d as one strided convolution with a wider filter, then an activation, if there is one.

    Filters are folded as they are loaded and their gradient is unfolded as its splits are joined, so neither takes a
    launch, and no wide filter is stored.
    """

    stem = "conv2d_avgpool_folded"
    sum_kernel = ""

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        super().__init__(layers, direction, batch_size)
        s = self.sizes
        self.fold, self.fold_step = s.size, s.stride
        self.sizes = replace(
            s,
            kernel=Pair(
                s.kernel.h + (s.size.h - 1) * s.stride.h, s.kernel.w + (s.size.w - 1) * s.stride.w
            ),
            stride=Pair(s.stride.h * s.step.h, s.stride.w * s.step.w),
            out=s.pooled,
            size=Pair(1, 1),
            step=Pair(1, 1),
        )

    def partial_sums(self, n: int, t: Tensors) -> list[PartialSums]:
        """None: what was folded is unfolded as it is added up."""
        return []

    def partial_count(self, n: int) -> int:
        """None, likewise."""
        return 0

    @classmethod
    def fits(cls, layers: Sequence[Layer]) -> bool:
        """Whether folding saves products, and the wide filter's window is small enough for a block."""
        op = cls(layers)
        assert isinstance(op.layers[0].spec, Conv2dSpec)
        unfolded = prod(op.layers[0].spec.kernel) * prod(op.layers[0].y_shape[1:])
        return op.sizes.taps * prod(op.sizes.out) < unfolded and super().fits(layers)


def __getattr__(name: str) -> tuple[dict[str, int], ...]:
    """``EXAMPLE_CONSTANTS``, what ``conv2d_avgpool_folded.cu`` is test-compiled with."""
    if name != "EXAMPLE_CONSTANTS":
        raise AttributeError(name)
    arguments = (
        {"kind": "conv2d", "out_channels": 16, "kernel": 5},
        {"kind": "avgpool2d", "size": 2},
        {"kind": "tanh"},
    )
    specs = [SPECS[str(each["kind"])].model_validate(each) for each in arguments]
    layers = Network((6, 12, 12), specs, None).layers
    return (Conv2dAvgPoolFolded(layers, "push").constants(),)
