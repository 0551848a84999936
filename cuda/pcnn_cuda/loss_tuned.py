"""What the losses of the higher rungs share on the host: loss, prediction and gradient in one launch."""

from __future__ import annotations

from pcnn_bench.engine import StagePhase, Work
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import warps
from pcnn_cuda.op import Op, Tensors


class LossTuned(Op):
    """Forward computes the gradient too, so that backward has nothing left to launch."""

    forward_writes_grad_x = True

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, K), labels (N) -> losses (N) from place ``first`` on, predictions (N), grad_x (N, K)."""
        assert t.labels is not None
        assert t.first is not None
        assert t.history is not None
        assert t.predictions is not None
        assert t.grad_x is not None
        return [
            self.kernels[f"{self.stem}_step"].bind(
                warps(n), x=t.x, label=t.labels, first=t.first, loss=t.history,
                prediction=t.predictions, grad_x=t.grad_x, N=n, K=self.layer.x_shape[0],
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """Nothing: forward has done it."""
        return []

    def work(self, n: int) -> dict[StagePhase, Work]:
        """Both passes, as one; the probabilities are neither written nor read again."""
        spec, x = self.layer.spec, self.layer.batch_x(n)
        scores = 4 * n * self.layer.x_shape[0]
        flops = spec.forward_flops(x) + spec.backward_flops(x, True)
        return {"forward": Work(flops, 2 * scores + 3 * 4 * n)}
