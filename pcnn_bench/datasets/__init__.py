"""Data sets: loading, finding and fetching them, and the order of samples all engines share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pcnn_bench import environment
from pcnn_bench.datasets.catalog import find_entry
from pcnn_bench.datasets.folders import DatasetStatus, available, locate, where
from pcnn_bench.datasets.reading import Bytes, Parts
from pcnn_bench.datasets.synthetic import make_synthetic, synthetic_counts
from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.errors import ConfigError, DataError
from pcnn_bench.network import Floats, Labels

__all__ = ["Dataset", "DatasetStatus", "available", "epoch_order", "fetch", "load_dataset", "where"]

_HISTOGRAM_IMAGES = 1024
"""Images counted at a time: bincount widens its input to 8 times the bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """The images and labels of one run.

    Images are raw bytes (N, C, H, W) of the network's input shape. ``mean`` and ``std`` have one
    value a channel, over the pixels of the training images used, scaled to 0..1, before padding; a
    channel that is the same everywhere has ``std`` 1. ``sha256`` covers shapes and bytes of the
    four arrays. ``folder`` is where the data were found, None for ``synthetic``, on which no
    accuracy means anything (``has_accuracy``).
    """

    name: str
    train_images: Bytes
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels
    class_count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str
    has_accuracy: bool = True
    folder: Path | None = None

    def normalize(self, images: Bytes) -> Floats:
        """Bytes (n, C, H, W) -> (x / 255 - mean) / std, a new C-contiguous float32 array."""
        std = np.asarray(self.std)
        scale = (1 / (255 * std)).astype(np.float32)[:, np.newaxis, np.newaxis]
        shift = (np.asarray(self.mean) / std).astype(np.float32)[:, np.newaxis, np.newaxis]
        x: Floats = np.multiply(images, scale, dtype=np.float32, order="C")
        x -= shift
        return x


def load_dataset(
    set_name: str,
    *,
    folder: Path | None,
    train_count: int | None,
    test_count: int | None,
    transpose: bool,
    input_shape: tuple[int, int, int],
    seed: int,
    class_count: int,
) -> Dataset:
    """Load a set for a network of input ``input_shape`` (C, H, W) and ``class_count`` outputs.

    ``train_count`` and ``test_count`` take the first so many images, in the order of the files (of
    ``mnist-5k``: of its fixed split); ``synthetic`` makes so many. ``transpose`` swaps H and W, as
    EMNIST needs. Smaller images get zeros at the bottom and at the right (28 x 28 in 29 x 29).
    ``seed`` concerns ``synthetic`` alone.

    Raises:
        ConfigError: no set has that name, or a count is below 1.
        DataError: the set is missing or broken, does not fit the network, has too few images, or
            needs more memory than there is.
    """
    entry = find_entry(set_name)
    for key, count in (("train_count", train_count), ("test_count", test_count)):
        if count is not None and count < 1:
            raise ConfigError(f"data.{key}: expected 1 or more, found {count}")
    try:
        if entry.read is None:
            found = None
            train, test = counts = synthetic_counts(train_count, test_count)
            _require_memory(sum(counts), input_shape, set_name)
            parts = make_synthetic(input_shape, class_count, train, test, seed)
        else:
            found, paths = locate(entry, folder)
            parts = entry.read(paths, class_count)
            parts = _take(parts, set_name, train_count, test_count, transpose)
            count = len(parts.train_labels) + len(parts.test_labels)
            _require_memory(count, input_shape, set_name)
        mean, std = _channel_statistics(parts.train_images)
        parts = parts._replace(
            train_images=_fitted(parts.train_images, input_shape, set_name),
            test_images=_fitted(parts.test_images, input_shape, set_name),
        )
    except MemoryError as error:
        raise DataError(
            f"data set {set_name}: needs more memory than there is; "
            "lower data.train_count or data.test_count"
        ) from error
    return Dataset(
        set_name, *parts, class_count, mean, std, _identity(parts), entry.read is not None, found
    )


def epoch_order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits ``count`` training images; the same for every engine."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def fetch(set_name: str, report: Callable[[str], None] = lambda line: None) -> Path:
    """Bring a set into the cache; ``fetching.fetch`` says how, and what it raises."""
    from pcnn_bench.datasets import fetching  # only here, since it imports an HTTP client

    return fetching.fetch(set_name, report)


def _require_memory(count: int, input_shape: tuple[int, int, int], set_name: str) -> None:
    """Raise unless so many images fit into memory, as bytes and, normalised, as float32.

    Raises:
        DataError: names the bytes; a system that promises memory which it lacks ends the process.
    """
    needed = count * prod(input_shape) * (1 + np.dtype(np.float32).itemsize)
    available, _ = environment.memory_bytes()
    if needed > available:
        raise DataError(
            f"data set {set_name}: {count} images of {' x '.join(map(str, input_shape))} need "
            f"{needed / MEBIBYTE:,.1f} MiB of memory, {available / MEBIBYTE:,.1f} are available; "
            "lower data.train_count or data.test_count, or make network.input smaller"
        )


def _take(
    parts: Parts, set_name: str, train_count: int | None, test_count: int | None, transpose: bool
) -> Parts:
    """The first images of each part, H and W swapped where asked.

    Raises:
        DataError: a part has fewer images than are asked for.
    """
    for key, count, labels in (
        ("train_count", train_count, parts.train_labels),
        ("test_count", test_count, parts.test_labels),
    ):
        if count is not None and count > len(labels):
            raise DataError(
                f"data.{key}: {count} images asked for, data set {set_name} has {len(labels)}; "
                f"give at most {len(labels)}, or null for all"
            )
    axes = (0, 1, 3, 2) if transpose else (0, 1, 2, 3)
    return Parts(
        parts.train_images[:train_count].transpose(axes),
        parts.train_labels[:train_count],
        parts.test_images[:test_count].transpose(axes),
        parts.test_labels[:test_count],
    )


def _fitted(images: Bytes, input_shape: tuple[int, int, int], set_name: str) -> Bytes:
    """Images of the network's input shape, contiguous, with zeros at the bottom and at the right.

    Raises:
        DataError: the channels differ, or the images are larger than the input.
    """
    count, channels, height, width = images.shape
    if channels != input_shape[0] or height > input_shape[1] or width > input_shape[2]:
        raise DataError(
            f"network.input: expected room for the images of data set {set_name}, "
            f"[{channels}, {height}, {width}], found {list(input_shape)}; H and W may be larger"
        )
    if images.shape[1:] == input_shape:
        return np.ascontiguousarray(images)
    fitted = np.zeros((count, *input_shape), np.uint8)
    fitted[:, :, :height, :width] = images
    return fitted


def _channel_statistics(images: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, pixels scaled to 0..1, from a histogram."""
    means, stds = [], []
    for channel in images.swapaxes(0, 1):
        histogram = np.zeros(256, np.int64)
        for start in range(0, len(channel), _HISTOGRAM_IMAGES):
            pixels = channel[start : start + _HISTOGRAM_IMAGES].ravel()
            histogram += np.bincount(pixels, minlength=256)
        values = np.arange(256) / 255
        mean = float(np.average(values, weights=histogram))
        variance = float(np.average((values - mean) ** 2, weights=histogram))
        means.append(mean)
        # A channel without contrast is only shifted; its variance may be a rounding error, not 0.
        stds.append(variance**0.5 if np.count_nonzero(histogram) > 1 else 1.0)
    return tuple(means), tuple(stds)


def _identity(parts: Parts) -> str:
    """SHA-256 of the shapes and bytes of the four arrays, in hexadecimal."""
    digest = hashlib.sha256()
    for array in parts:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
