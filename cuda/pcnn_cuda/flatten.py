"""Maps to vectors: no kernel, since contiguous memory already lies in the right order."""

from __future__ import annotations

from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.op import Op, Tensors


class Flatten(Op):
    """Device twin of ``pcnn_baseline.flatten``: a view."""

    stem = "flatten"
    is_view = True

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """Nothing to launch."""
        return []

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """Nothing to launch."""
        return []
