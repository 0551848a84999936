"""The relu activation: host code of ``relu.cu``."""

from __future__ import annotations

from pcnn_cuda.activation import Activation


class Relu(Activation):
    """Device twin of ``pcnn_baseline.relu``."""

    stem = "relu"
