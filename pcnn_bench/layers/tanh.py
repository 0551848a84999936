"""The tanh activation."""

from __future__ import annotations

from typing import Literal

from pcnn_bench.layers.base import ActivationSpec


class TanhSpec(ActivationSpec):
    """y = tanh(x); dy/dx = 1 - y*y."""

    kind: Literal["tanh"] = "tanh"
