"""Quantities of published runs: what an expression of ``insert_numbers.py`` stands for, and how it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import pandas as pd

from pcnn_bench import load_results, stats
from pcnn_bench.engine import STAGE_PHASES, WHOLE_STEP
from pcnn_bench.errors import PcnnError
from pcnn_bench.pairing import BASELINE, Series, all_series, engine_fault, select
from pcnn_bench.results import merged_phases
from pcnn_bench.results_reading import Results

UNKNOWN = "\N{EN DASH}"
"""What is shown for a run that is not published yet."""
ACROSS_RUNS = "\N{DAGGER}"
MICRO = "\N{MICRO SIGN}"
EQUAL_WITHIN = 0.02
"""Medians this close count as equal, whatever their quartiles say."""
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SMALL_PREFIXES = {"m": 1e-3, MICRO: 1e-6}
COMPARATIVES = {"s": ("faster", "as fast", "slower")}
OTHER_COMPARATIVES = ("smaller", "as large", "larger")


class ExpressionError(Exception):
    """An expression has no value; the message says why."""


class PendingError(Exception):
    """An expression needs a run that is not published yet."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number in seconds, bytes, FLOPs or a unit made of these; ``low`` and ``high`` are quartiles of a time."""

    middle: float
    unit: str
    low: float
    high: float
    run: Path | None = None
    """The folder that a time comes from; None for what is counted."""


def exact(number: float, unit: str) -> Value:
    """What is counted, not measured."""
    return Value(number, unit, number, number)


@dataclass(slots=True)
class Runs:
    """Run folders by (alias, rung); rung ``""`` stands for all others. None is not published yet."""

    folders: dict[tuple[str, str], Path | None] = field(default_factory=dict)

    def find(self, alias: str, rung: str) -> tuple[Results, Series]:
        """The run that holds this rung, or ``baseline``, and the series of its rows.

        Raises:
            ExpressionError: no such alias or rung, or the rung did not end well.
            PendingError: it is not published yet.
        """
        key = (alias, rung) if (alias, rung) in self.folders else (alias, "")
        if key not in self.folders:
            known = ", ".join(dict.fromkeys(each for each, _ in self.folders)) or "none"
            raise ExpressionError(f"no run is called {alias!r}; the document names {known}")
        folder = self.folders[key]
        if folder is None:
            raise PendingError
        results = read(folder)
        rungs = {series.rung or BASELINE: series for series in all_series(results)}
        if rung not in rungs:
            raise ExpressionError(f"run {folder.name} has no rung {rung!r}, but {', '.join(rungs)}")
        if fault := engine_fault(results, rungs[rung]):
            raise ExpressionError(f"run {folder.name}: {fault}")
        return results, rungs[rung]

    def links(self, alias: str, document: Path) -> str:
        """Markdown links from a document to the folders of an alias.

        Raises:
            ExpressionError: no such alias.
        """
        folders = dict.fromkeys(path for (name, _), path in self.folders.items() if name == alias)
        if not folders:
            raise ExpressionError(f"no run is called {alias!r}")
        links = [
            f"[{path.name}]({Path(os.path.relpath(path, document.parent)).as_posix()})"
            for path in folders
            if path
        ]
        return ", ".join(links) or UNKNOWN


@cache
def read(folder: Path) -> Results:
    """A published run.

    Raises:
        ExpressionError: it cannot be read in full: what is published has no faults.
    """
    try:
        results = load_results(folder)
    except PcnnError as error:
        raise ExpressionError(str(error)) from error
    if results.warnings:
        raise ExpressionError(results.warnings[0])
    return results


def quantity(words: Sequence[str], runs: Runs) -> Value:
    """A term, ``A / B`` or ``A of B``.

    Raises:
        ExpressionError: as for a term; or a share of two different units.
        PendingError: as for a term.
    """
    operator = next((word for word in words if word in ("/", "of")), None)
    if operator is None:
        return _term(words, runs)
    place = list(words).index(operator)
    left, right = _term(words[:place], runs), _term(words[place + 1 :], runs)
    is_share = operator == "of"
    if is_share and left.unit != right.unit:
        raise ExpressionError(f"a share is of one unit; found {left.unit} and {right.unit}")
    unit = "%" if is_share else "x" if left.unit == right.unit else f"{left.unit}/{right.unit}"
    if None not in (left.run, right.run) and left.run != right.run:
        unit += ACROSS_RUNS
    factor = 100.0 if is_share else 1.0
    return Value(
        factor * left.middle / right.middle,
        unit,
        factor * left.low / right.high,
        factor * left.high / right.low,
    )


def _term(words: Sequence[str], runs: Runs) -> Value:
    """One quantity of one rung, or a plain number.

    Raises:
        ExpressionError: the words are none, or the run holds nothing of this kind.
        PendingError: the run is not published yet.
    """
    match list(words):
        case ["step", alias, rung]:
            return _term(["time", alias, rung, WHOLE_STEP, "step"], runs)
        case ["time", alias, rung, layers, phases]:
            results, series = runs.find(alias, rung)
            return _time(results, series, _rows(results, series, layers, phases))
        case ["flops", alias, rung, layers, phases]:
            results, series = runs.find(alias, rung)
            return _counted(_rows(results, series, layers, phases), "flop_count", "FLOP")
        case ["bytes", alias, rung, layers, phases]:
            results, series = runs.find(alias, rung)
            return _counted(_rows(results, series, layers, phases), "byte_count", "B")
        case ["memory", alias, rung, category]:
            return _memory(*runs.find(alias, rung), category)
        case ["accuracy", alias, rung]:
            return _accuracy(*runs.find(alias, rung))
        case [number] if re.fullmatch(r"\d+(\.\d+)?", number):
            return exact(float(number), "x")
    raise ExpressionError("no such quantity; docs/insert_numbers.py lists them")


def _rows(results: Results, series: Series, wanted: str, phases: str) -> list[dict[str, Any]]:
    """The rows of layers.csv that together are these phases of these layers and nothing else.

    Raises:
        ExpressionError: there are none, one is not ``ok``, or one does more than was asked for.
    """
    frame = select(results.layers, series)
    frame = frame[frame["batch_size"] == frame["batch_size"].max()]
    rows = cast("list[dict[str, Any]]", frame.to_dict("records"))
    rung = series.rung or BASELINE
    step = [row for row in rows if row["stage"] == WHOLE_STEP]
    if not step:
        raise ExpressionError(f"run {results.runs[0].name} has no step of {rung}")
    if any(row["status"] != "ok" for row in rows):
        raise ExpressionError(f"run {results.runs[0].name}: a row of {rung} is not ok")
    layers, asked = _layers(step[0]["layers"].split("+"), wanted), set(phases.split("+"))
    if whole := [row for row in step if wanted == WHOLE_STEP and row["phase"] == phases]:
        return whole
    if not asked <= set(STAGE_PHASES):
        known = ", ".join(STAGE_PHASES)
        raise ExpressionError(f"{phases}: phases are {known}, joined by +; or * step, * transfer")
    kept = []
    for row in rows:
        covered, done = set(row["layers"].split("+")), {row["phase"], *merged_phases(row["flags"])}
        if row["stage"] == WHOLE_STEP or not covered & layers or not done & asked:
            continue
        if more := (covered - layers) | (done - asked):
            what = ", ".join(sorted(more))
            raise ExpressionError(f"{rung}: stage {row['stage']} {row['phase']} does {what} too")
        kept.append(row)
    if not kept:
        raise ExpressionError(f"{rung} has no {phases} of {wanted}")
    return kept


def _layers(order: list[str], wanted: str) -> set[str]:
    """The layers named by ``*``, a layer, or ``first..last``.

    Raises:
        ExpressionError: there is no such layer.
    """
    if wanted == WHOLE_STEP:
        return set(order)
    first, _, last = wanted.partition("..")
    for name in (first, last or first):
        if name not in order:
            raise ExpressionError(f"no layer is called {name!r}; there are {', '.join(order)}")
    return set(order[order.index(first) : order.index(last or first) + 1])


def _time(results: Results, series: Series, rows: list[dict[str, Any]]) -> Value:
    """The rows' steady samples summed within each repeat, then the median.

    Raises:
        ExpressionError: there are no samples.
    """
    run = results.runs[0]
    samples = _steady(run.path, series, rows[0]["batch_size"])
    places = [(row["stage"], row["phase"]) for row in rows]
    if missing := [place for place in places if place not in samples]:
        raise ExpressionError(f"run {run.name} has no samples of {' '.join(missing[0])}")
    sums = samples[places].dropna().sum(axis=1).to_numpy() * 1e-6
    low, high = stats.quartiles(sums)
    return Value(stats.median(sums), "s", low, high, run.path)


@cache
def _steady(folder: Path, series: Series, batch_size: int) -> pd.DataFrame:
    """Microseconds without warm-ups: a row a repeat, a column for each (stage, phase)."""
    samples = select(read(folder).samples, series)
    samples = samples[~samples["is_warmup"] & (samples["batch_size"] == batch_size)]
    return samples.pivot(index="repeat", columns=["stage", "phase"], values="time_us")


def _counted(rows: list[dict[str, Any]], column: str, unit: str) -> Value:
    """What the plan counts.

    Raises:
        ExpressionError: a row has no count.
    """
    counts = [row[column] for row in rows]
    if any(pd.isna(count) for count in counts):
        raise ExpressionError(f"{rows[0]['stage']}: not every {column} is there")
    return exact(float(sum(counts)), unit)


def _memory(results: Results, series: Series, category: str) -> Value:
    """Bytes of a category; of ``peak`` those that our allocator held, the data set's apart.

    Raises:
        ExpressionError: there are none.
    """
    rows = select(results.memory, series)
    found = rows[(rows["category"] == category) & (rows["tensor"] != "driver")]
    if found.empty:
        known = ", ".join(sorted(rows["category"].unique()))
        raise ExpressionError(f"no memory of category {category!r}; there are {known}")
    return exact(float(found["byte_count"].sum()), "B")


def _accuracy(results: Results, series: Series) -> Value:
    """On the test set, after the last epoch.

    Raises:
        ExpressionError: it is not known.
    """
    for each in results.runs[0].engines:
        is_it = Series(each.engine, each.device, each.rung) == series
        if is_it and each.test_accuracy is not None:
            return exact(each.test_accuracy, "accuracy")
    raise ExpressionError(f"run {results.runs[0].name} has no accuracy of {series.short}")


def order(left: Value, right: Value) -> int:
    """-1, 0 or 1: less, about equal, more. Times whose quartiles overlap are equal, and medians close together.

    Raises:
        ExpressionError: the units differ.
    """
    if left.unit.rstrip(ACROSS_RUNS) != right.unit.rstrip(ACROSS_RUNS):
        raise ExpressionError(f"{left.unit} and {right.unit} cannot be compared")
    is_close = abs(left.middle - right.middle) <= EQUAL_WITHIN * right.middle
    if (left.run and is_close) or (left.low <= right.high and right.low <= left.high):
        return 0
    return -1 if left.middle < right.middle else 1


def verdict(left: Value, right: Value, *, is_sentence: bool) -> str:
    """``faster``, ``as fast``, ``slower``, or ``smaller`` ...; in a sentence followed by ``than`` or ``as``."""
    place = order(left, right)
    word = COMPARATIVES.get(left.unit, OTHER_COMPARATIVES)[place + 1]
    return f"{word} {'than' if place else 'as'}" if is_sentence else word


def show(value: Value, unit: str | None = None) -> str:
    """With the unit that fits; or the bare number in the unit given.

    Raises:
        ExpressionError: it cannot be said in this unit.
    """
    if unit is not None:
        scale = {**PREFIXES, **SMALL_PREFIXES}.get(unit.removesuffix(value.unit))
        if scale is None or not unit.endswith(value.unit):
            raise ExpressionError(f"a value in {value.unit} cannot be given in {unit}")
        return _digits(value.middle / scale)
    match value.unit.rstrip(ACROSS_RUNS):
        case "accuracy":
            return f"{value.middle:.4f}"
        case "x":
            return f"{_digits(value.middle)}{value.unit}"
        case "%":
            return f"{_digits(value.middle)} {value.unit}"
        case "s":
            return f"{_digits(value.middle * 1e6)} {MICRO}s"
    prefix = next((name for name, scale in PREFIXES.items() if value.middle < 999.5 * scale), "T")
    return f"{_digits(value.middle / PREFIXES[prefix])} {prefix}{value.unit}"


def _digits(number: float) -> str:
    """Three significant digits, and never less than the whole number: 8.85, 71.0, 323, 98,453."""
    decimals = next((d for d in range(6) if round(number, d) >= 10 ** (2 - d)), 0)
    return f"{number:,.{decimals}f}"
