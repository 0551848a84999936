"""CIFAR-10, binary version: records of a label byte and an image's red, green and blue planes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; the data set's
page, "Binary version".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from pcnn_bench.datasets.reading import Bytes, Parts, checked_labels, opened, read_up_to
from pcnn_bench.errors import DataError
from pcnn_bench.network import Labels

IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + prod(IMAGE_SHAPE)
_MOST_RECORDS = 60_000
"""Images in the whole set; no file of it can hold more, so none is read further."""


def read_cifar10(paths: Sequence[Path], class_count: int) -> Parts:
    """The training batches in order, then the test batch (the last path).

    Raises:
        DataError: a file is empty, cut short or too long, or a label is out of range.
    """
    *train, (test_images, test_labels) = [_read_batch(path, class_count) for path in paths]
    return Parts(
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        test_images,
        test_labels,
    )


def _read_batch(path: Path, class_count: int) -> tuple[Bytes, Labels]:
    """Images (N, 3, 32, 32), a view of the records, and labels (N,)."""
    with opened(path) as stream:
        data = read_up_to(stream, _MOST_RECORDS * RECORD_BYTES + 1)
    if not data or len(data) % RECORD_BYTES:
        raise DataError(
            f"{path}: expected records of {RECORD_BYTES} bytes (a label and 3 x 32 x 32 pixels), "
            f"at most {_MOST_RECORDS} of them, found {len(data)} bytes; replace the file"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
    labels = checked_labels(records[:, 0], path, class_count)
    return records[:, 1:].reshape(-1, *IMAGE_SHAPE), labels
