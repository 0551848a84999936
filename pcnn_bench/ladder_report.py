"""The tables at the end of a ladder: every rung against the one before, the lowest one and the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, cast

import pandas as pd
from rich.table import Table

from pcnn_bench.engine import WHOLE_STEP
from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.pairing import (
    BASELINE,
    Record,
    Series,
    all_series,
    baseline_of,
    common_stages,
    engine_fault,
    select,
)
from pcnn_bench.reporting import (
    baseline_doubt,
    new_table,
    number,
    plain_console,
    ratio_name,
    summary_of,
    title,
)
from pcnn_bench.results import load_results
from pcnn_bench.results_reading import Results, Run

LOWEST = "naive"
"""The rung that every other one is also held against."""
SHORT = {"forward": "fwd", "backward": "bwd", "update": "upd"}


def summarise_ladder(folder: Path) -> dict[str, Any]:
    """The figures of a ladder's run folder as JSON takes them; None is what is not known.

    ``rungs`` begins with the baseline, if it ran. Ratios are the time of another over the rung's own, so that above 1
    the rung is faster. Only those to the baseline are the other way round on the emulated device, where ``ratio`` calls
    them ``emulated/baseline``. ``same_plan_as`` names the rung before if both launch the same; there is no factor then.
    ``images_per_s`` are those of steps, so that bringing batches from the host does not count. ``stages`` holds the
    work that all of them do in whole stages, with medians in microseconds.

    Raises:
        ResultsError: there is nothing usable in the folder.
    """
    results = load_results(folder)
    (run,) = results.runs
    baseline = baseline_of(results)
    found: dict[Series, dict[str, Any]] = {}
    for series in all_series(results):
        one = found[series] = _figures(results, series)
        one["ratios"] = _ratios(one, [*found.values()])
    climbed = [series for series in found if series != baseline]
    return {
        "folder": str(folder),
        "name": run.title,
        "status": run.status,
        "message": run.text("message"),
        "device": run.info.get("device"),
        "ratio": ratio_name(baseline, climbed[0] if climbed else None),
        "baseline_doubt": baseline_doubt(results),
        "ceilings": run.info.get("ceilings"),
        "rungs": [*found.values()],
        "stages": [
            {
                "layers": list(stage.layers),
                "phases": list(stage.phases),
                "us": {_name(s): times and times.median_us for s, times in stage.times.items()},
            }
            for stage in common_stages(results)
        ],
    }


def _name(series: Series) -> str:
    """The rung, or ``baseline``."""
    return series.rung or series.engine


def _figures(results: Results, series: Series) -> dict[str, Any]:
    """What is known of one series by itself."""
    rows = select(results.layers, series)
    steps = rows[(rows["stage"] == WHOLE_STEP) & (rows["phase"] == "step")]
    step: Record = cast("Record", steps.iloc[0].to_dict()) if len(steps) else {}
    # a step is not faster than another if one of its stages is wrong
    is_good = not engine_fault(results, series) and bool((rows["status"] == "ok").all())
    step_us = _known(step, "median_us") if is_good else None
    images, flops, moved = (
        _known(step, name) for name in ("batch_size", "flop_count", "byte_count")
    )
    entry = summary_of(results, series)
    counts = entry.coverage if entry else None
    return {
        "name": _name(series),
        "engine": series.engine,
        "rung": series.rung,
        "device": series.device,
        "status": entry.status if entry else None,
        "batch_size": images and int(images),
        "step_us": step_us,
        "images_per_s": _rate(images, step_us, 1e6),
        "train_s": entry.train_s if entry else None,
        "compile_s": entry.compile_s if entry else None,
        "train_images": entry.train_images if entry else None,
        "test_accuracy": entry.test_accuracy if entry else None,
        "accuracy_difference": entry.accuracy_difference if entry else None,
        "predictions_equal": entry.predictions_equal if entry else None,
        "coverage": counts and {"taken": counts[0], "possible": counts[1]},
        "same_plan_as": entry.same_plan_as if entry else "",
        "memory_bytes": _memory(results, series),
        "flop_count": flops and int(flops),
        "byte_count": moved and int(moved),
        "flop_per_byte": _rate(flops, moved),
        **_rates(results.runs[0], series, flops, moved, step_us),
        "flags": [flag for flag in step.get("flags", "").split(";") if flag],
    }


def _known(row: Mapping[str, Any], column: str) -> float | None:
    """A number of a row; None for what is absent."""
    value = row.get(column)
    return None if pd.isna(value) else float(value)


def _rate(count: float | None, per: float | None, factor: float = 1.0) -> float | None:
    return count / per * factor if count is not None and per else None


def _rates(
    run: Run, series: Series, flops: float | None, moved: float | None, step_us: float | None
) -> dict[str, float | None]:
    """Billions a second of a whole step, and what share of the device's ceilings that is."""
    flop_rate, byte_rate = (_rate(count, step_us, 1e-3) for count in (flops, moved))
    most_flops = most_bytes = None
    if series.engine != BASELINE:
        most_flops = run.rate("ceilings", "gflop_per_s")
        most_bytes = run.rate("ceilings", "copies", series.rung, "gbyte_per_s")
    return {
        "gflop_per_s": flop_rate,
        "gflop_share": _rate(flop_rate, most_flops),
        "gbyte_per_s": byte_rate,
        "gbyte_share": _rate(byte_rate, most_bytes),
    }


def _memory(results: Results, series: Series) -> dict[str, int]:
    """Bytes by category; ``peak`` is the most held at one time, by the engine's own account, the data set apart.

    The others are sums over tensors, and those whose lives do not meet share memory.
    """
    rows = select(results.memory, series)
    peaks = rows[rows["category"] == "peak"]
    sums: Counter[str] = Counter()
    for category, count in zip(rows["category"], rows["byte_count"], strict=True):
        if category != "peak":
            sums[category] += int(count)
    tensors = zip(peaks["tensor"], peaks["byte_count"], strict=True)
    names = {"allocated": "peak", "driver": "peak_driver"}
    return {**sums, **{names.get(name, "peak"): int(count) for name, count in tensors}}


def _ratios(one: Mapping[str, Any], so_far: list[dict[str, Any]]) -> dict[str, float | None]:
    """Step times of the rung before, of the lowest one and of the baseline over this one's, and training end to end."""
    climbed = [each for each in so_far if each["engine"] != BASELINE]
    baseline = next((each for each in so_far if each["engine"] == BASELINE), None)
    if one is baseline:
        return dict.fromkeys(("previous", LOWEST, "baseline", "end_to_end"))
    before = climbed[-2] if len(climbed) > 1 and not one["same_plan_as"] else None
    lowest = next((each for each in climbed if each["rung"] == LOWEST), None)
    ratios = {"previous": _over(before, one), LOWEST: _over(lowest, one)}
    for name, figure in (("baseline", "step_us"), ("end_to_end", "train_s")):
        ratio = _over(baseline, one, figure)
        ratios[name] = 1 / ratio if ratio and one["device"] == "emulated" else ratio
    return ratios


def _over(
    other: Mapping[str, Any] | None, one: Mapping[str, Any], figure: str = "step_us"
) -> float | None:
    """A figure of another series over that of this one, where both ended well and did the same."""
    if other is None or {other["status"], one["status"]} != {"ok"}:
        return None
    if any(other[same] != one[same] for same in ("batch_size", "train_images")):
        return None
    return _rate(other[figure], one[figure])


def print_ladder(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print what ``summarise_ladder`` found in 80 columns; colour only where the terminal has any."""
    console = plain_console(stream)
    console.print(title(summary), style="bold")
    for table in (_times(summary), _use(summary), _outcomes(summary), _stages(summary)):
        console.print(table)
        console.print()
    for line in _notes(summary):
        console.print(line)


def _label(one: Mapping[str, Any]) -> str:
    """The rung; emulated times are not to be mistaken for a GPU's."""
    return f"{one['name']} (emulated)" if one["device"] == "emulated" else str(one["name"])


def _ratio_title(summary: Mapping[str, Any]) -> str:
    """The head of the column of ratios to the baseline, in two lines where it is long."""
    mark = "*" if summary["baseline_doubt"] else ""
    return (summary["ratio"] or "to baseline").replace("/", "/\n") + mark


def factor(value: float | None) -> str:
    """Three digits: 0.0123x, 1.05x, 24.1x, 1,230x; empty where there is none."""
    if value is None:
        return ""
    return f"{value:,.0f}x" if value >= 99.95 else f"{value:#.3g}x"


def _times(summary: Mapping[str, Any]) -> Table:
    """Whole steps, and training end to end."""
    ratio = _ratio_title(summary)
    names = ("rung", "step us", "images/s", "factor", f"over\n{LOWEST}", ratio, "end to\nend")
    table = new_table(*names, words=1)
    for one in summary["rungs"]:
        ratios = one["ratios"]
        table.add_row(
            _label(one),
            number(one["step_us"], ",.1f"),
            number(one["images_per_s"], ",.0f"),
            "same plan" if one["same_plan_as"] else factor(ratios["previous"]),
            *(factor(ratios[name]) for name in (LOWEST, "baseline", "end_to_end")),
        )
    return table


def _use(summary: Mapping[str, Any]) -> Table:
    """What a step takes of the device: memory, arithmetic and bandwidth."""
    names = ("rung", "peak MiB", "FLOP/byte", "GFLOP/s", "of FMA", "GB/s", "of copy")
    table = new_table(*names, words=1)
    for one in summary["rungs"]:
        peak = one["memory_bytes"].get("peak")
        table.add_row(
            _label(one),
            number(peak and peak / MEBIBYTE, ",.1f"),
            number(one["flop_per_byte"], ".1f"),
            number(one["gflop_per_s"], ",.1f"),
            _share(one["gflop_share"]),
            number(one["gbyte_per_s"], ",.1f"),
            _share(one["gbyte_share"]),
        )
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _outcomes(summary: Mapping[str, Any]) -> Table:
    """What was learnt, and how much of the network each rung took."""
    table = new_table(
        "rung", "test accuracy", "difference", "same predictions", "coverage", words=1
    )
    for one in summary["rungs"]:
        counts = one["coverage"]
        table.add_row(
            _label(one),
            number(one["test_accuracy"], ".4f"),
            "" if one["accuracy_difference"] is None else f"{one['accuracy_difference']:+.4f}",
            "" if one["predictions_equal"] is None else f"{one['predictions_equal']:.2%}",
            f"{counts['taken']}/{counts['possible']}" if counts else "",
        )
    return table


def _stages(summary: Mapping[str, Any]) -> Table:
    """Medians of the stages, a column for each rung; a stage is named by its first layer, which no other shares."""
    names = [one["name"] for one in summary["rungs"]]
    table = new_table(f"stages, us{_mark(summary)}", "", *names)
    table.columns[0].no_wrap = False  # the mark may not be cut off
    for stage in summary["stages"]:
        first, *others = stage["layers"]
        phases = "+".join(SHORT[phase] for phase in stage["phases"])
        times = [_short_us(stage["us"][name]) if name in stage["us"] else "" for name in names]
        table.add_row(f"{first}{'..' if others else ''}", phases, *times)
    return table


def _mark(*summaries: Mapping[str, Any]) -> str:
    """What stands beside times of several rungs if they are emulated."""
    devices = {one["device"] for summary in summaries for one in summary["rungs"]}
    return " (emulated)" if "emulated" in devices else ""


def _short_us(time_us: float | None) -> str:
    return number(time_us, ",.0f" if time_us and time_us >= 1000 else ".1f")


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """What the tables' columns mean, and what may be said in a sentence."""
    notes = [
        "factor: step time of the rung before over this one's. coverage: stages of the rung / stages that "
        "it could take. A stage conv2d1.. begins with that layer and covers others.",
    ]
    ceilings = summary["ceilings"]
    if ceilings:
        copies = [copy["gbyte_per_s"] for copy in ceilings["copies"].values()]
        where = "the emulated device" if summary["device"]["kind"] == "emulated" else "this device"
        notes.append(
            f"ceilings measured on {where}: {ceilings['gflop_per_s']:,.0f} GFLOP/s (FMA); "
            f"{min(copies):,.0f} to {max(copies):,.0f} GB/s (copies in as much memory as a rung holds)"
        )
    if summary["baseline_doubt"]:
        notes.append(f"* {summary['baseline_doubt']}")
    return [*notes, *_headline(summary)]


def _headline(summary: Mapping[str, Any]) -> list[str]:
    """The fastest rung in ratios of totals; nothing where times are emulated, or a total is missing."""
    if summary["ratio"] != "speedup" or summary["baseline_doubt"]:
        return []
    known = [one for one in summary["rungs"] if one["ratios"]["end_to_end"]]
    if not known:
        return []
    best = min(known, key=lambda one: float(one["train_s"]))
    return [
        f"training end to end: {best['name']} is {factor(best['ratios']['end_to_end'])} as fast as "
        "the baseline"
    ]


def print_sweep(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print what ``sweep`` found: for each figure a table of values and rungs, then what failed."""
    console = plain_console(stream)
    values = summary["values"]
    ladders = [each["ladder"] for each in values if each["ladder"]]
    names = list(dict.fromkeys(one["name"] for ladder in ladders for one in ladder["rungs"]))
    ratio = next((ladder["ratio"] for ladder in ladders if ladder["ratio"]), None)
    heads = {
        "step_us": f"step us{_mark(*ladders)}",
        "images_per_s": "images/s",
        "ratio": ratio or "",
        "test_accuracy": "test accuracy",
    }
    if ladders:
        console.print(f"{title(ladders[0])}, by {summary['key']}", style="bold")
    for figure, head in heads.items():
        rows = [[_swept(each, name, figure) for name in names] for each in values]
        if not any(map(any, rows)):
            continue
        table = new_table(head, *names, words=1)
        for each, cells in zip(values, rows, strict=True):
            ending = "" if each["status"] == "ok" else f" {each['status']}"
            ending += _other_batch(summary["key"], each)
            table.add_row(f"{each['value']}{ending}", *cells)
        console.print(table)
        console.print()
    for each in values:
        what = [each["folder"] or "", f"{each['status']}: {each['message']}"]
        line = ": ".join([each["value"], *filter(None, what[: 1 + bool(each["message"])])])
        print(line, file=console.file)  # whole, however long


def _other_batch(key: str, outcome: Mapping[str, Any]) -> str:
    """The batch that ran, where the data set has fewer images than the batch of a sweep."""
    rungs = (outcome["ladder"] or {"rungs": []})["rungs"]
    ran = next((one["batch_size"] for one in rungs if one["batch_size"]), None)
    if key != "training.batch_size" or ran is None or str(ran) == outcome["value"]:
        return ""
    return f" (ran {ran})"


def _swept(outcome: Mapping[str, Any], name: str, figure: str) -> str:
    """One figure of one rung in a sweep; empty where it is not known."""
    found = (outcome["ladder"] or {"rungs": []})["rungs"]
    one = next((each for each in found if each["name"] == name), None)
    if one is None:
        return ""
    if figure == "ratio":
        return factor(one["ratios"]["baseline"])
    forms = {"step_us": ",.1f", "images_per_s": ",.0f", "test_accuracy": ".4f"}
    return "" if one[figure] is None else f"{one[figure]:{forms[figure]}}"
