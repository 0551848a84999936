"""Fully connected layer, one thread an output: host code of ``dense.cu``."""

from __future__ import annotations

from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class Dense(Op):
    """Device twin of ``pcnn_baseline.dense``."""

    stem = "dense"
    backward_reads_x = True

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, F) -> y (N, K)."""
        features, units = self._sizes
        return [
            self.kernels["dense_forward"].bind(
                linear(n * units), x=t.x, y=t.y, **t.parameters, N=n, F=features, K=units
            )
        ]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K) -> grad_weight (K, F), grad_bias (K) and, where needed, grad_x (N, F)."""
        assert t.grad_y is not None
        features, units = self._sizes
        launches = [
            self.kernels["dense_backward_weight"].bind(
                linear(units * features),
                x=t.x, grad_y=t.grad_y, grad_weight=t.gradients["weight"], N=n, F=features, K=units,
            ),
            self.kernels["dense_backward_bias"].bind(
                linear(units), grad_y=t.grad_y, grad_bias=t.gradients["bias"], N=n, K=units
            ),
        ]  # fmt: skip
        if t.grad_x is not None:
            launches.append(
                self.kernels["dense_backward_input"].bind(
                    linear(n * features),
                    grad_y=t.grad_y, weight=t.parameters["weight"], grad_x=t.grad_x,
                    N=n, F=features, K=units,
                )
            )  # fmt: skip
        return launches

    @property
    def _sizes(self) -> tuple[int, int]:
        """(F, K)."""
        return self.layer.x_shape[0], self.layer.y_shape[0]
