"""What every reader of data files shares: opening them safely, and the parts that they return."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from pcnn_bench.errors import DataError
from pcnn_bench.network import Labels

Bytes = npt.NDArray[np.uint8]

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
"""Memory grows by this while reading: by what the file holds, not by what its header claims."""


class Parts(NamedTuple):
    """A data set as its files hold it: images (N, C, H, W), labels (N,) from 0."""

    train_images: Bytes
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open for reading, gunzipped if the content is gzip, whatever the name says.

    Raises:
        DataError: the path is no regular file or cannot be read, or (while the body reads) its
            gzip data are cut short or damaged.
    """
    # Opening a pipe would wait for ever, so all but regular files are refused before.
    if not os.path.isfile(path):
        raise DataError(f"{path}: expected a file, found a folder or a special file; replace it")
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            if is_gzip:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield cast(IO[bytes], unpacked)
            else:
                yield file
    except EOFError as error:
        raise DataError(
            f"{path}: expected a whole gzip file, found {path.stat().st_size} bytes that stop "
            "before its end; the file is cut short: replace it"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip data are damaged ({error}); replace the file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_up_to(stream: IO[bytes], byte_count: int) -> bytearray:
    """Read ``byte_count`` bytes, or as many as there are."""
    data = bytearray()
    while chunk := stream.read(min(CHUNK_BYTES, byte_count - len(data))):
        data += chunk
    return data


def checked_labels(labels: Bytes, path: Path, class_count: int, first_label: int = 0) -> Labels:
    """Labels of a file as int32 that begin at 0, where the file begins at ``first_label``.

    Raises:
        DataError: a label is outside the network's classes; names the first one and its position.
    """
    shifted = labels.astype(np.int32) - first_label
    outside = (shifted < 0) | (shifted >= class_count)
    if outside.any():
        index = int(outside.argmax())
        raise DataError(
            f"{path}: label {labels[index]} at index {index}, expected {first_label} to "
            f"{first_label + class_count - 1}, since the network has {class_count} outputs; "
            "give the last layer one output a class, or replace the file"
        )
    return shifted
