"""Summaries of timing samples: medians, spreads, and ratios that carry their uncertainty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import median_abs_deviation

Samples = npt.NDArray[np.float64]

RESAMPLES = 10_000
"""Bootstrap resamples: the ends of a 95 % interval then rest on 250 resamples each."""
MIN_SAMPLES = 2
"""One sample has no spread, so no interval."""


def _samples(values: npt.ArrayLike) -> Samples:
    """``values`` as a non-empty vector of finite float64.

    Raises:
        ValueError: it is empty, not a vector, or holds a NaN or an infinity.
    """
    samples = np.asarray(values, np.float64)
    if samples.ndim != 1 or not samples.size:
        raise ValueError(f"samples of shape {samples.shape}; a vector of at least one is needed")
    if not np.isfinite(samples).all():
        raise ValueError("a sample is not finite")
    return samples


def median(values: npt.ArrayLike) -> float:
    """The middle sample, or the mean of the two in the middle.

    Raises:
        ValueError: no samples, or one that is not finite.
    """
    return float(np.median(_samples(values)))


def mad(values: npt.ArrayLike) -> float:
    """Median absolute deviation from the median, unscaled: half of the samples lie this close.

    Raises:
        ValueError: no samples, or one that is not finite.
    """
    return float(median_abs_deviation(_samples(values)))


def relative_mad(values: npt.ArrayLike) -> float:
    """``mad`` over ``median``: the noise as a fraction.

    Raises:
        ValueError: no samples, one that is not finite, or a median that is not positive.
    """
    centre = median(values)
    if not centre > 0:
        raise ValueError(f"the median is {centre:g}; a positive one is needed")
    return mad(values) / centre


def quartiles(values: npt.ArrayLike) -> tuple[float, float]:
    """The 25th and 75th percentile, by linear interpolation.

    Raises:
        ValueError: no samples, or one that is not finite.
    """
    low, high = np.quantile(_samples(values), (0.25, 0.75))
    return float(low), float(high)


def speedup(
    baseline_us: npt.ArrayLike, cuda_us: npt.ArrayLike, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Ratio of medians with a 95 % bootstrap interval: (low, ratio, high); above 1 is faster.

    The interval is the percentile bootstrap's. Samples count as independent; consecutive steps are
    not quite, so it is a little too narrow.

    Raises:
        ValueError: fewer than two samples on a side, or a time that is not positive and finite.
    """
    sides = []
    for side, values in (("baseline", baseline_us), ("cuda", cuda_us)):
        samples = _samples(values)
        if samples.size < MIN_SAMPLES:
            raise ValueError(f"{side}: {samples.size} sample; at least {MIN_SAMPLES} are needed")
        if not (samples > 0).all():
            raise ValueError(f"{side}: a time of {samples.min():g}; times are positive")
        sides.append(samples)
    baseline, cuda = sides
    ratios = _resampled_medians(baseline, rng) / _resampled_medians(cuda, rng)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(np.median(baseline) / np.median(cuda)), float(high)


def _resampled_medians(samples: Samples, rng: np.random.Generator) -> Samples:
    """The medians of ``RESAMPLES`` bootstrap resamples, without drawing the resamples.

    A resample is ``ordered[floor(n U)]`` for n uniform U, so its k-th smallest value is
    ``ordered[floor(n U(k))]``, and U(k), the k-th smallest uniform, is Beta(k, n + 1 - k). The next
    is the least of the n - k that are uniform above it. The cost does not grow with n.

    Source: Efron 1979, Bootstrap Methods: Another Look at the Jackknife (the sample median).
    """
    ordered, n = np.sort(samples), samples.size
    k = (n + 1) // 2
    middle = rng.beta(k, n + 1 - k, RESAMPLES)
    medians: Samples = ordered[_indices(middle, n)]
    if n % 2 == 0:
        above = 1 - (1 - middle) * rng.random(RESAMPLES) ** (1 / (n - k))
        medians = (medians + ordered[_indices(above, n)]) / 2
    return medians


def _indices(uniform: Samples, n: int) -> npt.NDArray[np.intp]:
    """floor(n U), kept below n where U rounds to 1."""
    return np.minimum((n * uniform).astype(np.intp), n - 1)
