"""The sigmoid activation."""

from __future__ import annotations

from typing import Literal

from pcnn_bench.layers.base import ActivationSpec


class SigmoidSpec(ActivationSpec):
    """y = 1 / (1 + exp(-x)); dy/dx = y (1 - y)."""

    kind: Literal["sigmoid"] = "sigmoid"
