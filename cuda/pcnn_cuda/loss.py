"""What the losses share on the host: forward runs one thread an image, backward one thread a score."""

from __future__ import annotations

from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class Loss(Op):
    """The last stage: scores and labels in, one number an image out."""

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, K), labels (N) -> losses (N), predictions (N)."""
        assert t.labels is not None
        assert t.predictions is not None
        return [
            self.kernels[f"{self.stem}_forward"].bind(
                linear(n), x=t.x, label=t.labels, loss=t.y, prediction=t.predictions, **t.saved,
                N=n, K=self.layer.x_shape[0],
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_x (N, K), already divided by N."""
        assert t.labels is not None
        assert t.grad_x is not None
        classes = self.layer.x_shape[0]
        scores = {"x": t.x} if self.backward_reads_x else {}
        return [
            self.kernels[f"{self.stem}_backward"].bind(
                linear(n * classes), label=t.labels, grad_x=t.grad_x, **scores, **t.saved,
                N=n, K=classes,
            )
        ]  # fmt: skip
