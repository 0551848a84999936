"""Every layer as the formula says, one scalar at a time: slow, obvious, and sharing no code with the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec

Doubles = npt.NDArray[np.floating[Any]]
Results = dict[str, Doubles]
"""As a probe of an engine returns them: y, grad_x, grad_weight, grad_bias."""
Reference = Callable[[Any, Doubles, Mapping[str, Doubles], Doubles], Results]
"""(spec, x, parameters, grad_y) -> results."""


def conv2d(
    spec: Conv2dSpec, x: Doubles, parameters: Mapping[str, Doubles], grad_y: Doubles
) -> Results:
    """Each product of the sum, and what it contributes to every gradient."""
    weight, bias = parameters["weight"], parameters["bias"]
    n_count, c_count, h, w = x.shape
    _, k_count, p_count, q_count = grad_y.shape
    y = np.zeros_like(grad_y)
    grad_x, grad_weight, grad_bias = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(bias)
    for n, k, p, q in product(*map(range, (n_count, k_count, p_count, q_count))):
        y[n, k, p, q] = bias[k]
        grad_bias[k] += grad_y[n, k, p, q]
        for c, r, s in product(range(c_count), *map(range, spec.kernel)):
            i = p * spec.stride[0] + r - spec.padding[0]
            j = q * spec.stride[1] + s - spec.padding[1]
            if 0 <= i < h and 0 <= j < w:
                y[n, k, p, q] += x[n, c, i, j] * weight[k, c, r, s]
                grad_x[n, c, i, j] += grad_y[n, k, p, q] * weight[k, c, r, s]
                grad_weight[k, c, r, s] += grad_y[n, k, p, q] * x[n, c, i, j]
    return {"y": y, "grad_x": grad_x, "grad_weight": grad_weight, "grad_bias": grad_bias}


def dense(_: Any, x: Doubles, parameters: Mapping[str, Doubles], grad_y: Doubles) -> Results:
    """Each product of the sum, and what it contributes to every gradient."""
    weight, bias = parameters["weight"], parameters["bias"]
    y = np.zeros_like(grad_y)
    grad_x, grad_weight, grad_bias = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(bias)
    for n, k in product(*map(range, y.shape)):
        y[n, k] = bias[k]
        grad_bias[k] += grad_y[n, k]
        for f in range(x.shape[1]):
            y[n, k] += x[n, f] * weight[k, f]
            grad_x[n, f] += grad_y[n, k] * weight[k, f]
            grad_weight[k, f] += grad_y[n, k] * x[n, f]
    return {"y": y, "grad_x": grad_x, "grad_weight": grad_weight, "grad_bias": grad_bias}


def _window(spec: PoolingSpec, p: int, q: int) -> Iterator[tuple[int, int]]:
    """(row, column) of each cell of window (p, q), in row order."""
    for r, s in product(*map(range, spec.size)):
        yield p * spec.stride[0] + r, q * spec.stride[1] + s


def maxpool2d(spec: PoolingSpec, x: Doubles, _: Mapping[str, Doubles], grad_y: Doubles) -> Results:
    """The first NaN of the window, else the first of its largest cells."""
    y, grad_x = np.zeros_like(grad_y), np.zeros_like(x)
    for n, c, p, q in product(*map(range, y.shape)):
        best: tuple[int, int] | None = None
        for cell in _window(spec, p, q):
            here, there = x[n, c, *cell], x[n, c, *(best or cell)]
            if best is None or here > there or (math.isnan(here) and not math.isnan(there)):
                best = cell
        assert best is not None
        y[n, c, p, q] = x[n, c, *best]
        grad_x[n, c, *best] += grad_y[n, c, p, q]
    return {"y": y, "grad_x": grad_x}


def avgpool2d(spec: PoolingSpec, x: Doubles, _: Mapping[str, Doubles], grad_y: Doubles) -> Results:
    """The mean of the window's cells; each of them gets its share of the gradient."""
    y, grad_x = np.zeros_like(grad_y), np.zeros_like(x)
    for n, c, p, q in product(*map(range, y.shape)):
        cells = list(_window(spec, p, q))
        y[n, c, p, q] = sum(x[n, c, i, j] for i, j in cells) / len(cells)
        for i, j in cells:
            grad_x[n, c, i, j] += grad_y[n, c, p, q] / len(cells)
    return {"y": y, "grad_x": grad_x}


def flatten(_: Any, x: Doubles, __: Mapping[str, Doubles], grad_y: Doubles) -> Results:
    """Feature f of an image is its f-th number in the order channel, row, column."""
    y, grad_x = np.zeros_like(grad_y), np.zeros_like(x)
    for n, image in enumerate(x):
        for f, index in enumerate(product(*map(range, image.shape))):
            y[n, f] = image[index]
            grad_x[n, *index] = grad_y[n, f]
    return {"y": y, "grad_x": grad_x}


def _elementwise(
    function: Callable[[float], float], derivative: Callable[[float], float]
) -> Reference:
    """The reference of an activation, from its function and its derivative at x."""

    def reference(_: Any, x: Doubles, __: Mapping[str, Doubles], grad_y: Doubles) -> Results:
        y, grad_x = np.zeros_like(x), np.zeros_like(x)
        for index in np.ndindex(x.shape):
            y[index] = function(float(x[index]))
            grad_x[index] = derivative(float(x[index])) * grad_y[index]
        return {"y": y, "grad_x": grad_x}

    return reference


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


REFERENCES: dict[str, Reference] = {
    "conv2d": conv2d,
    "maxpool2d": maxpool2d,
    "avgpool2d": avgpool2d,
    "dense": dense,
    "flatten": flatten,
    "tanh": _elementwise(math.tanh, lambda x: 1 / math.cosh(x) ** 2),
    "relu": _elementwise(lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "sigmoid": _elementwise(_logistic, lambda x: _logistic(x) * _logistic(-x)),
}


def softmax_cross_entropy(x: Doubles, labels: npt.NDArray[np.int32]) -> Results:
    """From the probabilities; only for scores whose exponentials are ordinary numbers."""
    losses, grad_x = np.zeros(len(x)), np.zeros_like(x)
    for n, label in enumerate(labels):
        total = sum(math.exp(score) for score in x[n])
        losses[n] = -math.log(math.exp(x[n, label]) / total)
        for k, score in enumerate(x[n]):
            grad_x[n, k] = (math.exp(score) / total - (k == label)) / len(x)
    return {"losses": losses, "grad_x": grad_x}


def mean_squared_error(x: Doubles, labels: npt.NDArray[np.int32]) -> Results:
    """Against 1 for the label and 0 for every other class."""
    losses, grad_x = np.zeros(len(x)), np.zeros_like(x)
    for n, label in enumerate(labels):
        for k, score in enumerate(x[n]):
            target = 1.0 if k == label else 0.0
            losses[n] += (score - target) ** 2 / x.shape[1]
            grad_x[n, k] = 2 * (score - target) / x.size
    return {"losses": losses, "grad_x": grad_x}


LOSS_REFERENCES: dict[str, Callable[[Doubles, npt.NDArray[np.int32]], Results]] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "mean_squared_error": mean_squared_error,
}
