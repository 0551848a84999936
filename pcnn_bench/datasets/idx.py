"""IDX files, the format of MNIST and its relatives: a big-endian header, then unsigned bytes.

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database, "File formats".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from pcnn_bench.datasets.reading import Bytes, Parts, checked_labels, opened, read_up_to
from pcnn_bench.errors import DataError
from pcnn_bench.network import Labels

# Two zero bytes, the element type (8: unsigned byte), the number of dimensions.
IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801
_NAMES = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}

_COUNTED_EXCESS = 1 << 20
"""Trailing bytes are counted up to here, to give the message the exact number but not for ever."""


def read_idx_images(path: Path) -> Bytes:
    """Images of one IDX file, raw or gzip: (N, 1, H, W).

    Raises:
        DataError: the file is not a whole IDX file of images, or holds none.
    """
    return _read(path, IMAGES_MAGIC)[:, np.newaxis]


def read_idx_labels(path: Path) -> Bytes:
    """Labels of one IDX file, raw or gzip: (N,).

    Raises:
        DataError: the file is not a whole IDX file of labels, or holds none.
    """
    return _read(path, LABELS_MAGIC)


def read_idx_set(paths: Sequence[Path], class_count: int, *, first_label: int = 0) -> Parts:
    """A data set of four IDX files: training images and labels, test images and labels.

    Raises:
        DataError: a file is broken, two of them do not belong together, or a label is out of range.
    """
    train_path, train_labels_path, test_path, test_labels_path = paths
    train_images, train_labels = _read_pair(train_path, train_labels_path, class_count, first_label)
    test_images, test_labels = _read_pair(test_path, test_labels_path, class_count, first_label)
    if test_images.shape[1:] != train_images.shape[1:]:
        raise DataError(
            f"{test_path}: expected images of {_sizes(train_images.shape[2:])} as in "
            f"{train_path.name}, found {_sizes(test_images.shape[2:])}; "
            "replace the file that is not of this set"
        )
    return Parts(train_images, train_labels, test_images, test_labels)


def _read_pair(
    images_path: Path, labels_path: Path, class_count: int, first_label: int
) -> tuple[Bytes, Labels]:
    """Images and their labels, of which there must be as many."""
    images = read_idx_images(images_path)
    labels = read_idx_labels(labels_path)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: expected {len(images)} labels, one for each image in "
            f"{images_path.name}, found {len(labels)}; replace the file that is not of this set"
        )
    return images, checked_labels(labels, labels_path, class_count, first_label)


def _read(path: Path, magic: int) -> Bytes:
    """The array of one file, its shape as the header has it."""
    with opened(path) as stream:
        shape = _read_shape(stream.read(_header_bytes(magic)), path, magic)
        byte_count = prod(shape)
        data = read_up_to(stream, byte_count + _COUNTED_EXCESS)
    if len(data) != byte_count:
        at_least = "at least " if len(data) == byte_count + _COUNTED_EXCESS else ""
        raise DataError(
            f"{path}: expected {byte_count} bytes after the header ({_NAMES[magic]}: "
            f"{_sizes(shape)}), found {at_least}{len(data)}; replace the file"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _header_bytes(magic: int) -> int:
    """The magic number and one 32-bit size a dimension, whose number is the magic's last byte."""
    return 4 * (1 + (magic & 0xFF))


def _read_shape(header: bytes, path: Path, magic: int) -> tuple[int, ...]:
    """Check a header and give the sizes that it states."""
    if len(header) >= 4:
        _check_magic(header[:4], path, magic)
    if len(header) < _header_bytes(magic):
        raise DataError(
            f"{path}: expected a header of {_header_bytes(magic)} bytes, found {len(header)}; "
            "the file is empty or cut short: replace it"
        )
    shape = struct.unpack(f">{magic & 0xFF}I", header[4:])
    if 0 in shape:
        raise DataError(
            f"{path}: expected {_NAMES[magic]}, found none (the header says {_sizes(shape)}); "
            "replace the file"
        )
    return shape


def _check_magic(found: bytes, path: Path, magic: int) -> None:
    """Raise unless the file begins as it should; says what it seems to be instead."""
    value = int.from_bytes(found, "big")
    if value == magic:
        return
    if value in _NAMES:
        guess = f"a file of {_NAMES[value]} in the place of {_NAMES[magic]}"
    elif int.from_bytes(found, "little") in _NAMES:
        guess = "written little-endian, IDX is big-endian"
    else:
        guess = "not an IDX file of unsigned bytes"
    raise DataError(
        f"{path}: expected {_NAMES[magic]} (magic number {magic}), found magic number {value}: "
        f"{guess}; replace the file"
    )


def _sizes(shape: Sequence[int]) -> str:
    """A shape for a message: 60000 x 28 x 28."""
    return " x ".join(map(str, shape))
