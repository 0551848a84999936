"""The tables of the baseline: the class of each kind of layer and of each loss."""

from __future__ import annotations

from pcnn_baseline.avgpool2d import AvgPool2d
from pcnn_baseline.base import BaselineLayer, BaselineLoss
from pcnn_baseline.conv2d import Conv2d
from pcnn_baseline.dense import Dense
from pcnn_baseline.flatten import Flatten
from pcnn_baseline.maxpool2d import MaxPool2d
from pcnn_baseline.mean_squared_error import MeanSquaredError
from pcnn_baseline.relu import Relu
from pcnn_baseline.sigmoid import Sigmoid
from pcnn_baseline.softmax_cross_entropy import SoftmaxCrossEntropy
from pcnn_baseline.tanh import Tanh

LAYERS: dict[str, type[BaselineLayer]] = {
    "conv2d": Conv2d,
    "maxpool2d": MaxPool2d,
    "avgpool2d": AvgPool2d,
    "dense": Dense,
    "flatten": Flatten,
    "tanh": Tanh,
    "relu": Relu,
    "sigmoid": Sigmoid,
}

LOSSES: dict[str, type[BaselineLoss]] = {
    "softmax_cross_entropy": SoftmaxCrossEntropy,
    "mean_squared_error": MeanSquaredError,
}
