"""Downloading data sets into the cache: only when asked, checked before anything is kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pooch

from pcnn_bench.datasets.catalog import Download, find_entry
from pcnn_bench.datasets.folders import cache_folder
from pcnn_bench.errors import ConfigError, DataError

SUMS_FILE = "SHA256SUMS"
"""Written last, in the format of sha256sum: a folder with it was filled completely."""


def fetch(set_name: str, report: Callable[[str], None]) -> Path:
    """Bring a data set into the cache and return its folder; no download if it is there intact.

    Files are downloaded beside the folder and moved in when all of them have the right SHA-256, so
    a failure or an interruption leaves the cache as it was. ``report`` gets a line before each
    download.

    Raises:
        ConfigError: no set has that name, or it is not one to download.
        DataError: every mirror of a file failed or sent something else, or the cache cannot be
            written.
    """
    entry = find_entry(set_name)
    if not entry.downloads:
        remedy = f"; {entry.remedy}" if entry.remedy else ""
        raise ConfigError(f"data set {set_name}: there is nothing to download{remedy}")
    target = cache_folder(entry)
    if _is_intact(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=target.parent) as staging:
            paths = [
                path
                for download in entry.downloads
                for path in _download(download, Path(staging), report)
            ]
            sums = Path(staging) / SUMS_FILE
            sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in paths))
            target.mkdir(exist_ok=True)
            for path in (*paths, sums):
                os.replace(path, target / path.name)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror or error}); free the place, or download "
            f"{set_name} elsewhere and name its folder in data.folder"
        ) from error
    return target


def _download(download: Download, folder: Path, report: Callable[[str], None]) -> list[Path]:
    """Fetch one file from the first mirror that has it; the data files that it is or holds."""
    pooch.get_logger().setLevel("WARNING")  # it announces each download itself
    failures = []
    for url in download.urls:
        report(f"downloading {url}")
        try:
            archive = pooch.retrieve(url, download.sha256, download.file, folder)
        except (OSError, ValueError) as error:
            # requests' errors are OSErrors; a ValueError is pooch's word for another hash
            failures.append(f"{url}: {_reason(error)}")
            continue
        return _unpack(Path(archive), download.members)
    raise DataError(
        f"{download.file}: cannot be downloaded ({'; '.join(failures)}); check the network, or "
        "bring the data here by hand and name their folder in data.folder"
    )


def _unpack(archive: Path, members: tuple[str, ...]) -> list[Path]:
    """The data files of a download whose hash was right."""
    if not members:
        return [archive]
    unpack = (pooch.Unzip if archive.suffix == ".zip" else pooch.Untar)(members=list(members))
    return [Path(path) for path in unpack(str(archive), "download", None)]


def _reason(error: OSError | ValueError) -> str:
    """Why a mirror failed, in a few words: the messages of the libraries span lines."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "sent a file with another SHA-256"


def _is_intact(folder: Path) -> bool:
    """Whether every file that was fetched into the folder is there and unchanged."""
    try:
        lines = (folder / SUMS_FILE).read_text().splitlines()
        pairs = [line.split(maxsplit=1) for line in lines]
        return bool(pairs) and all(_sha256(folder / name) == sha256 for sha256, name in pairs)
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
