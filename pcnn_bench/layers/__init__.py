"""The layer specs: one file a kind; ``SPECS`` and ``LOSSES`` are the tables that config and engines read."""

from __future__ import annotations

from pcnn_bench.layers.avgpool2d import AvgPool2dSpec
from pcnn_bench.layers.base import LayerSpec, Shape, SpecError
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.loss import LossSpec
from pcnn_bench.layers.maxpool2d import MaxPool2dSpec
from pcnn_bench.layers.mean_squared_error import MeanSquaredErrorSpec
from pcnn_bench.layers.relu import ReluSpec
from pcnn_bench.layers.sigmoid import SigmoidSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.layers.tanh import TanhSpec

SPECS: dict[str, type[LayerSpec]] = {
    "conv2d": Conv2dSpec,
    "maxpool2d": MaxPool2dSpec,
    "avgpool2d": AvgPool2dSpec,
    "dense": DenseSpec,
    "flatten": FlattenSpec,
    "tanh": TanhSpec,
    "relu": ReluSpec,
    "sigmoid": SigmoidSpec,
}

LOSSES: dict[str, type[LossSpec]] = {
    "softmax_cross_entropy": SoftmaxCrossEntropySpec,
    "mean_squared_error": MeanSquaredErrorSpec,
}

__all__ = ["LOSSES", "SPECS", "LayerSpec", "LossSpec", "Shape", "SpecError"]
