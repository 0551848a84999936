"""Softmax and cross-entropy: host code of ``softmax_cross_entropy.cu``."""

from __future__ import annotations

from pcnn_bench.layers import Shape
from pcnn_cuda.loss import Loss


class SoftmaxCrossEntropy(Loss):
    """Device twin of ``pcnn_baseline.softmax_cross_entropy``."""

    stem = "softmax_cross_entropy"

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """The probabilities, from which backward subtracts the target."""
        return {"probability": (self.layer.x_shape, "float32")}
