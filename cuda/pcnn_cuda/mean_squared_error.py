"""Mean squared error: host code of ``mean_squared_error.cu``."""

from __future__ import annotations

from pcnn_cuda.loss import Loss


class MeanSquaredError(Loss):
    """Device twin of ``pcnn_baseline.mean_squared_error``."""

    stem = "mean_squared_error"
    backward_reads_x = True
