"""Convolution, one thread an output: host code of ``conv2d.cu``."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import BLOCK_THREADS, linear, reduction
from pcnn_cuda.op import Op, Tensors


class Conv2d(Op):
    """Device twin of ``pcnn_baseline.conv2d``."""

    stem = "conv2d"
    backward_reads_x = True

    def constants(self) -> dict[str, int]:
        """The window: kernel, stride, padding; and the block that sums a weight gradient."""
        spec = cast(Conv2dSpec, self.layer.spec)
        window = {"KERNEL": spec.kernel, "STRIDE": spec.stride, "PAD": spec.padding}
        return {"MAX_BLOCK_THREADS": BLOCK_THREADS} | {
            f"{name}_{axis}": extent
            for name, pair in window.items()
            for axis, extent in zip("HW", pair, strict=True)
        }

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, C, H, W) -> y (N, K, P, Q)."""
        return [
            self.kernels["conv2d_forward"].bind(
                linear(n * prod(self.layer.y_shape)), x=t.x, y=t.y, **t.parameters, **self._sizes(n)
            )
        ]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K, P, Q) -> grad_weight, grad_bias and, where needed, grad_x (N, C, H, W)."""
        assert t.grad_y is not None
        sizes, weight, bias = self._sizes(n), t.gradients["weight"], t.gradients["bias"]
        map_size = sizes["P"] * sizes["Q"]
        launches = [
            self.kernels["conv2d_backward_weight"].bind(
                reduction(weight.size, n, map_size), x=t.x, grad_y=t.grad_y, grad_weight=weight, **sizes
            ),
            self.kernels["conv2d_backward_bias"].bind(
                reduction(bias.size, n, map_size), grad_y=t.grad_y, grad_bias=bias,
                **{name: sizes[name] for name in "NKPQ"},
            ),
        ]  # fmt: skip
        if t.grad_x is not None:
            launches.append(
                self.kernels["conv2d_backward_input"].bind(
                    linear(n * prod(self.layer.x_shape)),
                    grad_y=t.grad_y, weight=t.parameters["weight"], grad_x=t.grad_x, **sizes,
                )
            )  # fmt: skip
        return launches

    def work(self, n: int) -> dict[StagePhase, Work]:
        """As the spec counts, less the products with padding, which these kernels leave out."""
        spec, x = cast(Conv2dSpec, self.layer.spec), self.layer.batch_x(n)
        axes = zip(self.layer.x_shape[1:], spec.kernel, spec.stride, spec.padding, strict=True)
        on_map = prod(_taps(*axis) for axis in axes)
        product_flops = 2 * n * self.layer.x_shape[0] * spec.out_channels * on_map
        padding_flops = spec.forward_flops(x) - product_flops
        passes = {"forward": 1, "backward": 1 + self.layer.needs_grad_x, "update": 0}
        return {
            phase: replace(work, flop_count=work.flop_count - passes[phase] * padding_flops)
            for phase, work in super().work(n).items()
        }

    def _sizes(self, n: int) -> dict[str, int]:
        """N, C, H, W, K, P, Q as the kernels name them."""
        return dict(zip("NCHWKPQ", (n, *self.layer.x_shape, *self.layer.y_shape), strict=True))


def _taps(extent: int, kernel: int, stride: int, padding: int) -> int:
    """Along one axis: how often some tap of some output meets a cell of the map."""
    first_taps = range(-padding, extent + padding - kernel + 1, stride)
    return sum(max(0, min(first + kernel, extent) - max(first, 0)) for first in first_taps)


EXAMPLE_CONSTANTS = (
    dict(
        MAX_BLOCK_THREADS=BLOCK_THREADS,
        KERNEL_H=5,
        KERNEL_W=5,
        STRIDE_H=1,
        STRIDE_W=1,
        PAD_H=2,
        PAD_W=2,
    ),
    dict(
        MAX_BLOCK_THREADS=BLOCK_THREADS,
        KERNEL_H=3,
        KERNEL_W=2,
        STRIDE_H=2,
        STRIDE_W=3,
        PAD_H=1,
        PAD_W=0,
    ),
)
"""What ``conv2d.cu`` is test-compiled with."""
