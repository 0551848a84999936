"""Max pooling: host code of ``maxpool2d.cu``."""

from __future__ import annotations

from pcnn_bench.layers import Shape
from pcnn_cuda.pooling import EXAMPLE_CONSTANTS, Pooling

__all__ = ["EXAMPLE_CONSTANTS", "MaxPool2d"]


class MaxPool2d(Pooling):
    """Device twin of ``pcnn_baseline.maxpool2d``; equal results, bit for bit, where windows do not overlap."""

    stem = "maxpool2d"

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """Where in its window each maximum lay."""
        return {"argmax": (self.layer.y_shape, "int32")}
