"""The relu activation."""

from __future__ import annotations

from typing import Literal

from pcnn_bench.layers.base import ActivationSpec


class ReluSpec(ActivationSpec):
    """y = max(x, 0); dy/dx = 1 where y > 0, else 0 (also at x = 0)."""

    kind: Literal["relu"] = "relu"
