"""The tanh activation: host code of ``tanh.cu``."""

from __future__ import annotations

from pcnn_cuda.activation import Activation


class Tanh(Activation):
    """Device twin of ``pcnn_baseline.tanh``."""

    stem = "tanh"
