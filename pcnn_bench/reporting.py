"""The table at the end of a run, read from its folder: times, ratios, accuracy and memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from pcnn_bench.engine import WHOLE_STEP
from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.pairing import (
    BASELINE,
    Pair,
    Series,
    all_series,
    baseline_of,
    engine_fault,
    select,
    stage_pairs,
    step_pair,
)
from pcnn_bench.results import load_results
from pcnn_bench.results_reading import EngineSummary, Results
from pcnn_bench.timing import sequential_doubt

WIDTH = 80
"""Columns of a terminal that nobody has widened."""
ABSENT = "n/a"


def summarise(folder: Path) -> dict[str, Any]:
    """The figures of one run folder as JSON takes them; None is what is not known. Of several rungs, the last.

    ``ratio`` names what the ratios are: ``speedup`` is baseline over cuda; on the emulated device it
    is ``emulated/baseline``, cuda over baseline, since emulated times are never called a speedup.
    ``baseline_doubt`` says why the baseline's times are not those of one undisturbed thread, if so.
    ``memory_bytes`` is what each engine counts itself, ``peak_memory_bytes`` what the process held.

    Raises:
        ResultsError: there is nothing usable in the folder.
    """
    results = load_results(folder)
    (run,) = results.runs
    series = all_series(results)
    baseline = baseline_of(results)
    others = [one for one in series if one.engine != BASELINE]
    other = others[-1] if others else None
    is_emulated = other is not None and other.is_emulated
    shown = other or baseline
    layers = (
        [_layer(pair, other, is_emulated) for pair in stage_pairs(results, shown)] if shown else []
    )
    return {
        "folder": str(folder),
        "name": run.title,
        "status": run.status,
        "device": run.info.get("device"),
        "rung": other and other.rung,
        "ratio": ratio_name(baseline, other),
        "baseline_doubt": baseline_doubt(results),
        "layers": layers,
        "totals": _totals(results, baseline, other),
        "test_accuracy": {
            one.engine: _entry(results, one, "test_accuracy") for one in (baseline, other) if one
        },
        "agreement": {
            name: _entry(results, other, name)
            for name in ("predictions_equal", "accuracy_difference")
        },
        "memory_bytes": {one.engine: peak_bytes(results, one) for one in (baseline, other) if one},
        "peak_memory_bytes": run.info.get("peak_memory_bytes"),
    }


def ratio_name(baseline: Series | None, other: Series | None) -> str | None:
    """What the ratio column is called; None where there is nothing to compare."""
    if baseline is None or other is None:
        return None
    return "emulated/baseline" if other.is_emulated else "speedup"


def baseline_doubt(results: Results) -> str:
    """Why the baseline's times are not those of one undisturbed thread; empty if nothing is wrong."""
    names = ("cpu_over_wall", "timing_cpu_over_wall")
    return sequential_doubt(*(_entry(results, baseline_of(results), name) for name in names))


def _layer(pair: Pair, other: Series | None, is_emulated: bool) -> dict[str, Any]:
    """One phase of one stage; with the baseline alone, ``pair`` is the baseline held against itself."""
    times = {"baseline": pair.baseline, "cuda": pair.other if other else None}
    return {
        "stage": pair.stage,
        "layers": list(pair.layers),
        "phase": pair.phase,
        **{f"{name}_us": side.median_us if side else None for name, side in times.items()},
        "ratio": _ratio(pair, is_emulated) if other else None,
    }


def _ratio(pair: Pair | None, is_emulated: bool) -> float | None:
    """The pair's ratio in the direction that ``summarise`` describes."""
    if pair is None or pair.speedup is None:
        return None
    speedup = pair.speedup[1]
    return 1 / speedup if is_emulated else speedup


def _totals(
    results: Results, baseline: Series | None, other: Series | None
) -> dict[str, dict[str, float | None]]:
    """Whole step, transfer, training and cold start (training and compilation): both sides and ratio."""
    is_emulated = other is not None and other.is_emulated
    step = step_pair(results, other) if other else None

    engines = [one for one in (baseline, other) if one]

    def row(sides: Sequence[float | None], ratio: float | None = None) -> dict[str, float | None]:
        return {"baseline": sides[0], "cuda": sides[1], "ratio": ratio}

    def seconds(*fields: str) -> dict[str, float | None]:
        sides = [_sum_of_entries(results, one, fields) for one in (baseline, other)]
        known = [side for side in sides if side]
        ratio = None
        if len(known) == 2 and not any(engine_fault(results, one) for one in engines):
            ratio = known[1] / known[0] if is_emulated else known[0] / known[1]
        return row(sides, ratio)

    steps, transfers = (
        [whole_us(results, one, phase) for one in (baseline, other)]
        for phase in ("step", "transfer")
    )
    return {
        "step_us": row(steps, _ratio(step, is_emulated)),
        "transfer_us": row(transfers),
        "train_s": seconds("train_s"),
        "cold_start_s": seconds("train_s", "compile_s"),
    }


def summary_of(results: Results, series: Series | None) -> EngineSummary | None:
    """What run.json says of a series."""
    for engine in results.runs[0].engines:
        if series == Series(engine.engine, engine.device, engine.rung):
            return engine
    return None


def _entry(results: Results, series: Series | None, field: str) -> Any:
    return getattr(summary_of(results, series), field, None)


def _sum_of_entries(results: Results, series: Series | None, fields: Sequence[str]) -> float | None:
    """The sum, unknown where a part is."""
    values = [_entry(results, series, field) for field in fields]
    return None if None in values else sum(values)


def whole_us(results: Results, series: Series | None, phase: str) -> float | None:
    """Median of a phase of the whole step, where it was timed well."""
    if series is None:
        return None
    rows = select(results.layers, series)
    is_it = (rows["stage"] == WHOLE_STEP) & (rows["phase"] == phase) & (rows["status"] == "ok")
    medians = rows.loc[is_it, "median_us"].dropna()
    return float(medians.iloc[0]) if len(medians) else None


def peak_bytes(results: Results, series: Series) -> int | None:
    """The most held at one time, as the engine's own account has it."""
    rows = select(results.memory, series)
    peaks = rows.loc[rows["category"] == "peak", "byte_count"]
    return int(peaks.iloc[0]) if len(peaks) else None


def plain_console(stream: TextIO | None = None) -> Console:
    """``WIDTH`` columns on stdout or ``stream``; text is printed as it is, in colour if that can."""
    return Console(
        file=stream or sys.stdout, width=WIDTH, markup=False, highlight=False, emoji=False
    )


def print_report(summary: dict[str, Any], stream: TextIO | None = None) -> None:
    """Print what ``summarise`` found in ``WIDTH`` columns; colour only where the terminal has any."""
    console = plain_console(stream)
    doubt = summary["baseline_doubt"]
    ratio = (summary["ratio"] or "ratio") + ("*" if doubt else "")
    console.print(title(summary), style="bold")
    table = new_table("stage", "phase", "baseline us", "cuda us", ratio)
    for layer in summary["layers"]:
        table.add_row(
            "+".join(layer["layers"]),
            layer["phase"],
            number(layer["baseline_us"], ",.1f"),
            number(layer["cuda_us"], ",.1f"),
            number(layer["ratio"], ".2f", "x"),
        )
    console.print(table)
    console.print(_totals_table(summary, ratio))
    if doubt:
        console.print(f"* {doubt}")


def title(summary: Mapping[str, Any]) -> str:
    """The config and where it ran; emulated times are not to be mistaken for a GPU's."""
    device = summary["device"]
    if device is None:
        return str(summary["name"])
    where = "emulated device, no GPU times" if device["kind"] == "emulated" else device["name"]
    return f"{summary['name']}: {where or device['kind']}"


def _totals_table(summary: dict[str, Any], ratio: str) -> Table:
    """Totals, accuracy, agreement and memory."""
    table = new_table("whole run", "", "baseline", "cuda", ratio)
    units = {
        "step_us": ("step", "us", ",.1f"),
        "transfer_us": ("transfer of a batch", "us", ",.1f"),
        "train_s": ("training, end to end", "s", ",.2f"),
        "cold_start_s": ("cold start, with compilation", "s", ",.2f"),
    }
    for key, (name, unit, form) in units.items():
        row = summary["totals"][key]
        sides = (number(row[side], form) for side in ("baseline", "cuda"))
        table.add_row(name, unit, *sides, number(row["ratio"], ".2f", "x"))
    agreement = summary["agreement"] or {}
    accuracy, memory = summary["test_accuracy"], summary["memory_bytes"]
    table.add_section()
    table.add_row(
        "test accuracy, difference",
        "",
        *(number(accuracy.get(side), ".4f") for side in ("baseline", "cuda")),
        number(agreement.get("accuracy_difference"), "+.4f"),
    )
    table.add_row(
        "test predictions equal", "", "", "", number(agreement.get("predictions_equal"), ".2%")
    )
    peaks = (memory.get("baseline"), memory.get("cuda"), summary["peak_memory_bytes"])
    in_mib = (None if peak is None else peak / MEBIBYTE for peak in peaks)
    table.add_row("peak memory, whole process", "MiB", *(number(peak, ",.1f") for peak in in_mib))
    return table


def new_table(*names: str, words: int = 2) -> Table:
    """An empty table whose first columns hold words, the others numbers; the first takes the room that is left."""
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        is_word = index < words
        table.add_column(
            name,
            justify="left" if is_word else "right",
            ratio=1 if index == 0 else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def number(value: float | None, form: str, suffix: str = "") -> str:
    """The formatted value, or that there is none."""
    return ABSENT if value is None else f"{value:{form}}{suffix}"
