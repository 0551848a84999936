"""Where data sets are looked for on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pcnn_bench import environment
from pcnn_bench.datasets.catalog import CATALOG, SYNTHETIC, Entry, find_entry
from pcnn_bench.errors import DataError

DATA_VARIABLE = "PCNN_BENCH_DATA"
SHARED_FOLDER = Path("/usr/share/datasets")
"""Where Linux distributions put the data sets that they package."""


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """Whether one set is here.

    ``folder`` and ``byte_count`` are None where it is not, ``remedy`` is empty where it is. A set
    that is made, not read (``synthetic``), has neither folder nor remedy.
    """

    name: str
    description: str
    folder: Path | None
    byte_count: int | None
    remedy: str


def available() -> list[DatasetStatus]:
    """Every set, found or not, in the catalogue's order; reads no data."""
    return [_status(entry) for entry in CATALOG.values()]


def where(set_name: str) -> list[tuple[Path, bool]]:
    """The folders searched for a set, in order, and whether each one has all of its files.

    Raises:
        ConfigError: no set has that name.
    """
    entry = find_entry(set_name)
    return [(folder, _paths_in(entry, folder) is not None) for folder in _searched(entry, None)]


def cache_folder(entry: Entry) -> Path:
    """Where a fetched set is kept."""
    return environment.cache_folder("data") / entry.name


def locate(entry: Entry, folder: Path | None) -> tuple[Path, list[Path]]:
    """The first folder with files of the set, and one path for each of ``entry.files``.

    ``folder`` is searched before all others. A folder that has some of the files stops the search:
    another copy of the set is not what was meant.

    Raises:
        DataError: ``folder`` is a file, no folder has any of the files, or the first that has some
            lacks others.
    """
    searched = list(_searched(entry, folder))
    if folder is not None and os.path.isfile(searched[0]):
        raise DataError(
            f"data.folder: expected a folder, found the file {searched[0]}; name its folder"
        )
    for place in searched:
        found = [_first_existing(place, names) for names in entry.files]
        lacking = [names[0] for names, path in zip(entry.files, found, strict=True) if path is None]
        if not lacking:
            return place, [path for path in found if path is not None]
        if len(lacking) < len(found):
            raise DataError(
                f"{place}: has files of data set {entry.name} but lacks {', '.join(lacking)}; "
                f"complete or remove them, or {entry.remedy}"
            )
    raise DataError(
        f"data set {entry.name}: not found in {', '.join(map(str, searched))}; {entry.remedy}, "
        "or name its folder in data.folder"
    )


def _searched(entry: Entry, folder: Path | None) -> Iterator[Path]:
    """The folders in order of preference."""
    if entry.name == SYNTHETIC:
        return
    if folder is not None:
        yield Path(os.path.expanduser(folder))  # Path's own would raise for an unknown ~user
    if root := os.environ.get(DATA_VARIABLE):
        yield Path(os.path.expanduser(root)) / entry.name
    yield cache_folder(entry)
    yield SHARED_FOLDER / entry.name
    if entry.package:
        # find_spec only locates: importing the package could cost more than reading its data
        spec = find_spec(entry.package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(place) / entry.package_folder


def _first_existing(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first name that is a file; else the first that is anything, for the reader to refuse."""
    paths = [folder / name for name in names]
    for exists in (os.path.isfile, os.path.exists):
        for path in paths:
            if exists(path):
                return path
    return None


def _paths_in(entry: Entry, folder: Path) -> list[Path] | None:
    """One file for each needed, or None if the folder lacks any."""
    found = [_first_existing(folder, names) for names in entry.files]
    paths = [path for path in found if path is not None and path.is_file()]
    return paths if len(paths) == len(found) else None


def _status(entry: Entry) -> DatasetStatus:
    """What ``available`` says of one set."""
    for folder in _searched(entry, None):
        paths = _paths_in(entry, folder)
        if paths is not None:
            byte_count = sum(path.stat().st_size for path in paths)
            return DatasetStatus(entry.name, entry.description, folder, byte_count, "")
    return DatasetStatus(entry.name, entry.description, None, None, entry.remedy)
