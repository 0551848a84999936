"""IDX files, whole and broken in every way that users have met."""

from __future__ import annotations

import gzip
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dataset_files import IDX_NAMES, idx_bytes, idx_set, load

from pcnn_bench.datasets.idx import read_idx_images, read_idx_labels
from pcnn_bench.datasets.reading import CHUNK_BYTES
from pcnn_bench.errors import DataError

IMAGES = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
LABELS = np.array([1, 0], np.uint8)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def complaint(read: Callable[[Path], object], path: Path) -> str:
    """The error of reading: one line that begins with the path."""
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
def test_the_content_decides_whether_a_file_is_gzip(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    path = written(tmp_path / name, pack(idx_bytes(IMAGES)))
    np.testing.assert_array_equal(read_idx_images(path), IMAGES[:, np.newaxis], strict=True)
    path = written(tmp_path / name, pack(idx_bytes(LABELS)))
    np.testing.assert_array_equal(read_idx_labels(path), LABELS, strict=True)


def test_a_file_of_several_chunks_is_read_whole(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 1024, 1031), dtype=np.uint8)
    assert images.size > 3 * CHUNK_BYTES
    path = written(tmp_path / "images", gzip.compress(idx_bytes(images), 1))
    np.testing.assert_array_equal(read_idx_images(path)[:, 0], images, strict=True)


def test_a_gzip_file_of_several_members_is_read_whole(tmp_path: Path) -> None:
    data = idx_bytes(IMAGES)
    path = written(tmp_path / "images", gzip.compress(data[:20]) + gzip.compress(data[20:]))
    np.testing.assert_array_equal(read_idx_images(path)[:, 0], IMAGES)


def test_missing_pixels_are_counted(tmp_path: Path) -> None:
    message = complaint(read_idx_images, written(tmp_path / "images", idx_bytes(IMAGES)[:-1]))
    assert "expected 12 bytes after the header (images: 2 x 2 x 3), found 11;" in message


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
def test_trailing_bytes_are_counted(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = written(tmp_path / "images", pack(idx_bytes(IMAGES) + b"\0\0"))
    assert "expected 12 bytes after the header" in (message := complaint(read_idx_images, path))
    assert "found 14;" in message


def test_far_too_many_trailing_bytes_are_not_all_read(tmp_path: Path) -> None:
    path = written(tmp_path / "images", gzip.compress(idx_bytes(IMAGES) + bytes(1 << 24)))
    assert "found at least 1048588;" in complaint(read_idx_images, path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "images", b"")
    assert "expected a header of 16 bytes, found 0;" in complaint(read_idx_images, path)
    path = written(tmp_path / "images", gzip.compress(b""))
    assert "expected a header of 16 bytes, found 0;" in complaint(read_idx_images, path)
    assert "expected a header of 8 bytes, found 0;" in complaint(read_idx_labels, path)


def test_a_cut_header_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "images", idx_bytes(IMAGES)[:9])
    assert "expected a header of 16 bytes, found 9;" in complaint(read_idx_images, path)


def test_labels_in_the_place_of_images_are_named(tmp_path: Path) -> None:
    message = complaint(read_idx_images, written(tmp_path / "images", idx_bytes(LABELS)))
    assert "expected images (magic number 2051), found magic number 2049" in message
    assert "a file of labels in the place of images" in message
    message = complaint(read_idx_labels, written(tmp_path / "labels", idx_bytes(IMAGES)))
    assert "expected labels (magic number 2049), found magic number 2051" in message


def test_a_little_endian_file_is_recognised(tmp_path: Path) -> None:
    path = written(tmp_path / "images", struct.pack("<4I", 2051, 2, 2, 3) + bytes(12))
    message = complaint(read_idx_images, path)
    assert "found magic number 50855936: written little-endian" in message


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "images", b"<!DOCTYPE html><html>not found</html>")
    assert "not an IDX file of unsigned bytes" in complaint(read_idx_images, path)


def test_a_file_of_no_images_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "images", idx_bytes(np.zeros((0, 28, 28))))
    assert "found none (the header says 0 x 28 x 28)" in complaint(read_idx_images, path)
    path = written(tmp_path / "images", idx_bytes(np.zeros((5, 0, 28))))
    assert "found none (the header says 5 x 0 x 28)" in complaint(read_idx_images, path)
    path = written(tmp_path / "labels", idx_bytes(np.zeros(0)))
    assert "found none" in complaint(read_idx_labels, path)


@pytest.mark.parametrize("cut", [3, 15, 30, -9, -8, -1])
def test_a_cut_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    data = gzip.compress(idx_bytes(IMAGES))[:cut]
    message = complaint(read_idx_images, written(tmp_path / "images", data))
    assert f"expected a whole gzip file, found {len(data)} bytes" in message


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(idx_bytes(IMAGES)))
    data[-5] ^= 1  # the checksum
    path = written(tmp_path / "images", bytes(data))
    assert "gzip data are damaged" in complaint(read_idx_images, path)
    data[10] ^= 0xFF  # the compressed bytes
    path = written(tmp_path / "images", bytes(data))
    assert "gzip data are damaged" in complaint(read_idx_images, path)
    path = written(tmp_path / "images", gzip.compress(idx_bytes(IMAGES)) + b"garbage")
    assert "gzip data are damaged" in complaint(read_idx_images, path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gzip"])
def test_a_header_that_claims_terabytes_allocates_nothing(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    header = struct.pack(">4I", 2051, 2**31, 28, 28)
    path = written(tmp_path / "images", pack(header + bytes(100)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "expected 1683627180032 bytes after the header" in (
        message := complaint(read_idx_images, path)
    )
    assert "found 100;" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert "found a folder or a special file" in complaint(read_idx_images, tmp_path / "images")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "images")
    assert "found a folder or a special file" in complaint(read_idx_images, tmp_path / "images")


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / "images", idx_bytes(IMAGES))
    monkeypatch.setattr("builtins.open", refuse)  # root may read everything, so ask nobody
    with pytest.raises(DataError, match=r"images: cannot be read \(Permission denied\)"):
        read_idx_images(path)


def test_counts_of_images_and_labels_must_agree(tmp_path: Path) -> None:
    idx_set(tmp_path)
    path = written(tmp_path / IDX_NAMES[1], idx_bytes([0, 1, 2, 0]))
    message = complaint(lambda _: load("mnist", tmp_path), path)
    assert "expected 5 labels, one for each image in train-images-idx3-ubyte, found 4" in message


def test_sizes_of_training_and_test_images_must_agree(tmp_path: Path) -> None:
    idx_set(tmp_path)
    path = written(tmp_path / IDX_NAMES[2], idx_bytes(np.zeros((4, 3, 2))))
    message = complaint(lambda _: load("mnist", tmp_path), path)
    assert "expected images of 2 x 3 as in train-images-idx3-ubyte, found 3 x 2" in message


def test_a_label_beyond_the_networks_outputs_is_named_with_its_place(tmp_path: Path) -> None:
    idx_set(tmp_path)
    path = written(tmp_path / IDX_NAMES[3], idx_bytes([0, 2, 3, 9]))
    message = complaint(lambda _: load("mnist", tmp_path), path)
    assert "label 3 at index 2, expected 0 to 2, since the network has 3 outputs" in message


def test_labels_of_emnist_letters_begin_at_one(tmp_path: Path) -> None:
    names = tuple(f"emnist-letters-{name.replace('t10k', 'test')}" for name in IDX_NAMES)
    idx_set(tmp_path, names, first_label=1)
    assert load("emnist-letters", tmp_path).train_labels.tolist() == [0, 1, 2, 0, 1]
    path = written(tmp_path / names[3], idx_bytes([1, 2, 0, 1]))
    message = complaint(lambda _: load("emnist-letters", tmp_path), path)
    assert "label 0 at index 2, expected 1 to 3" in message
