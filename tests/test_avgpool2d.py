"""The average pooling of the baseline on inputs whose answers are known."""

from __future__ import annotations

import numpy as np
from reference.layers import make_layer, run_layer

from pcnn_bench.layers.avgpool2d import AvgPool2dSpec


def test_partial_windows_are_dropped() -> None:
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    layer = make_layer(AvgPool2dSpec(size=(2, 2), stride=(2, 2)), (1, 5, 5))
    results = run_layer(layer, x, np.full((1, 1, 2, 2), 4.0))
    np.testing.assert_array_equal(results["y"][0, 0], [[3, 5], [13, 15]])
    expected = np.ones((5, 5))
    expected[4] = expected[:, 4] = 0
    np.testing.assert_array_equal(results["grad_x"][0, 0], expected)


def test_overlapping_windows_add_up() -> None:
    layer = make_layer(AvgPool2dSpec(size=(2, 2), stride=(1, 1)), (1, 3, 3))
    grad_x = run_layer(layer, np.zeros((1, 1, 3, 3)), np.full((1, 1, 2, 2), 4.0))["grad_x"]
    np.testing.assert_array_equal(grad_x[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])


def test_a_nan_spoils_its_own_window_alone() -> None:
    x = np.ones((1, 1, 4, 4))
    x[0, 0, 3, 0] = np.nan
    layer = make_layer(AvgPool2dSpec(size=(2, 2), stride=(2, 2)), (1, 4, 4))
    np.testing.assert_array_equal(layer.forward(x)[0, 0], [[1, 1], [np.nan, 1]])
