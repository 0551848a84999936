"""The loss ``softmax_cross_entropy`` in one launch: host code of ``softmax_cross_entropy_tuned.cu``."""

from __future__ import annotations

from pcnn_cuda.loss_tuned import LossTuned


class SoftmaxCrossEntropyTuned(LossTuned):
    """Device twin of ``pcnn_baseline.softmax_cross_entropy``."""

    stem = "softmax_cross_entropy_tuned"
