"""How far a float32 result may lie from the float64 one: bounds derived from the arithmetic, never tuned.

The layers of a stage are walked forward, then backward, with the float64 values and a bound on the float32 error of
each. A layer adds the error of its own arithmetic and passes on what it was given: a linear layer carries errors as
it carries magnitudes, a derivative scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt

import numpy as np
import numpy.typing as npt

from pcnn_bench.engine import Engine, Probe
from pcnn_bench.layers import LossSpec
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_bench.network import Layer
from pcnn_bench.optimizers import OptimizerSpec

Doubles = npt.NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24
"""Half the spacing of float32 at 1: the relative error of one rounded operation."""
LIKELY = 6.0
"""Standard deviations that a sum may err in the random-walk model; beyond lie fewer than 1e-8 of all sums."""
FUNCTION_ULPS = 4.0
"""Relative error of tanhf, expf, logf in units of UNIT_ROUNDOFF: 2 ulp, as the CUDA C++ Programming Guide lists."""

EXACT_KINDS = frozenset({"conv2d", "dense", "maxpool2d", "relu", "flatten"})
"""Kinds that compute without rounding on small integers, so that equality can be demanded."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """The float64 value of a quantity, and how far a float32 result may lie from it, element by element."""

    value: Doubles
    error: Doubles


def summation_error(terms: int) -> float:
    """Error of a float32 sum of ``terms`` products, in any order, relative to the sum of their magnitudes.

    The smaller of the certain bound, terms + 1 roundings, and the probable one, which grows with the root. A sum of
    no terms is a copy, and exact.
    Source: Higham and Mary 2019, A new approach to probabilistic rounding error analysis, theorem 3.1.
    """
    return UNIT_ROUNDOFF * min(terms + 1, LIKELY * sqrt(terms + 1)) if terms else 0.0


def expect(
    reference: Engine,
    layers: Sequence[Layer],
    given: Probe,
    optimizer: OptimizerSpec,
    *,
    is_exact: bool = False,
) -> dict[str, Bounded]:
    """Value and bound of everything that a stage of these layers computes from ``given``.

    ``reference`` is a float64 engine with one stage a layer. With ``is_exact``, for layers of ``EXACT_KINDS`` that
    are given small integers, the result must be right to the last bit. Parameters are named as in ``Engine.probe``.
    """
    chain = _Chain(reference, layers, given, optimizer, is_exact)
    found = {"losses" if chain.is_loss else "y": chain.forward()}
    found |= chain.backward()
    tiny = float(np.finfo(np.float32).tiny)  # results that small may be flushed to zero
    return {
        name: Bounded(each.value, each.error + (0.0 if is_exact else tiny))
        for name, each in found.items()
    }


class _Chain:
    """The layers of one stage, walked with values and errors."""

    def __init__(
        self,
        reference: Engine,
        layers: Sequence[Layer],
        given: Probe,
        optimizer: OptimizerSpec,
        is_exact: bool,
    ) -> None:
        self._reference = reference
        self._optimizer = optimizer
        self._layers = layers
        self._given = given
        self._is_exact = is_exact
        self._several = sum(bool(layer.parameters) for layer in layers) > 1
        self._inputs: list[Bounded] = []
        self._outputs: list[Bounded] = []
        self.is_loss = isinstance(layers[-1].spec, LossSpec)

    def forward(self) -> Bounded:
        """The stage's y, or its losses."""
        x = np.asarray(self._given.x, np.float64)
        current = Bounded(x, np.zeros_like(x))
        for layer in self._layers:
            self._inputs.append(current)
            current = self._forward(layer, current)
            self._outputs.append(current)
        return current

    def backward(self) -> dict[str, Bounded]:
        """grad_x of the stage, and the gradient of every parameter, where the layers need them."""
        found: dict[str, Bounded] = {}
        grad: Bounded | None = None
        if self._given.grad_y is not None:
            value = np.asarray(self._given.grad_y, np.float64)
            grad = Bounded(value, np.zeros_like(value))
        for index in reversed(range(len(self._layers))):
            layer = self._layers[index]
            if not layer.needs_backward:
                return found
            gradients = self._backward(layer, self._inputs[index], self._outputs[index], grad)
            grad = gradients.pop("grad_x", None)
            if "predictions" in gradients:  # which are no parameter's
                found["predictions"] = gradients.pop("predictions")
            for name, quantity in gradients.items():
                prefix = "grad_" if name.startswith("grad_") else ""
                found[prefix + self._named(layer, name.removeprefix(prefix))] = quantity
        if grad is not None:
            found["grad_x"] = grad
        return found

    def _named(self, layer: Layer, parameter: str) -> str:
        return f"{layer.name}.{parameter}" if self._several else parameter

    def _parameters(self, layer: Layer) -> dict[str, Doubles]:
        return {
            name: np.asarray(self._given.parameters[self._named(layer, name)], np.float64)
            for name in layer.parameters
        }

    def _probe(
        self, layer: Layer, x: Doubles, grad_y: Doubles | None, *, on_magnitudes: bool = False
    ) -> dict[str, Doubles]:
        """The reference on this input; ``on_magnitudes`` takes the parameters' absolute values."""
        parameters = self._parameters(layer)
        if on_magnitudes:
            parameters = {name: np.abs(value) for name, value in parameters.items()}
        given = Probe(x, grad_y, self._given.labels, parameters)  # type: ignore[arg-type]
        found = self._reference.probe(layer.name, given)
        return {name: np.asarray(value, np.float64) for name, value in found.items()}

    def _rounding(self, layer: Layer, quantity: str, magnitude: Doubles) -> Doubles:
        """The error of a sum whose terms' magnitudes add up to ``magnitude``."""
        if self._is_exact:
            return np.zeros_like(magnitude)
        return summation_error(_terms(layer, len(self._given.x))[quantity]) * magnitude

    def _forward(self, layer: Layer, x: Bounded) -> Bounded:
        """y of one layer."""
        kind = layer.kind
        y = self._probe(layer, x.value, None)["losses" if kind in _LOSSES else "y"]
        if kind in _LOSSES:
            return Bounded(y, _LOSSES[kind](x, y)["losses"])
        if kind in _LINEAR:
            terms = self._probe(layer, np.abs(x.value), None, on_magnitudes=True)["y"]
            without_x = self._probe(layer, np.zeros_like(x.value), None, on_magnitudes=True)["y"]
            carried = self._probe(layer, x.error, None, on_magnitudes=True)["y"] - without_x
            return Bounded(y, self._rounding(layer, "y", terms) + carried)
        if kind == "maxpool2d":
            return Bounded(y, self._probe(layer, x.error, None)["y"])
        # what is infinite or no number is compared for equality, and has no error to pass on
        finite = np.where(np.isfinite(y), np.abs(y), 0.0)
        local = _FUNCTION_ERRORS[kind] * UNIT_ROUNDOFF * finite
        steepest = 0.25 if kind == "sigmoid" else 1.0
        return Bounded(y, local + steepest * x.error.reshape(y.shape))

    def _backward(
        self, layer: Layer, x: Bounded, y: Bounded, grad: Bounded | None
    ) -> dict[str, Bounded]:
        """grad_x and the parameters' gradients of one layer."""
        kind = layer.kind
        value = self._probe(layer, x.value, None if grad is None else grad.value)
        if kind in _LOSSES:
            predictions = value["predictions"]
            return {
                "grad_x": Bounded(value["grad_x"], _LOSSES[kind](x, y.value)["grad_x"]),
                "predictions": Bounded(predictions, _undecided(x, predictions)),
            }
        assert grad is not None
        if kind in _DERIVATIVES:
            slope, change, roundings = _DERIVATIVES[kind](y.value)
            error = (
                slope * grad.error
                + change * np.abs(grad.value) * y.error
                + roundings * UNIT_ROUNDOFF * np.abs(grad.value)
            )
            if kind == "relu":  # within its error x may lie on either side of the kink
                error = error + np.where(np.abs(x.value) < x.error, np.abs(grad.value), 0.0)
            return {"grad_x": Bounded(value["grad_x"], error)}
        if kind == "flatten":
            return {"grad_x": Bounded(value["grad_x"], grad.error.reshape(x.value.shape))}
        return self._backward_sums(layer, x, grad, value)

    def _backward_sums(
        self, layer: Layer, x: Bounded, grad: Bounded, value: Mapping[str, Doubles]
    ) -> dict[str, Bounded]:
        """Layers whose gradients are sums: each errs by rounding, and by the errors of both factors."""
        is_linear = layer.kind in _LINEAR
        terms = np.abs(x.value) if is_linear else x.value  # a maximum must stay where it is
        magnitude = self._probe(layer, terms, np.abs(grad.value), on_magnitudes=True)
        by_grad = self._probe(layer, terms, grad.error, on_magnitudes=True)
        by_x = (
            self._probe(layer, x.error, np.abs(grad.value) + grad.error, on_magnitudes=True)
            if is_linear
            else {}
        )
        found: dict[str, Bounded] = {}
        for name in ("grad_x", *(f"grad_{parameter}" for parameter in layer.parameters)):
            if name in value:
                error = self._rounding(layer, name, magnitude[name]) + by_grad[name]
                if name == "grad_weight":  # the only one that x is a factor of
                    error = error + by_x[name]
                if layer.kind == "maxpool2d":
                    error = error + _contested(layer, x, np.abs(grad.value) + grad.error)
                found[name] = Bounded(value[name], error)
        for name in layer.parameters:
            parameter, gradient = self._parameters(layer)[name], found[f"grad_{name}"]
            error = _update_error(np.abs(parameter), gradient, self._optimizer)
            found[name] = Bounded(value[name], error)
        return found


_LINEAR = frozenset({"conv2d", "dense", "avgpool2d"})
_FUNCTION_ERRORS = {
    "relu": 0.0,
    "flatten": 0.0,
    "tanh": FUNCTION_ULPS,
    "sigmoid": FUNCTION_ULPS + 2,  # an addition and a division follow the exponential
}
"""Error of y relative to y, in units of UNIT_ROUNDOFF."""


def _relu_derivative(y: Doubles) -> tuple[Doubles, float, float]:
    return (y > 0).astype(np.float64), 0.0, 0.0


def _tanh_derivative(y: Doubles) -> tuple[Doubles, Doubles, float]:
    """1 - y*y rounds twice, the product with grad_y once."""
    return 1 - y * y, 2 * np.abs(y), 3.0


def _sigmoid_derivative(y: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """grad_y * y * (1 - y) rounds three times."""
    return y * (1 - y), np.abs(1 - 2 * y), 3 * y


_DERIVATIVES: dict[str, Callable[[Doubles], tuple[Doubles, Doubles | float, Doubles | float]]] = {
    "relu": _relu_derivative,
    "tanh": _tanh_derivative,
    "sigmoid": _sigmoid_derivative,
}
"""From y: the derivative, how it changes with y, and its roundings relative to grad_y."""


def _terms(layer: Layer, n: int) -> dict[str, int]:
    """The longest sum behind an element of each quantity."""
    spec = layer.spec
    if isinstance(spec, Conv2dSpec):
        k, p, q = layer.y_shape
        touching = prod(ceil(r / s) for r, s in zip(spec.kernel, spec.stride, strict=True))
        return {
            "y": layer.x_shape[0] * prod(spec.kernel) + 1,
            "grad_x": k * touching,
            "grad_weight": n * p * q,
            "grad_bias": n * p * q,
        }
    if isinstance(spec, PoolingSpec):
        touching = prod(ceil(r / s) for r, s in zip(spec.size, spec.stride, strict=True))
        is_mean = layer.kind == "avgpool2d"
        # one rounding more for the division of a mean; a maximum is a copy, and rounds nothing
        return {"y": prod(spec.size) + 1 if is_mean else 0, "grad_x": touching + is_mean}
    features, units = layer.x_shape[0], layer.y_shape[0]
    return {"y": features + 1, "grad_x": units, "grad_weight": n, "grad_bias": n}


def _softmax_cross_entropy(x: Bounded, losses: Doubles) -> dict[str, Doubles]:
    """exp(x - m) errs by its argument's rounding and its own; then the sum over K, the logarithm, two additions.

    Scores that err by e at most change the loss by 2 e, and the probability p by a factor of exp(2 e), or by 1.
    """
    n, classes = x.value.shape
    reach = x.value.max(axis=1) - x.value.min(axis=1)
    relative = FUNCTION_ULPS + reach + classes
    given = 2 * x.error.max(axis=1)
    exponentials = np.exp(x.value - x.value.max(axis=1, keepdims=True))
    probability = exponentials / exponentials.sum(axis=1, keepdims=True)
    carried = np.minimum(probability * np.expm1(np.minimum(given, 1.0))[:, None], 1.0)
    carried = np.where(given[:, None] <= 1, carried, 1.0)
    rounding = np.broadcast_to(UNIT_ROUNDOFF * (2 * relative[:, None] + 4), x.value.shape)
    return {
        "losses": UNIT_ROUNDOFF * (relative + FUNCTION_ULPS * np.abs(losses) + 3 * reach) + given,
        "grad_x": (rounding + carried) / n,
    }


def _mean_squared_error(x: Bounded, losses: Doubles) -> dict[str, Doubles]:
    """A sum of K squares of differences; a difference rounds once, its multiple twice more."""
    difference = np.abs(x.value) + 1
    n, classes = x.value.shape
    sums = (summation_error(classes) + 4 * UNIT_ROUNDOFF) * (difference**2).mean(axis=1)
    carried = ((2 * difference + x.error) * x.error).mean(axis=1)
    grad = 4 * UNIT_ROUNDOFF * difference + x.error
    return {"losses": sums + carried, "grad_x": 2 * grad / (n * classes)}


def _undecided(x: Bounded, predictions: Doubles) -> Doubles:
    """How far from the prediction the farthest class lies whose score may be the largest, within its error."""
    if not x.error.any():
        return np.zeros_like(predictions)
    surely = (x.value - x.error).max(axis=1, keepdims=True)
    distance = np.abs(np.arange(x.value.shape[1]) - predictions[:, None])
    possible = np.where(x.value + x.error >= surely, distance, 0.0)
    return np.asarray(possible.max(axis=1), np.float64)


_LOSSES = {
    "softmax_cross_entropy": _softmax_cross_entropy,
    "mean_squared_error": _mean_squared_error,
}


def _update_error(parameter: Doubles, grad: Bounded, optimizer: OptimizerSpec) -> Doubles:
    """Error of a parameter after two updates: five roundings each, and the gradient's error thrice over."""
    weight = optimizer.learning_rate * (2 + optimizer.momentum)
    growth = 1 + weight * optimizer.weight_decay
    magnitude = (parameter + weight * np.abs(grad.value)) * growth**2
    return np.asarray(10 * UNIT_ROUNDOFF * magnitude + weight * growth * grad.error, np.float64)


def _contested(layer: Layer, x: Bounded, grad: Doubles) -> Doubles:
    """What grad_x may differ by where rounding of x decides which cell of a window is the largest.

    grad is the magnitude of grad_y. Each cell within its error of the window's maximum may get it or not.
    """
    total = np.zeros_like(x.value)
    if not x.error.any():
        return total
    spec = layer.spec
    assert isinstance(spec, PoolingSpec)
    (rows, columns), (row_stride, column_stride) = spec.size, spec.stride
    p, q = grad.shape[2:]
    cells = [
        (
            ...,
            slice(r, r + row_stride * (p - 1) + 1, row_stride),
            slice(s, s + column_stride * (q - 1) + 1, column_stride),
        )
        for r in range(rows)
        for s in range(columns)
    ]
    surely = np.maximum.reduce([x.value[cell] - x.error[cell] for cell in cells])
    possible = [x.value[cell] + x.error[cell] >= surely for cell in cells]
    is_open = np.add.reduce([one.astype(np.int64) for one in possible]) > 1
    for cell, one in zip(cells, possible, strict=True):
        total[cell] += np.where(is_open & one, grad, 0.0)
    return total
