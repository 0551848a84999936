"""Small data files for the tests of the data sets."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pcnn_bench.datasets import Dataset, folders, load_dataset

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx_bytes(array: npt.ArrayLike) -> bytes:
    """An array of bytes as an IDX file."""
    values = np.asarray(array, np.uint8)
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def idx_set(
    folder: Path,
    names: tuple[str, ...] = IDX_NAMES,
    *,
    shape: tuple[int, int] = (2, 3),
    counts: tuple[int, int] = (5, 4),
    first_label: int = 0,
    pack: bool = False,
) -> list[npt.NDArray[np.uint8]]:
    """Write a whole set of random images, labels counting up from ``first_label`` modulo 3."""
    rng = np.random.default_rng(1)
    arrays: list[npt.NDArray[np.uint8]] = []
    for count in counts:
        arrays.append(rng.integers(0, 256, (count, *shape), dtype=np.uint8))
        arrays.append((np.arange(count) % 3 + first_label).astype(np.uint8))
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, arrays, strict=True):
        data = idx_bytes(array)
        (folder / name).write_bytes(gzip.compress(data) if pack else data)
    return arrays


def load(set_name: str, folder: Path | None = None, **changes: Any) -> Dataset:
    """Load with everything at its default: three classes, images of 1 x 2 x 3."""
    options: dict[str, Any] = {
        "folder": folder,
        "train_count": None,
        "test_count": None,
        "transpose": False,
        "input_shape": (1, 2, 3),
        "seed": 0,
        "class_count": 3,
    }
    return load_dataset(set_name, **(options | changes))


def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let no data set be found but in packages; the parent of the cache and of the shared folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PCNN_BENCH_CACHE", raising=False)
    monkeypatch.delenv(folders.DATA_VARIABLE, raising=False)
    monkeypatch.setattr(folders, "SHARED_FOLDER", tmp_path / "shared")
    return tmp_path
