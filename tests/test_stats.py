"""Medians, spreads and ratios against answers known by hand or by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from pcnn_bench import stats


def test_median_of_an_odd_and_an_even_number_of_samples() -> None:
    assert stats.median([5, 1, 9]) == 5
    assert stats.median([5, 1, 9, 7]) == 6


def test_mad_is_unscaled() -> None:
    # deviations from 2: 1 1 0 0 2 4 7 -> middle 1
    assert stats.mad([1, 1, 2, 2, 4, 6, 9]) == 1


def test_mad_of_equal_samples_is_zero() -> None:
    assert stats.mad([3.0, 3.0, 3.0]) == 0
    assert stats.relative_mad([3.0, 3.0, 3.0]) == 0


def test_relative_mad_is_a_fraction_of_the_median() -> None:
    assert stats.relative_mad([90, 100, 110]) == pytest.approx(0.1)


def test_quartiles_interpolate_between_samples() -> None:
    assert stats.quartiles([1, 2, 3, 4]) == (1.75, 3.25)


@pytest.mark.parametrize("samples", [[], [[1.0, 2.0]], [1.0, float("nan")], [1.0, float("inf")]])
@pytest.mark.parametrize("summary", [stats.median, stats.mad, stats.quartiles])
def test_no_samples_and_samples_that_are_no_numbers_are_refused(
    summary: object, samples: object
) -> None:
    assert callable(summary)
    with pytest.raises(ValueError, match="sample"):
        summary(samples)


def test_relative_mad_of_a_zero_median_is_refused() -> None:
    with pytest.raises(ValueError, match="median is 0"):
        stats.relative_mad([0.0, 0.0, 1.0])


def test_speedup_of_constant_times_is_exact() -> None:
    rng = np.random.default_rng(0)
    assert stats.speedup([80.0] * 5, [20.0] * 4, rng) == (4.0, 4.0, 4.0)


def test_speedup_below_one_where_cuda_is_slower() -> None:
    low, ratio, high = stats.speedup([10, 11, 12], [20, 22, 24], np.random.default_rng(0))
    assert ratio == 0.5
    assert low <= ratio <= high < 1


def test_speedup_repeats_with_the_same_seed_and_not_with_another() -> None:
    baseline, cuda = np.geomspace(90, 110, 20), np.geomspace(9, 11, 20)
    first = stats.speedup(baseline, cuda, np.random.default_rng(3))
    assert stats.speedup(baseline, cuda, np.random.default_rng(3)) == first
    assert stats.speedup(baseline, cuda, np.random.default_rng(4))[1] == first[1]


@pytest.mark.parametrize("count", [2, 3, 8, 15])
def test_interval_is_that_of_resamples_drawn_one_by_one(count: int) -> None:
    rng = np.random.default_rng(count)
    baseline, cuda = rng.lognormal(3, 0.3, count), rng.lognormal(1, 0.2, count)
    low, ratio, high = stats.speedup(baseline, cuda, rng)
    size = (40_000, count)
    drawn = np.median(rng.choice(baseline, size), axis=1) / np.median(
        rng.choice(cuda, size), axis=1
    )
    assert ratio == np.median(baseline) / np.median(cuda)
    # Probability below each end, where ties of the discrete bootstrap leave a step around it.
    for end, probability in ((low, 0.025), (high, 0.975)):
        below, up_to = np.mean(drawn < end * (1 - 1e-9)), np.mean(drawn <= end * (1 + 1e-9))
        assert below - 0.006 <= probability <= up_to + 0.006


def test_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        low, _, high = stats.speedup(rng.normal(100, 5, 25), rng.normal(10, 0.5, 25), rng)
        hits += low <= 10 <= high
    # 200 trials at 95 % have a standard deviation of 3.1; four of them, and the bootstrap of a
    # median is known to cover a little too much.
    assert hits >= 178


def test_interval_narrows_with_more_samples() -> None:
    rng = np.random.default_rng(6)
    few = stats.speedup(rng.normal(100, 5, 10), rng.normal(10, 0.5, 10), rng)
    many = stats.speedup(rng.normal(100, 5, 1000), rng.normal(10, 0.5, 1000), rng)
    assert many[2] - many[0] < (few[2] - few[0]) / 3


@pytest.mark.parametrize(
    ("baseline", "cuda", "message"),
    [
        ([1.0], [1.0, 2.0], "baseline: 1 sample"),
        ([1.0, 2.0], [1.0], "cuda: 1 sample"),
        ([1.0, 2.0], [], "at least one"),
        ([0.0, 1.0], [1.0, 2.0], "baseline: a time of 0"),
        ([1.0, 2.0], [-1.0, 2.0], "cuda: a time of -1"),
        ([1.0, float("nan")], [1.0, 2.0], "not finite"),
        ([1.0, 2.0], [1.0, float("inf")], "not finite"),
    ],
)
def test_speedup_of_too_few_or_impossible_times_is_refused(
    baseline: list[float], cuda: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stats.speedup(baseline, cuda, np.random.default_rng(0))
