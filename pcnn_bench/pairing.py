"""Which times of the baseline a stage is held against, and what the ratio is; no drawing.

A stage covers one or more layers. Its time is held against the baseline's sum over exactly these
layers, per phase: summed within each repeat, then the median. Only rows with status ``ok`` count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from pcnn_bench import stats
from pcnn_bench.engine import STAGE_PHASES, WHOLE_STEP
from pcnn_bench.results import merged_phases
from pcnn_bench.results_reading import Results

BASELINE = "baseline"
SEED = 0
"""Of the bootstrap, so that the same rows give the same figure."""

Ratio = tuple[float, float, float]
PHASE_NAMES: tuple[str, ...] = STAGE_PHASES
Cell = tuple[str, str]
"""A phase of a layer."""
Record = dict[str, Any]
"""One row of layers.csv by column."""


@dataclass(frozen=True, slots=True)
class Series:
    """One engine on one device with one rung: what a colour in a figure stands for."""

    engine: str
    device: str
    rung: str

    @property
    def is_emulated(self) -> bool:
        """Whether its times are those of the emulated device, which are never GPU times."""
        return self.device == "emulated"

    @property
    def short(self) -> str:
        """As in ``cuda naive``."""
        return f"{self.engine} {self.rung}".strip()

    @property
    def label(self) -> str:
        """As in ``cuda naive (emulated)``."""
        return f"{self.short} (emulated)" if self.is_emulated else self.short


@dataclass(frozen=True, slots=True)
class Times:
    """One side of a pair: median and quartiles in microseconds per step."""

    median_us: float
    p25_us: float
    p75_us: float
    sample_count: int
    """0 where only the summary rows were there."""
    clock: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One phase of one stage and the baseline's time for the same layers.

    ``speedup`` is (low, ratio, high) of baseline over other; low and high are NaN without samples.
    Where it is None, ``reason`` says why.
    """

    stage: str
    layers: tuple[str, ...]
    phase: str
    batch_size: int
    baseline: Times | None
    other: Times | None
    speedup: Ratio | None
    reason: str


@dataclass(frozen=True, slots=True)
class CommonStage:
    """Work that every series of a run does in whole stages: the least such that no stage does a part of it only.

    ``times`` has no entry for a series that launches nothing for it, and None where its time is unknown.
    """

    layers: tuple[str, ...]
    phases: tuple[str, ...]
    times: dict[Series, Times | None]


def all_series(results: Results) -> list[Series]:
    """The series of one run in the order of its rows, the baseline first."""
    columns = ["engine", "device", "rung"]
    found: dict[Series, None] = {}
    for run in results.runs:
        found.update((Series(e.engine, e.device, e.rung), None) for e in run.engines)
    for frame in (results.layers, results.epochs):
        rows = frame[columns].drop_duplicates().itertuples(index=False)
        found.update((Series(*row), None) for row in rows)
    return sorted(found, key=lambda series: series.engine != BASELINE)


def baseline_of(results: Results) -> Series | None:
    """The baseline's series, if the run has one."""
    return next((s for s in all_series(results) if s.engine == BASELINE), None)


def engine_fault(results: Results, series: Series) -> str:
    """Why no time of this series may enter a ratio, as run.json says; empty if none."""
    for run in results.runs:
        for engine in run.engines:
            if Series(engine.engine, engine.device, engine.rung) == series:
                return "" if engine.status == "ok" else f"{series.label}: {engine.status}"
    return ""


def stage_pairs(results: Results, series: Series) -> list[Pair]:
    """Every phase of every stage of ``series`` in one run, in the order of the network."""
    reader = _Reader(results, series)
    pairs = [
        reader.pair(row, reader.covering(row), own)
        for row, own in _with_what_they_merge(reader.stage_rows())
    ]
    order = reader.layer_order()
    last = len(order)
    return sorted(pairs, key=lambda pair: min(order.get(name, last) for name in pair.layers))


def step_pair(results: Results, series: Series) -> Pair | None:
    """The whole step of ``series`` in one run; None where it was not timed.

    A step is no faster than another if one of its stages is wrong, so all of them must be ``ok``.
    """
    reader = _Reader(results, series)
    steps = [
        _records(frame[(frame["stage"] == WHOLE_STEP) & (frame["phase"] == "step")])
        for frame in (reader.rows_of(series), reader.baseline_rows)
    ]
    if not steps[0]:
        return None
    row = steps[0][0]
    bad = [other for other in _records(reader.rows_of(series)) if other["status"] != "ok"]
    if bad:
        return reader.pair(row, f"{series.engine} {bad[0]['stage']}: {bad[0]['status']}")
    same_batch = [step for step in steps[1] if step["batch_size"] == row["batch_size"]]
    return reader.pair(row, same_batch or "the baseline's step was not timed")


def common_stages(results: Results) -> list[CommonStage]:
    """What the series of one run can be held against each other by, forward first, in the order of the network.

    One series' stages are merged where another's covers several, or does several phases at once.
    """
    readers = {series: _Reader(results, series) for series in all_series(results)}
    rows = {series: reader.stage_rows() for series, reader in readers.items()}
    order: dict[str, int] = {}
    for name in (name for reader in readers.values() for name in reader.layer_order()):
        order.setdefault(name, len(order))
    work = _work_of([*rows.values()])
    groups: list[set[Cell]] = []
    for row in (row for found in rows.values() for row in found):
        cells = _cells(row) & work
        touched = [group for group in groups if group & cells]
        groups = [group for group in groups if group not in touched]
        groups += [cells.union(*touched)] if cells else []

    def place(cell: Cell) -> tuple[int, int]:
        phase, layer = cell
        return PHASE_NAMES.index(phase), order[layer]

    stages = []
    for group in sorted(groups, key=lambda group: min(map(place, group))):
        inside = {s: [row for row in found if _cells(row) & group] for s, found in rows.items()}
        stages.append(
            CommonStage(
                layers=tuple(sorted({layer for _, layer in group}, key=order.__getitem__)),
                phases=tuple(sorted({phase for phase, _ in group}, key=PHASE_NAMES.index)),
                times={s: readers[s].time_of(group, found) for s, found in inside.items() if found},
            )
        )
    return stages


def _work_of(series: list[list[Record]]) -> set[Cell]:
    """The phases in which each layer has work to do, from the rows of all series.

    A stage's row names all its layers, those too that have nothing to do in its phase. So those series count that run
    the layer by itself, and if there are none, all must agree.
    """
    cells = [set().union(*map(_cells, rows)) for rows in series]
    alone = [{layers[0] for row in rows if len(layers := _layers(row)) == 1} for rows in series]
    known = [{layer for _, layer in found} for found in cells]
    work = set()
    for cell in set().union(*cells):
        _, layer = cell
        finest = [
            cell in found for found, names in zip(cells, alone, strict=True) if layer in names
        ]
        others = [
            cell in found for found, names in zip(cells, known, strict=True) if layer in names
        ]
        if any(finest) if finest else all(others):
            work.add(cell)
    return work


class _Reader:
    """The rows of one run, looked up for one series at the largest batch that it was timed with."""

    def __init__(self, results: Results, series: Series) -> None:
        self._results = results
        self._series = series
        baseline = baseline_of(results)
        self._fault = engine_fault(results, series)
        if series == baseline:
            self._fault = "only the baseline was timed"
        if baseline is None:
            self._fault = self._fault or "the run has no baseline"
            self.baseline_rows = results.layers.iloc[:0]
        else:
            self._fault = self._fault or engine_fault(results, baseline)
            self.baseline_rows = select(results.layers, baseline)
        self._samples = {
            side: _steady(results.samples, side) for side in {series, baseline} if side is not None
        }
        self._baseline_samples = self._samples[baseline] if baseline else {}
        memory = select(results.memory, baseline) if baseline else results.memory.iloc[:0]
        self._with_parameters = set(memory.loc[memory["category"] == "parameters", "stage"])

    def rows_of(self, series: Series) -> pd.DataFrame:
        """The layer rows of a series at its largest batch; a smaller one is a partial batch."""
        rows = select(self._results.layers, series)
        largest: pd.DataFrame = rows[rows["batch_size"] == rows["batch_size"].max()]
        return largest

    def stage_rows(self) -> list[Record]:
        """The rows of the series' stages, the whole step apart."""
        rows = self.rows_of(self._series)
        return _records(rows[(rows["stage"] != WHOLE_STEP) & rows["phase"].isin(STAGE_PHASES)])

    def time_of(self, cells: set[Cell], rows: list[Record]) -> Times | None:
        """The time of these rows together; None if one is missing or not ``ok``."""
        computing = {layer for row in self.stage_rows() for layer in _layers(row)}  # no view
        wanted = {(phase, layer) for phase, layer in cells if layer in computing}
        times, _, fault = self._side(rows)
        return None if fault or wanted - set().union(*map(_cells, rows)) else times

    def layer_order(self) -> dict[str, int]:
        """Layer -> position in the network: as the whole step names them, else as the rows come."""
        order: dict[str, int] = {}
        for frame in (self.baseline_rows, self.rows_of(self._series)):
            rows = [row for row in _records(frame) if row["layers"] or row["stage"] != WHOLE_STEP]
            for row in sorted(rows, key=lambda row: row["stage"] != WHOLE_STEP):
                for name in _layers(row):
                    order.setdefault(name, len(order))
        return order

    def covering(self, row: Record) -> list[Record] | str:
        """The baseline's rows for the layers and the phases of ``row``, or why there are none."""
        found: list[Record] = []
        for phase in (row["phase"], *merged_phases(row["flags"])):
            rows = self._covering_phase(row, phase)
            if isinstance(rows, str):
                return rows
            found += rows
        return found

    def _covering_phase(self, row: Record, phase: str) -> list[Record] | str:
        layers = _layers(row)
        found = [
            other
            for other in _records(self.baseline_rows)
            if other["phase"] == phase
            and other["batch_size"] == row["batch_size"]
            and set(layers).issuperset(_layers(other))
        ]
        summed = {name for other in found for name in _layers(other)}
        # a layer with nothing to do in this phase has no row; but if none has one, all are missing
        needed = self._layers_with(phase).intersection(layers) or layers
        missing = [name for name in layers if name in needed and name not in summed]
        if missing:
            names = ", ".join(missing)
            return f"the baseline has no {phase} time for {names} at batch {row['batch_size']}"
        return found

    def _layers_with(self, phase: str) -> set[str]:
        """The layers that have work in this phase, as far as anything in the run folder shows.

        A row may have been lost (a time of 0 is left out), so that no row alone is no proof of no
        work. Every layer has a forward. Those with parameters, or ever timed so, have an update. From
        the first layer on that learns, or was ever timed so, every layer has a backward.
        """
        order = self.layer_order()
        if phase == "forward":
            return set(order)
        learning = self._timed("update") | self._with_parameters
        if phase == "update":
            return learning
        places = [order[name] for name in learning | self._timed("backward") if name in order]
        return {name for name, place in order.items() if place >= min(places, default=len(order))}

    def _timed(self, phase: str) -> set[str]:
        """The layers for which the baseline has a row or a sample of this phase, at any batch."""
        rows = _records(self.baseline_rows[self.baseline_rows["phase"] == phase])
        sampled = {stage for stage, of, _ in self._baseline_samples if of == phase}
        return sampled.union(*(_layers(row) for row in rows))

    def pair(self, row: Record, against: list[Record] | str, own: Sequence[Record] = ()) -> Pair:
        """``row``, with ``own`` added to it, and its counterpart in the baseline."""
        base_rows = [] if isinstance(against, str) else against
        other, other_us, fault = self._side([row, *own])
        baseline, baseline_us, base_fault = self._side(base_rows)
        reason = fault or self._fault
        if not reason:
            reason = against if isinstance(against, str) else base_fault
        ratio: Ratio | None = None
        if not reason and baseline and other:
            if min(len(baseline_us), len(other_us)) >= stats.MIN_SAMPLES:
                rng = np.random.default_rng(SEED)
                ratio = stats.speedup(baseline_us, other_us, rng)
            else:
                ratio = (np.nan, baseline.median_us / other.median_us, np.nan)
        return Pair(
            stage=row["stage"],
            layers=_layers(row),
            phase=row["phase"],
            batch_size=int(row["batch_size"]),
            baseline=baseline,
            other=other,
            speedup=ratio,
            reason=reason,
        )

    def _side(self, rows: list[Record]) -> tuple[Times | None, stats.Samples, str]:
        """The sum of ``rows``, its samples, and why it is unknown if it is."""
        none = np.empty(0)
        for row in rows:
            if row["status"] != "ok":
                return None, none, f"{row['engine']} {row['stage']}: {row['status'] or 'no status'}"
        if not rows:
            return None, none, ""
        clock = rows[0]["clock"]
        samples = self._sum_of_samples(rows)
        if samples.size:
            low, high = stats.quartiles(samples)
            return Times(stats.median(samples), low, high, samples.size, clock), samples, ""
        total = float(sum(row["median_us"] for row in rows))
        if not total > 0:  # NaN included
            return None, none, f"{rows[0]['engine']} {rows[0]['stage']}: no time"
        if len(rows) > 1:  # quartiles of a sum are not the sums of quartiles
            return Times(total, np.nan, np.nan, 0, clock), none, ""
        return Times(total, rows[0]["p25_us"], rows[0]["p75_us"], 0, clock), none, ""

    def _sum_of_samples(self, rows: list[Record]) -> stats.Samples:
        """The steady samples summed over ``rows`` within each repeat that all of them have."""
        columns = []
        for row in rows:
            side = Series(row["engine"], row["device"], row["rung"])
            key = (row["stage"], row["phase"], row["batch_size"])
            columns.append(self._samples[side].get(key, {}))
        repeats = sorted(set.intersection(*(set(column) for column in columns)))
        return np.array([sum(column[repeat] for column in columns) for repeat in repeats])


def _with_what_they_merge(rows: list[Record]) -> Iterator[tuple[Record, list[Record]]]:
    """Each row with those of its stage whose phases it merges, which stand for no pair of their own.

    A stage that does part of backward in its forward can be held against the baseline's sum of both phases only
    together with what is left of its backward.
    """
    merged = {
        (row["stage"], phase): number
        for number, row in enumerate(rows)
        for phase in merged_phases(row["flags"])
    }
    for number, row in enumerate(rows):
        if (row["stage"], row["phase"]) not in merged:
            yield (
                row,
                [each for each in rows if merged.get((each["stage"], each["phase"])) == number],
            )


def select(frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    """The rows of one series."""
    return frame[
        (frame["engine"] == series.engine)
        & (frame["device"] == series.device)
        & (frame["rung"] == series.rung)
    ]


def _steady(samples: pd.DataFrame, series: Series) -> dict[tuple[Any, ...], dict[int, float]]:
    """(stage, phase, batch size) -> repeat -> microseconds, without warm-ups."""
    rows = select(samples, series)
    columns = ["stage", "phase", "batch_size", "repeat", "time_us"]
    times: dict[tuple[Any, ...], dict[int, float]] = {}
    for *key, repeat, time_us in rows.loc[~rows["is_warmup"], columns].itertuples(index=False):
        times.setdefault(tuple(key), {})[repeat] = time_us
    return times


def _records(frame: pd.DataFrame) -> list[Record]:
    """The rows of layers.csv, by column."""
    return cast("list[Record]", frame.to_dict("records"))


def _cells(row: Record) -> set[Cell]:
    """The work of a row: its phases for each of its layers."""
    return {
        (phase, layer)
        for phase in (row["phase"], *merged_phases(row["flags"]))
        for layer in _layers(row)
        if phase in STAGE_PHASES
    }


def _layers(row: Record) -> tuple[str, ...]:
    """The layers of a row; a stage that names none covers itself."""
    return tuple(row["layers"].split("+")) if row["layers"] else (row["stage"],)
