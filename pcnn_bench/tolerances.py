"""How far a float32 result may lie from the float64 one: bounds derived from the arithmetic, never tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod, sqrt

import numpy as np
import numpy.typing as npt

from pcnn_bench.engine import Engine, Probe
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_bench.network import Layer
from pcnn_bench.optimizers import OptimizerSpec

Doubles = npt.NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24
"""Half the spacing of float32 at 1: the relative error of one rounded operation."""
LIKELY = 6.0
"""How many standard deviations of the random-walk model a sum may err; beyond, fewer than 1e-8 of all sums."""
FUNCTION_ULPS = 4.0
"""Relative error of tanhf, expf, logf in units of UNIT_ROUNDOFF: 2 ulp, as the CUDA C++ Programming Guide lists."""

EXACT_KINDS = frozenset({"conv2d", "dense", "maxpool2d", "relu"})
"""Kinds that compute without rounding on small integers, so that equality can be demanded."""


def summation_error(terms: int) -> float:
    """Error of a float32 sum of ``terms`` products, in any order, relative to the sum of their magnitudes.

    The smaller of the certain bound, terms + 1 roundings, and the probable one, which grows with the root. A sum of
    no terms is a copy, and exact.
    Source: Higham and Mary 2019, A new approach to probabilistic rounding error analysis, theorem 3.1.
    """
    return UNIT_ROUNDOFF * min(terms + 1, LIKELY * sqrt(terms + 1)) if terms else 0.0


def allowed_errors(
    reference: Engine,
    layer: Layer,
    given: Probe,
    expected: Mapping[str, Doubles],
    optimizer: OptimizerSpec,
    *,
    is_exact: bool = False,
) -> dict[str, Doubles]:
    """The allowed absolute error of every element of every quantity in ``expected``.

    ``reference`` is the float64 engine; it is run once more, on magnitudes, to learn what the sums are made of.
    With ``is_exact`` (small integers given) an exact kind must be right to the last bit.
    """
    magnitude = {
        name: np.abs(values, dtype=np.float64)
        for name, values in reference.probe(layer.name, _magnitudes(layer, given)).items()
    }
    if is_exact and layer.kind in EXACT_KINDS:
        allowed = {name: np.zeros_like(values) for name, values in expected.items()}
    elif layer.kind in _BY_FUNCTION:
        allowed = _BY_FUNCTION[layer.kind](given, expected)
    else:
        terms = _terms(layer, len(given.x))
        allowed = {
            name: summation_error(terms[name]) * magnitude[name]
            for name in expected
            if name in terms
        }
    tiny = float(np.finfo(np.float32).tiny)
    for name, value in given.parameters.items():
        allowed[name] = _update_error(
            np.abs(value, dtype=np.float64),
            magnitude[f"grad_{name}"],
            allowed[f"grad_{name}"],
            optimizer,
        )
    return {name: values + (0.0 if is_exact else tiny) for name, values in allowed.items()}


def _magnitudes(layer: Layer, given: Probe) -> Probe:
    """The same sums with every term positive; a layer that is not linear keeps its own x."""
    is_linear = layer.kind in ("conv2d", "dense", "avgpool2d")
    return replace(
        given,
        x=np.abs(given.x) if is_linear else given.x,
        grad_y=None if given.grad_y is None else np.abs(given.grad_y),
        parameters={name: np.abs(value) for name, value in given.parameters.items()},
    )


def _terms(layer: Layer, n: int) -> dict[str, int]:
    """The longest sum behind an element of each quantity."""
    spec = layer.spec
    if isinstance(spec, Conv2dSpec):
        k, p, q = layer.y_shape
        touching = prod(ceil(r / s) for r, s in zip(spec.kernel, spec.stride, strict=True))
        pixels = n * p * q
        return {
            "y": layer.x_shape[0] * prod(spec.kernel) + 1,
            "grad_x": k * touching,
            "grad_weight": pixels,
            "grad_bias": pixels,
        }
    if isinstance(spec, PoolingSpec):
        touching = prod(ceil(r / s) for r, s in zip(spec.size, spec.stride, strict=True))
        is_sum = layer.kind == "avgpool2d"
        # one more rounding for the division; a maximum is a copy, and rounds nothing
        return {"y": prod(spec.size) + 1 if is_sum else 0, "grad_x": touching + is_sum}
    if layer.kind == "dense":
        features, units = layer.x_shape[0], layer.y_shape[0]
        return {"y": features + 1, "grad_x": units, "grad_weight": n, "grad_bias": n}
    return {"y": 0, "grad_x": 0}


def _tanh(given: Probe, expected: Mapping[str, Doubles]) -> dict[str, Doubles]:
    """y errs by a function value; 1 - y*y doubles y's error and rounds three times more."""
    errors = {"y": FUNCTION_ULPS * np.abs(expected["y"])}
    if given.grad_y is not None:
        errors["grad_x"] = (2 * FUNCTION_ULPS + 3) * np.abs(given.grad_y)
    return {name: UNIT_ROUNDOFF * value for name, value in errors.items()}


def _sigmoid(given: Probe, expected: Mapping[str, Doubles]) -> dict[str, Doubles]:
    """y: exp, an addition and a division; grad_x: three roundings, and y's own error where y is nearly 1."""
    relative = FUNCTION_ULPS + 2
    y = np.abs(expected["y"])
    errors = {"y": relative * y}
    if given.grad_y is not None:
        errors["grad_x"] = (2 * relative + 3) * np.abs(given.grad_y) * y
    return {name: UNIT_ROUNDOFF * value for name, value in errors.items()}


def _softmax_cross_entropy(given: Probe, expected: Mapping[str, Doubles]) -> dict[str, Doubles]:
    """exp(x - m) errs by its argument's rounding and its own; then the sum over K, the logarithm, two additions."""
    x = np.asarray(given.x, np.float64)
    n, classes = x.shape
    reach = x.max(axis=1) - x.min(axis=1)
    relative = FUNCTION_ULPS + reach + classes
    errors = {
        "losses": relative + FUNCTION_ULPS * np.abs(expected["losses"]) + 3 * reach,
        "grad_x": np.broadcast_to((2 * relative[:, None] + 4) / n, x.shape),
    }
    return {name: UNIT_ROUNDOFF * value for name, value in errors.items()}


def _mean_squared_error(given: Probe, expected: Mapping[str, Doubles]) -> dict[str, Doubles]:
    """A sum of K squares of differences; a difference rounds once, its multiple twice more."""
    difference = np.abs(np.asarray(given.x, np.float64)) + 1
    n, classes = difference.shape
    return {
        "losses": (summation_error(classes) + 4 * UNIT_ROUNDOFF) * (difference**2).mean(axis=1),
        "grad_x": 4 * UNIT_ROUNDOFF * 2 * difference / (n * classes),
    }


_BY_FUNCTION = {
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "mean_squared_error": _mean_squared_error,
}


def _update_error(
    parameter: Doubles, grad: Doubles, grad_error: Doubles, optimizer: OptimizerSpec
) -> Doubles:
    """Error of a parameter after two updates: five roundings each, and the gradient's error twice or thrice over."""
    weight = optimizer.learning_rate * (2 + optimizer.momentum)
    decay = 1 + weight * optimizer.weight_decay
    rounding = 10 * UNIT_ROUNDOFF * (parameter + weight * grad) * decay**2
    return np.asarray(rounding + weight * decay * grad_error, np.float64)
