"""The activations of the baseline at the edges of their range."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pytest
from reference.layers import make_layer, run_layer

from pcnn_bench.layers import SPECS


def _apply(kind: str, values: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], ...]:
    """values (F,) -> y and dy/dx, in float32, with every NumPy warning an error."""
    x = np.asarray(values, np.float32)[None]
    layer = make_layer(SPECS[kind](kind=kind), x.shape[1:], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = run_layer(layer, x, np.ones_like(x))
    assert all(value.dtype == np.float32 for value in results.values())
    return results["y"][0], results["grad_x"][0]


def test_relu_is_flat_at_zero() -> None:
    y, slope = _apply("relu", [-1, -0.0, 0.0, 1e-38, 2, np.inf, -np.inf])
    np.testing.assert_array_equal(y, np.array([0, 0, 0, 1e-38, 2, np.inf, 0], np.float32))
    np.testing.assert_array_equal(slope, [0, 0, 0, 1, 1, 1, 0])


def test_sigmoid_saturates_without_a_warning() -> None:
    y, slope = _apply("sigmoid", [-1000, -80, 0, 80, 1000, -np.inf, np.inf])
    np.testing.assert_allclose(y, [0, np.exp(-80.0), 0.5, 1, 1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(slope, [0, np.exp(-80.0), 0.25, 0, 0, 0, 0], rtol=1e-6)


def test_tanh_saturates_and_keeps_small_values() -> None:
    y, slope = _apply("tanh", [-100, -1e-20, 0, 1e-20, 100])
    np.testing.assert_array_equal(y, np.array([-1, -1e-20, 0, 1e-20, 1], np.float32))
    np.testing.assert_array_equal(slope, [0, 1, 1, 1, 0])


@pytest.mark.parametrize("kind", ["tanh", "relu", "sigmoid"])
def test_a_nan_stays_where_it_is(kind: str) -> None:
    y, _ = _apply(kind, [1, np.nan, -1])
    np.testing.assert_array_equal(np.isnan(y), [False, True, False])


def test_float32_tanh_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-9, 9, 100_001, dtype=np.float32)
    y, _ = _apply("tanh", x)
    exact = np.tanh(x.astype(np.float64))
    assert (np.abs(y - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()
