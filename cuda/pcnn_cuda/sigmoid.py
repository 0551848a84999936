"""The sigmoid activation: host code of ``sigmoid.cu``."""

from __future__ import annotations

from pcnn_cuda.activation import Activation


class Sigmoid(Activation):
    """Device twin of ``pcnn_baseline.sigmoid``."""

    stem = "sigmoid"
