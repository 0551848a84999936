"""The losses of the baseline at the edges of their range."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from reference.layers import make_loss

from pcnn_baseline.base import predictions
from pcnn_bench.layers import LOSSES


def _softmax_losses(scores: list[list[float]], labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Losses and gradient in float32, with every NumPy warning an error."""
    loss = make_loss(
        LOSSES["softmax_cross_entropy"](kind="softmax_cross_entropy"), len(scores[0]), np.float32
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = loss.forward(np.array(scores, np.float32), np.array(labels, np.int32))
        return losses, loss.backward()


def test_large_scores_do_not_overflow() -> None:
    scores = [[1000.0, 0.0, -1000.0]] * 3
    losses, grad_x = _softmax_losses(scores, [0, 1, 2])
    np.testing.assert_array_equal(losses, [0, 1000, 2000])
    np.testing.assert_allclose(grad_x, np.array([[0, 0, 0], [1, -1, 0], [1, 0, -1]]) / 3, rtol=1e-6)


def test_a_vanishing_probability_has_a_finite_loss() -> None:
    losses, _ = _softmax_losses([[0.0, -200.0]], [1])
    np.testing.assert_array_equal(losses, [200])


def test_equal_scores_lose_the_logarithm_of_their_number() -> None:
    losses, grad_x = _softmax_losses([[5.0] * 10], [3])
    np.testing.assert_allclose(losses, [np.log(10)], rtol=1e-6)
    np.testing.assert_allclose(grad_x.sum(), 0, atol=1e-7)


def test_a_nan_score_spoils_its_own_loss_alone() -> None:
    losses, grad_x = _softmax_losses([[0.0, np.nan], [0.0, 0.0]], [0, 0])
    np.testing.assert_array_equal(np.isnan(losses), [True, False])
    np.testing.assert_array_equal(np.isnan(grad_x).all(axis=1), [True, False])


def test_squared_error_is_the_mean_over_classes() -> None:
    loss = make_loss(LOSSES["mean_squared_error"](kind="mean_squared_error"), 4)
    losses = loss.forward(np.array([[1.0, 0, 0, 0], [0.0, 0, 2, 0]]), np.array([0, 3], np.int32))
    np.testing.assert_array_equal(losses, [0, (4 + 1) / 4])
    np.testing.assert_array_equal(loss.backward(), np.array([[0] * 4, [0, 0, 4, -2]]) / 8)


@pytest.mark.parametrize(
    ("scores", "label"), [([0, 2, 1], 1), ([3, 3, 3], 0), ([0, 1, 1], 1), ([-1, -2, -3], 0)]
)
def test_the_first_of_the_largest_scores_is_predicted(scores: list[float], label: int) -> None:
    (predicted,) = predictions(np.array([scores], np.float32))
    assert predicted == label
    assert predicted.dtype == np.int32
