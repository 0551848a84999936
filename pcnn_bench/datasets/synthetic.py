"""Random images and labels of any shape, for pure speed: an accuracy on them means nothing."""

from __future__ import annotations

import numpy as np

from pcnn_bench.datasets.reading import Parts

TRAIN_COUNT = 10_000
TEST_COUNT = 1_000
"""Sizes where the config names none: as many test images as are enough to time evaluation."""


def synthetic_counts(train_count: int | None, test_count: int | None) -> tuple[int, int]:
    """How many training and test images are made; None takes the usual number."""
    return (
        TRAIN_COUNT if train_count is None else train_count,
        TEST_COUNT if test_count is None else test_count,
    )


def make_synthetic(
    input_shape: tuple[int, int, int], class_count: int, train: int, test: int, seed: int
) -> Parts:
    """Uniform bytes (N, C, H, W) and uniform labels; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (train + test, *input_shape), dtype=np.uint8)
    labels = rng.integers(0, class_count, train + test, dtype=np.int32)
    return Parts(images[:train], labels[:train], images[train:], labels[train:])
