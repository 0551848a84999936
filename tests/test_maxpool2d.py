"""The max pooling of the baseline on inputs whose answers are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from reference.layers import make_layer, run_layer
from reference.loops import maxpool2d

from pcnn_baseline.arrays import Array
from pcnn_bench.layers.maxpool2d import MaxPool2dSpec


def _pool(
    x: npt.ArrayLike, size: int, stride: int, grad_y: npt.ArrayLike | None = None
) -> dict[str, Array]:
    """One map (H, W) -> y (P, Q) and grad_x (H, W)."""
    x = np.asarray(x, np.float32)
    layer = make_layer(MaxPool2dSpec(size=(size, size), stride=(stride, stride)), (1, *x.shape))
    shape = layer.layer.batch_y(1)
    grad = np.ones(shape) if grad_y is None else np.asarray(grad_y, float).reshape(shape)
    return {name: value[0, 0] for name, value in run_layer(layer, x[None, None], grad).items()}


def test_partial_windows_are_dropped() -> None:
    results = _pool(np.arange(25).reshape(5, 5), 2, 2)
    np.testing.assert_array_equal(results["y"], [[6, 8], [16, 18]])
    assert (results["grad_x"][4] == 0).all()
    assert (results["grad_x"][:, 4] == 0).all()


def test_even_size_halves() -> None:
    assert _pool(np.zeros((510, 2)), 2, 2)["y"].shape == (255, 1)


def test_a_tie_goes_to_the_first_cell_in_row_order() -> None:
    grad_x = _pool(np.ones((2, 2)), 2, 2, [[5]])["grad_x"]
    np.testing.assert_array_equal(grad_x, [[5, 0], [0, 0]])
    grad_x = _pool([[0, 7], [7, 7]], 2, 2, [[5]])["grad_x"]
    np.testing.assert_array_equal(grad_x, [[0, 5], [0, 0]])


def test_overlapping_windows_add_up() -> None:
    x = np.zeros((3, 3))
    x[1, 1] = 1
    grad_x = _pool(x, 2, 1, [[1, 2], [3, 4]])["grad_x"]
    np.testing.assert_array_equal(grad_x, 10 * x)


@pytest.mark.parametrize("place", range(4))
def test_a_nan_beats_every_number_wherever_it_is(place: int) -> None:
    x = np.array([np.inf, 3, -np.inf, 3])
    x[place] = np.nan
    results = _pool(x.reshape(2, 2), 2, 2)
    assert np.isnan(results["y"]).all()
    np.testing.assert_array_equal(results["grad_x"].ravel(), np.arange(4) == place)


def test_the_first_of_several_nans_wins() -> None:
    grad_x = _pool([[1, np.nan], [np.nan, 2]], 2, 2)["grad_x"]
    np.testing.assert_array_equal(grad_x, [[0, 1], [0, 0]])


def test_infinities_and_zeros_of_both_signs_are_ordinary() -> None:
    values = [-np.inf, np.inf, 0.0, -0.0, 1.0]
    rng = np.random.default_rng(0)
    x = rng.choice(values, (3, 2, 7, 9))
    spec = MaxPool2dSpec(size=(3, 2), stride=(2, 1))
    layer = make_layer(spec, x.shape[1:])
    grad_y = rng.standard_normal(layer.layer.batch_y(3))
    actual, expected = run_layer(layer, x, grad_y), maxpool2d(spec, x, {}, grad_y)
    np.testing.assert_array_equal(actual["y"], expected["y"])
    np.testing.assert_allclose(actual["grad_x"], expected["grad_x"], rtol=1e-13, atol=1e-13)
