"""The convolution of the baseline on inputs whose answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from reference.layers import make_layer

from pcnn_bench.layers import SPECS


def _convolve(x: npt.ArrayLike, weight: npt.ArrayLike, **options: Any) -> npt.NDArray[np.float32]:
    """One channel in, one out, no bias: maps (H, W) -> (P, Q)."""
    x, weight = np.asarray(x, np.float32), np.asarray(weight, np.float32)
    spec = SPECS["conv2d"].model_validate(
        {"kind": "conv2d", "out_channels": 1, "kernel": list(weight.shape), **options}
    )
    layer = make_layer(spec, (1, *x.shape), np.float32)
    layer.parameters["weight"][0, 0] = weight
    y: npt.NDArray[np.float32] = layer.forward(x[None, None])[0, 0]
    return y


def test_uneven_image_kernel_and_stride() -> None:
    x, weight = np.arange(35).reshape(5, 7), [[1, 2], [3, 4], [5, 6]]
    strided = _convolve(x, weight, stride=[2, 3], padding=[1, 0])
    np.testing.assert_array_equal(strided, [[87, 141], [362, 425], [265, 295]])
    assert _convolve(x, weight).sum() == 7461


def test_one_by_one_kernel_keeps_its_stride() -> None:
    y = _convolve(np.arange(16).reshape(4, 4), [[2]], stride=2)
    np.testing.assert_array_equal(y, [[0, 4], [16, 20]])


def test_one_by_one_kernel_keeps_its_padding() -> None:
    y = _convolve([[0, 1], [4, 5]], [[1]], padding=1)
    np.testing.assert_array_equal(y, np.pad([[0, 1], [4, 5]], 1))


def test_even_kernel_reaches_the_last_column() -> None:
    y = _convolve(np.arange(16).reshape(4, 4), np.ones((2, 2)))
    np.testing.assert_array_equal(y, [[10, 14, 18], [26, 30, 34], [42, 46, 50]])


def test_every_output_is_written_on_sizes_beside_a_power_of_two() -> None:
    y = _convolve(np.ones((33, 17)), np.ones((3, 3)))
    assert y.shape == (31, 15)
    assert (y == 9).all()
    for h in (1, 31, 32, 33):
        for w in (1, 31, 32, 33):
            y = _convolve(np.ones((h, w)), np.ones((1, 1)))
            np.testing.assert_array_equal(y, np.ones((h, w)))


def test_a_nan_reaches_only_the_outputs_that_read_it() -> None:
    x = np.ones((5, 5))
    x[0, 4] = np.nan
    y = _convolve(x, np.ones((2, 2)))
    expected = np.full((4, 4), 4.0)
    expected[0, 3] = np.nan
    np.testing.assert_array_equal(y, expected)


def test_bias_is_added_to_its_own_channel() -> None:
    spec = SPECS["conv2d"].model_validate({"kind": "conv2d", "out_channels": 3, "kernel": 1})
    layer = make_layer(spec, (2, 4, 5))
    layer.parameters["bias"][...] = [1, 2, 3]
    y = layer.forward(np.zeros((2, 2, 4, 5)))
    np.testing.assert_array_equal(y, np.broadcast_to([[[1]], [[2]], [[3]]], (2, 3, 4, 5)))
