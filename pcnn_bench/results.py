"""The run folder: its rows, writing it so that nothing is half written, and the way to read it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcnn_bench.errors import ResultsError

if TYPE_CHECKING:
    from pcnn_bench.results_reading import Results

SCHEMA_VERSION = 1


MERGES = "with:"
"""Flag of a row whose phase does the work of another too, as ``with:backward``."""


def merged_phases(flags: str) -> list[str]:
    """The phases that a row's flags say it does beside its own."""
    return [flag.removeprefix(MERGES) for flag in flags.split(";") if flag.startswith(MERGES)]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """layers.csv: one phase of one stage over its steady samples; stage ``*`` is the whole step."""

    engine: str
    device: str
    rung: str
    stage: str
    layers: str
    op: str
    direction: str
    phase: str
    batch_size: int
    sample_count: int
    warmup_count: int
    median_us: float | None
    mad_us: float | None
    min_us: float | None
    p25_us: float | None
    p75_us: float | None
    first_us: float | None
    compile_ms: float | None
    flop_count: int | None
    byte_count: int | None
    gflop_per_s: float | None
    gbyte_per_s: float | None
    clock: str
    flags: str
    status: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """samples.csv: one timed call, warm-ups included.

    ``time_us`` is per step where a sample spans several.
    """

    engine: str
    device: str
    rung: str
    stage: str
    phase: str
    batch_size: int
    repeat: int
    step_count: int
    is_warmup: bool
    time_us: float
    flags: str


@dataclass(frozen=True, slots=True)
class EpochRow:
    """epochs.csv: ``wall_s`` is this epoch's training time alone, evaluation excluded."""

    engine: str
    device: str
    rung: str
    epoch: int
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    wall_s: float
    images_per_s: float
    status: str


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """memory.csv: one tensor; ``peak`` rows give the most held at one time."""

    engine: str
    device: str
    rung: str
    category: str
    stage: str
    tensor: str
    byte_count: int
    first_step: int | None
    last_step: int | None
    offset: int | None


@dataclass(frozen=True, slots=True)
class CheckRow:
    """checks.csv: one comparison with the baseline, made before that stage was timed."""

    engine: str
    device: str
    rung: str
    stage: str
    quantity: str
    shape: str
    max_abs_error: float
    allowed_error: float
    status: str


Row = LayerRow | SampleRow | EpochRow | MemoryRow | CheckRow
TABLES: dict[str, type[Row]] = {
    "layers": LayerRow,
    "samples": SampleRow,
    "epochs": EpochRow,
    "memory": MemoryRow,
    "checks": CheckRow,
}


def _cell(value: object) -> object:
    """Absent is empty, never 0; floats keep all their digits; booleans are 0 and 1."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    return repr(float(value)) if isinstance(value, float) else value


def _table_text(kind: type[Row], rows: Iterable[Row]) -> str:
    """The CSV text of one table, header included."""
    names = [field.name for field in fields(kind)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue()


class RunFolder:
    """A run folder being written; each file is replaced whole, so no reader sees half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Make ``parent/name``, or ``name-2`` ... if that exists, and prove that it is writable.

        Raises:
            ResultsError: the folder cannot be made or written.
        """
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 1000):
                path = parent / (name if attempt == 1 else f"{name}-{attempt}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                folder = cls(path)
                folder.write_text("run.json", "{}\n")
                return folder
        except OSError as error:
            raise ResultsError(
                f"{parent}: cannot write results here ({error.strerror or error});"
                " choose a folder with --output"
            ) from error
        raise ResultsError(
            f"{parent / name}: 999 runs of this name exist; choose a folder with --output"
        )

    def write_text(self, name: str, text: str) -> None:
        """Replace one file by ``text``."""
        self.write_bytes(name, text.encode("utf-8"))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace one file by ``data``.

        Raises:
            ResultsError: the disk is full or the folder is gone; what was there before is intact.
        """
        target = self.path / name
        partial = target.with_name(f".{target.name}.partial")
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except OSError as error:
            with suppress(OSError):  # the folder itself may be gone, or be a file
                partial.unlink(missing_ok=True)
            if not self.path.is_dir():  # and it is not made anew: half a run folder would mislead
                raise ResultsError(
                    f"{self.path}: the folder is gone, and what was in it; run again"
                ) from error
            raise ResultsError(
                f"{target}: cannot be written ({error.strerror or error});"
                " what was written before is kept"
            ) from error

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace one JSON file; NaN and infinity are refused, since other readers refuse them."""
        self.write_text(name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def force_json(self, name: str, content: Mapping[str, Any]) -> None:
        """As ``write_json``; where the disk is too full for a second copy, over the first one.

        Without indentation the block that the file has is mostly enough. A reader may meet half of it.

        Raises:
            ResultsError: the file or the folder is gone, or cannot be written even so.
        """
        try:
            self.write_json(name, content)
        except ResultsError as refusal:
            try:
                with open(self.path / name, "r+b") as file:
                    file.write(json.dumps(content, allow_nan=False).encode("utf-8"))
                    file.truncate()
            except OSError:
                raise refusal from None

    def write_table(self, name: str, rows: Iterable[Row]) -> None:
        """Replace ``name.csv``; the columns are the fields of the table's dataclass."""
        self.write_text(f"{name}.csv", _table_text(TABLES[name], rows))


def load_results(path: str | Path) -> Results:
    """Read one run folder, or every run folder below ``path``; faults become ``Results.warnings``.

    Raises:
        ResultsError: there is no such folder, or nothing usable in it.
    """
    # Writers need no pandas, which takes longer to import than everything else here.
    from pcnn_bench.results_reading import read_results

    return read_results(Path(path))
