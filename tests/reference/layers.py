"""Baseline layers by themselves, as the tests use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array
from pcnn_baseline.base import BaselineLayer, BaselineLoss
from pcnn_baseline.layers import LAYERS, LOSSES
from pcnn_bench.layers import LayerSpec, LossSpec
from pcnn_bench.network import Network

Doubles = npt.NDArray[np.float64]

STEPS = (1e-5, 1e-6, 1e-7)
"""Of the finite differences. The best counts: a larger one may cross a kink of relu or of a maximum."""
DIFFERENCE_ERROR = 1e-8
"""Relative. In float64 a step of 1e-5 truncates about 1e-10 and rounds off 1e-16 / 1e-5 of it."""


def make_layer(
    spec: LayerSpec, image_shape: Sequence[int], dtype: npt.DTypeLike = np.float64
) -> BaselineLayer:
    """A layer whose input gradient is wanted; its parameters are zero."""
    (layer,) = Network(image_shape, [spec], None, needs_grad_x=True).layers
    return LAYERS[layer.kind](layer, dtype)


def make_loss(spec: LossSpec, class_count: int, dtype: npt.DTypeLike = np.float64) -> BaselineLoss:
    """A loss whose gradient is wanted."""
    network = Network((class_count,), [], spec, needs_grad_x=True)
    assert network.loss is not None
    return LOSSES[spec.kind](network.loss, dtype)


def run_layer(layer: BaselineLayer, x: Array, grad_y: Array) -> dict[str, Array]:
    """Both passes; copies of all that they yield, named as a probe names it."""
    results = {"y": layer.forward(x).copy()}
    grad_x = layer.backward(grad_y)
    if grad_x is not None:
        results["grad_x"] = grad_x.copy()
    return results | {f"grad_{name}": value.copy() for name, value in layer.gradients.items()}


def assert_derivative(
    function: Callable[[], float], at: Array, gradient: Array, rng: np.random.Generator
) -> None:
    """``gradient`` is the derivative of ``function`` by ``at``, along one random direction.

    ``at`` is moved in place and put back.
    """
    direction = rng.standard_normal(at.shape)
    start = at.copy()
    differences = []
    for step in STEPS:
        at[...] = start + step * direction
        above = function()
        at[...] = start - step * direction
        differences.append((above - function()) / (2 * step))
    at[...] = start
    expected = float(np.vdot(gradient, direction))
    scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
    assert scale > 0, "a gradient of zeros proves nothing"
    error = min(abs(difference - expected) for difference in differences)
    assert error <= DIFFERENCE_ERROR * scale, (
        f"{differences} by differences, {expected} by backward"
    )
