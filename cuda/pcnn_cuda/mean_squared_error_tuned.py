"""The loss ``mean_squared_error`` in one launch: host code of ``mean_squared_error_tuned.cu``."""

from __future__ import annotations

from pcnn_cuda.loss_tuned import LossTuned


class MeanSquaredErrorTuned(LossTuned):
    """Device twin of ``pcnn_baseline.mean_squared_error``."""

    stem = "mean_squared_error_tuned"
