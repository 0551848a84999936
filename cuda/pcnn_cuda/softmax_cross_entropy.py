"""Softmax and cross-entropy: host code of ``softmax_cross_entropy.cu``."""

from __future__ import annotations

from pcnn_bench.layers import Shape
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class SoftmaxCrossEntropy(Op):
    """Device twin of ``pcnn_baseline.softmax_cross_entropy``."""

    stem = "softmax_cross_entropy"

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """The probabilities, from which backward subtracts the target."""
        return {"probability": (self.layer.x_shape, "float32")}

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, K), labels (N) -> losses (N), predictions (N)."""
        assert t.labels is not None
        assert t.predictions is not None
        return [
            self.kernels["softmax_cross_entropy_forward"].bind(
                linear(n), x=t.x, label=t.labels, loss=t.y, prediction=t.predictions, **t.saved,
                N=n, K=self.layer.x_shape[0],
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_x (N, K), already divided by N."""
        assert t.labels is not None
        assert t.grad_x is not None
        classes = self.layer.x_shape[0]
        return [
            self.kernels["softmax_cross_entropy_backward"].bind(
                linear(n * classes), label=t.labels, grad_x=t.grad_x, **t.saved, N=n, K=classes
            )
        ]
