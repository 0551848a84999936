"""What average and max pooling share on the host: constants, sizes and launch shapes."""

from __future__ import annotations

from math import prod
from typing import cast

from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class Pooling(Op):
    """Forward runs one thread an output cell, backward one thread an input cell."""

    def constants(self) -> dict[str, int]:
        """The window: size and stride."""
        spec = cast(PoolingSpec, self.layer.spec)
        return {
            f"{name}_{axis}": extent
            for name, pair in {"SIZE": spec.size, "STRIDE": spec.stride}.items()
            for axis, extent in zip("HW", pair, strict=True)
        }

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, C, H, W) -> y (N, C, P, Q)."""
        return [
            self.kernels[f"{self.stem}_forward"].bind(
                linear(n * prod(self.layer.y_shape)), x=t.x, y=t.y, **t.saved, **self._sizes(n)
            )
        ]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, C, P, Q) -> grad_x (N, C, H, W)."""
        assert t.grad_x is not None
        assert t.grad_y is not None
        return [
            self.kernels[f"{self.stem}_backward"].bind(
                linear(n * prod(self.layer.x_shape)),
                grad_y=t.grad_y, grad_x=t.grad_x, **t.saved, **self._sizes(n),
            )
        ]  # fmt: skip

    def _sizes(self, n: int) -> dict[str, int]:
        """M = N*C, H, W, P, Q as the kernels name them."""
        (c, h, w), (_, p, q) = self.layer.x_shape, self.layer.y_shape
        return {"M": n * c, "H": h, "W": w, "P": p, "Q": q}


EXAMPLE_CONSTANTS = (
    dict(SIZE_H=2, SIZE_W=2, STRIDE_H=2, STRIDE_W=2),
    dict(SIZE_H=3, SIZE_W=2, STRIDE_H=2, STRIDE_W=3),
)
"""What the pooling sources are test-compiled with."""
