"""Reading result folders: what can be trusted becomes data frames, the rest a warning."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pcnn_bench.errors import ResultsError
from pcnn_bench.results import SCHEMA_VERSION, TABLES
from pcnn_bench.results_tables import TableError, file_text, parse_table

DEPTH = 4
"""Levels searched: ``results/published/<gpu>/<run>`` is three below, and one to spare."""

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """One entry of ``engines`` in run.json; None is what the run does not say."""

    engine: str
    device: str
    rung: str
    status: str
    train_s: float | None
    eval_s: float | None
    compile_s: float | None
    transfer_s: float | None
    test_accuracy: float | None
    train_images: int | None
    cpu_over_wall: float | None
    timing_cpu_over_wall: float | None
    predictions_equal: float | None
    accuracy_difference: float | None
    """Against the baseline of the same run; from -1 to 1."""
    coverage: tuple[int, int] | None
    """Of a rung of a ladder: stages that are of the rung, and that could be."""
    same_plan_as: str
    """The rung before, if both launch the same."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder; ``name``, its path below the folder read, is the ``run`` of every table."""

    name: str
    path: Path
    info: dict[str, Any]
    """run.json; empty where there is none."""
    environment: dict[str, Any]
    """environment.json; empty where there is none."""
    engines: tuple[EngineSummary, ...]

    @property
    def title(self) -> str:
        """The config's name, else the folder's."""
        return self.text("name") or self.name

    @property
    def status(self) -> str:
        """``ok``, ``interrupted``, ``diverged``, ``failed``, or empty where it is unknown."""
        return self.text("status")

    def text(self, *keys: str) -> str:
        """The string at this place in run.json, else empty."""
        found = self._at(keys)
        return found if isinstance(found, str) else ""

    def rate(self, *keys: str) -> float | None:
        """The positive number at this place in run.json, else None."""
        found = self._at(keys)
        if not isinstance(found, int | float) or isinstance(found, bool):
            return None
        return float(found) if 0 < found <= sys.float_info.max else None

    def _at(self, keys: tuple[str, ...]) -> object:
        found: object = self.info
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found


@dataclass(frozen=True, slots=True)
class Results:
    """Runs and their tables; a frame has a ``run`` column, then those of its row dataclass."""

    path: Path
    runs: tuple[Run, ...]
    layers: pd.DataFrame
    samples: pd.DataFrame
    epochs: pd.DataFrame
    memory: pd.DataFrame
    checks: pd.DataFrame
    warnings: tuple[str, ...]
    """One line each: file, line and column, what was found, what was done."""

    def only(self, run: Run) -> Results:
        """The same with the rows of one run."""
        tables = {name: getattr(self, name) for name in TABLES}
        kept = {name: frame[frame["run"] == run.name] for name, frame in tables.items()}
        return dataclasses.replace(self, runs=(run,), **kept)


def read_results(path: Path) -> Results:
    """Read one run folder, or every run folder below ``path``.

    Raises:
        ResultsError: there is no such folder, or nothing usable in it.
    """
    _require_folder(path)
    warnings: list[str] = []
    runs: list[Run] = []
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    found = 0
    for folder in _run_folders(path, DEPTH, set(), warnings.append):
        found += 1
        name = folder.relative_to(path).as_posix()
        name = path.resolve().name if name == "." else name
        run = _read_run(folder, name, warnings.append)
        if run is None:
            continue
        tables = {table: _read_table(folder, table, warnings.append) for table in TABLES}
        if not run.engines and not any(len(frame) for frame in tables.values()):
            warnings.append(f"{folder}: nothing usable; the run is left out")
            continue
        runs.append(run)
        for table, frame in tables.items():
            frame.insert(0, "run", pd.Series([name] * len(frame), dtype=object))
            frames[table].append(frame)
    if not runs:
        raise ResultsError(_nothing_usable(path, found, warnings))
    return Results(
        path=path,
        runs=tuple(runs),
        warnings=tuple(warnings),
        **{table: pd.concat(parts, ignore_index=True) for table, parts in frames.items()},
    )


def _require_folder(path: Path) -> None:
    """Refuse what is not a folder."""
    try:
        is_folder, exists = path.is_dir(), path.exists()
        path.resolve()  # not possible for "." where the current folder has been removed
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from error
    if exists and not is_folder:
        raise ResultsError(f"{path}: is a file; name the run folder that holds it")
    if not exists:
        raise ResultsError(
            f"{path}: no such folder; `pcnn-bench run CONFIG.yaml` makes one under ./results"
        )


def _nothing_usable(path: Path, found: int, warnings: list[str]) -> str:
    """The one line for a folder without results."""
    if not found:
        return (
            f"{path}: holds no run folder (run.json or layers.csv);"
            " name a folder that `pcnn-bench run` made"
        )
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return f"{path}: nothing usable in {found} run folder(s): {warnings[0]}{more}"


def _run_folders(folder: Path, depth: int, seen: set[str], warn: Warn) -> Iterator[Path]:
    """The run folders at and below ``folder``, each once: a link to a parent ends the walk."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        children = sorted(folder.iterdir())
        names = {child.name for child in children if not child.is_dir()}
        below = [child for child in children if child.is_dir()]
    except OSError as error:
        warn(f"{folder}: cannot be read ({error.strerror}); skipped")
        return
    if "run.json" in names or any({f"{t}.csv", f"{t}.csv.gz"} & names for t in TABLES):
        yield folder
    for child in below:
        if depth and child.name != "figures" and not child.name.startswith("."):
            yield from _run_folders(child, depth - 1, seen, warn)


def _read_run(folder: Path, name: str, warn: Warn) -> Run | None:
    """The run without its tables; None if its schema is not ours."""
    info = _read_json(folder / "run.json", warn)
    schema = info.get("schema")
    if info and schema != SCHEMA_VERSION:
        found = "no schema number" if schema is None else f"schema {schema!r}"
        warn(
            f"{folder / 'run.json'}: {found}, and this version reads schema {SCHEMA_VERSION};"
            " the run is left out; update pcnn-bench if the run is newer"
        )
        return None
    environment_path = folder / "environment.json"
    environment = _read_json(environment_path, warn) if os.path.lexists(environment_path) else {}
    engines = tuple(_engines(info, folder / "run.json", warn))
    return Run(name, folder, info, environment, engines)


def _read_json(path: Path, warn: Warn) -> dict[str, Any]:
    """A JSON object; empty, with a warning, if it is missing or broken."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        content = json.loads(file_text(path), parse_constant=refuse)
    except FileNotFoundError:
        warn(f"{path}: missing; what it would say is unknown")
    except (TableError, ValueError, RecursionError) as error:
        warn(f"{path}: {error}; what it would say is unknown")
    else:
        if isinstance(content, dict):
            return content
        warn(f"{path}: holds no JSON object; what it would say is unknown")
    return {}


def _engines(info: dict[str, Any], path: Path, warn: Warn) -> Iterator[EngineSummary]:
    """The entries of ``engines`` that can be understood."""
    entries = info.get("engines", [])
    entries = entries if isinstance(entries, list) else [entries]
    for index, entry in enumerate(entries):
        where = f"{path}: engines[{index}]"
        names = ("engine", "device", "rung", "status")
        if not isinstance(entry, dict) or not all(isinstance(entry.get(n), str) for n in names):
            warn(f"{where}: one of {', '.join(names)} is missing; the entry is left out")
            continue
        # runs of one rung once said it of the whole run
        shared = info.get("agreement") if entry["engine"] != "baseline" else None
        values = {**entry}
        for part in (entry.get("totals"), entry.get("agreement", shared)):
            values |= part if isinstance(part, dict) else {}
        images = _number(values, "train_images", where, warn)
        yield EngineSummary(
            **{name: entry[name] for name in names},
            train_s=_number(values, "train_s", where, warn, least=math.ulp(0.0)),
            eval_s=_number(values, "eval_s", where, warn),
            compile_s=_number(values, "compile_s", where, warn),
            transfer_s=_number(values, "transfer_s", where, warn),
            test_accuracy=_number(values, "test_accuracy", where, warn),
            train_images=None if images is None else int(images),
            cpu_over_wall=_number(values, "cpu_over_wall", where, warn),
            timing_cpu_over_wall=_number(values, "timing_cpu_over_wall", where, warn),
            predictions_equal=_number(values, "predictions_equal", where, warn),
            accuracy_difference=_number(values, "accuracy_difference", where, warn, least=-1.0),
            coverage=_coverage(entry.get("coverage"), f"{where}.coverage", warn),
            same_plan_as=same if isinstance(same := entry.get("same_plan_as"), str) else "",
        )


def _coverage(found: object, where: str, warn: Warn) -> tuple[int, int] | None:
    """The two counts, if they are there."""
    counts = found if isinstance(found, dict) else {}
    taken, possible = (_number(counts, name, where, warn) for name in ("taken", "possible"))
    return None if taken is None or possible is None else (int(taken), int(possible))


def _number(
    values: dict[str, Any], key: str, where: str, warn: Warn, least: float = 0.0
) -> float | None:
    """A finite number of at least ``least``; None if it is absent or, warned of, something else."""
    value = values.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and least <= value <= sys.float_info.max:  # JSON's integers have no limit
        return float(value)
    warn(f"{where}.{key}: {value!r:.40} is not a possible value; read as absent")
    return None


def _read_table(folder: Path, name: str, warn: Warn) -> pd.DataFrame:
    """One table of a run; empty, with a warning, if its file is missing or unusable."""
    paths = [folder / f"{name}.csv", folder / f"{name}.csv.gz"]
    there = [path for path in paths if os.path.lexists(path)]
    path = there[0] if there else paths[0]
    if len(there) > 1:
        warn(f"{paths[1]}: left out, since {paths[0].name} is there too")
    try:
        return parse_table(name, file_text(path), lambda message: warn(f"{path}: {message}"))
    except FileNotFoundError:
        warn(f"{path}: missing; skipped")
    except TableError as error:
        warn(f"{path}: {error}; skipped")
    return parse_table(name, None, warn)
