"""Average pooling: host code of ``avgpool2d.cu``."""

from __future__ import annotations

from pcnn_cuda.pooling import EXAMPLE_CONSTANTS, Pooling

__all__ = ["EXAMPLE_CONSTANTS", "AvgPool2d"]


class AvgPool2d(Pooling):
    """Device twin of ``pcnn_baseline.avgpool2d``."""

    stem = "avgpool2d"
