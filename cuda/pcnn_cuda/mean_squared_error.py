"""Mean squared error: host code of ``mean_squared_error.cu``."""

from __future__ import annotations

from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class MeanSquaredError(Op):
    """Device twin of ``pcnn_baseline.mean_squared_error``."""

    stem = "mean_squared_error"
    backward_reads_x = True

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, K), labels (N) -> losses (N), predictions (N)."""
        assert t.labels is not None
        assert t.predictions is not None
        return [
            self.kernels["mean_squared_error_forward"].bind(
                linear(n), x=t.x, label=t.labels, loss=t.y, prediction=t.predictions,
                N=n, K=self.layer.x_shape[0],
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_x (N, K), already divided by N."""
        assert t.labels is not None
        assert t.grad_x is not None
        classes = self.layer.x_shape[0]
        return [
            self.kernels["mean_squared_error_backward"].bind(
                linear(n * classes), x=t.x, label=t.labels, grad_x=t.grad_x, N=n, K=classes
            )
        ]
