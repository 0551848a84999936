"""Training time end to end: every series' wall time, and its ratio to the baseline's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pcnn_bench.figures.common import (
    MUTED,
    NothingToDrawError,
    color,
    emulated_mark,
    format_ratio,
    format_us,
    hatch,
    log_ratio_axis,
    new_figure,
    plain,
    ratio_name,
    source_line,
    style,
)
from pcnn_bench.pairing import BASELINE, Series, all_series
from pcnn_bench.results_reading import EngineSummary, Results

ROW_INCHES = 0.42
BAR = 0.5


@dataclass(frozen=True, slots=True)
class Totals:
    """One series' training: seconds from the first batch to the last update, and what surrounds them."""

    series: Series
    status: str
    train_s: float
    eval_s: float | None
    compile_s: float | None
    train_images: int | None
    epoch_s: dict[int, float]
    """Seconds of each epoch that ended well."""

    def fault_against(self, baseline: Totals | None) -> str:
        """Why there is no ratio to the baseline; empty if there is one."""
        if baseline is None:
            return "the run has no baseline"
        for side in (self, baseline):
            if side.status != "ok":
                return f"{side.series.label}: {side.status or 'status unknown'}"
        if self.train_images != baseline.train_images or (
            self.train_images is None and self.epoch_s.keys() != baseline.epoch_s.keys()
        ):
            return f"{self.series.label} and the baseline did not train equally many images"
        return ""


def totals(results: Results) -> list[Totals]:
    """The series of one run whose training time is known: from run.json, else from the epochs."""
    summaries = {Series(e.engine, e.device, e.rung): e for e in results.runs[0].engines}
    found = []
    for series in all_series(results):
        epochs = results.epochs[
            (results.epochs["engine"] == series.engine)
            & (results.epochs["device"] == series.device)
            & (results.epochs["rung"] == series.rung)
        ]
        ok = epochs[epochs["status"] == "ok"]
        epoch_s = {int(e): float(s) for e, s in zip(ok["epoch"], ok["wall_s"], strict=True)}
        summary = summaries.get(series)
        status = summary.status if summary else "ok" if len(ok) == len(epochs) else "failed"
        train_s = summary.train_s if summary and summary.train_s else sum(epoch_s.values())
        if train_s > 0:
            found.append(_totals(series, status, train_s, summary, epoch_s))
    return found


def _totals(
    series: Series,
    status: str,
    train_s: float,
    summary: EngineSummary | None,
    epoch_s: dict[int, float],
) -> Totals:
    """With what run.json adds, where there is one."""
    if summary is None:
        return Totals(series, status, train_s, None, None, None, epoch_s)
    return Totals(
        series,
        status,
        train_s,
        summary.eval_s,
        summary.compile_s,
        summary.train_images,
        epoch_s,
    )


def faults(results: Results) -> list[str]:
    """Why series of one run have no ratio, a line each."""
    rows = totals(results)
    baseline = next((row for row in rows if row.series.engine == BASELINE), None)
    others = [row for row in rows if row is not baseline]
    return [fault for row in others if (fault := row.fault_against(baseline))]


def draw(results: Results) -> Figure:
    """One run's training wall times, and beside them the ratios to the baseline.

    Raises:
        NothingToDrawError: no training time is known.
    """
    rows = totals(results)
    if not rows:
        raise NothingToDrawError("neither run.json nor epochs.csv holds a training time")
    baseline = next((row for row in rows if row.series.engine == BASELINE), None)
    with style():
        figure = new_figure(
            ROW_INCHES * len(rows) + 0.75,
            title=_title(results, rows, baseline),
            subtitle="Wall time from the first batch to the last update, transfers included;"
            " compilation and evaluation beside it.",
            caption=[_caption(rows, baseline), source_line(results.runs[0])],
        )
        has_others = any(row is not baseline for row in rows)
        widths = (1.25, 1) if has_others else (1,)
        panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths, squeeze=False)[0]
        _draw_times(panels[0], rows)
        if has_others:
            _draw_ratios(panels[1], rows, baseline)
        labels = [plain(row.series.label, 26) for row in rows]
        panels[0].set_yticks(range(len(rows)), labels, size=7.5)
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
        for axes in panels:
            axes.grid(False, axis="y")
            axes.tick_params(axis="y", length=0)
    return figure


def _draw_times(axes: Axes, rows: list[Totals]) -> None:
    """A bar of training, then evaluation and compilation, paler."""
    longest = max(row.train_s + (row.eval_s or 0) + (row.compile_s or 0) for row in rows)
    for y, row in enumerate(rows):
        start = 0.0
        parts = ((row.train_s, 1.0), (row.eval_s or 0.0, 0.45), (row.compile_s or 0.0, 0.2))
        for seconds, alpha in parts:
            axes.barh(
                y - 0.1,
                seconds,
                left=start,
                height=BAR,
                color=color(row.series),
                alpha=alpha,
                edgecolor="white",
                linewidth=0.5,
                hatch=hatch(row.series),
            )
            start += seconds
        ending = "" if row.status == "ok" else f" ({plain(row.status, 12)})"
        # at the end of a bar of three parts a number alone would read as their sum
        label = f" training {_seconds(row.train_s)}{ending}"
        axes.text(start, y - 0.1, label, va="center", weight="bold")
        axes.text(0, y + 0.3, _beside(row), size=6.5, color=MUTED, va="center")
    all_ok = all(row.status == "ok" for row in rows)
    axes.set_xlim(0, longest * (1.6 if all_ok else 2.0))  # room for the number, and for a status
    axes.set_xlabel("seconds: training, evaluation (paler), compilation (palest)")


def _beside(row: Totals) -> str:
    """What surrounds the training, in words."""
    parts = (("evaluation", row.eval_s), ("compilation", row.compile_s))
    return " · ".join(f"{word} {_seconds(seconds)}" for word, seconds in parts if seconds)


def _draw_ratios(axes: Axes, rows: list[Totals], baseline: Totals | None) -> None:
    """A bar from 1 to the ratio of totals; dots for single epochs, a diamond with compilation."""
    is_emulated = all(row.series.is_emulated for row in rows if row is not baseline)
    ends = [1.0]
    for y, row in enumerate(rows):
        if row is baseline:
            continue
        if baseline is None or row.fault_against(baseline) or row.series.is_emulated != is_emulated:
            axes.text(1.0, y - 0.1, " n/a", color=MUTED, va="center", style="italic")
        else:
            ends += _draw_ratio(axes, y, row, baseline)
    log_ratio_axis(axes, min(ends), max(ends))
    axes.set_xlabel(ratio_name(is_emulated=is_emulated))


def _draw_ratio(axes: Axes, y: int, row: Totals, baseline: Totals) -> list[float]:
    """One series' ratios; returns them for the axis' limits."""

    def ratio_of(baseline_s: float, other_s: float) -> float:
        speedup = baseline_s / other_s
        return 1 / speedup if row.series.is_emulated else speedup

    ratio = ratio_of(baseline.train_s, row.train_s)
    cold = ratio_of(
        baseline.train_s + (baseline.compile_s or 0), row.train_s + (row.compile_s or 0)
    )
    epochs = [
        ratio_of(baseline.epoch_s[epoch], seconds)
        for epoch, seconds in row.epoch_s.items()
        if epoch in baseline.epoch_s
    ]
    axes.barh(
        y - 0.1,
        ratio - 1,
        left=1.0,
        height=BAR,
        color=color(row.series),
        edgecolor="white",
        linewidth=0,
        hatch=hatch(row.series),
    )
    axes.plot(epochs, [y + 0.3] * len(epochs), "o", markersize=3, color=MUTED)
    axes.plot([cold], [y - 0.1], "D", markersize=4.5, color="white", markeredgecolor="black")
    is_right = ratio >= 1
    axes.text(
        max(ratio, cold) if is_right else min(ratio, cold),
        y - 0.1,
        f"   {format_ratio(ratio)}   ",
        weight="bold",
        va="center",
        ha="left" if is_right else "right",
    )
    return [ratio, cold, *epochs]


def _title(results: Results, rows: list[Totals], baseline: Totals | None) -> str:
    """The best ratio of totals where it may be a headline; emulated times make none."""
    title = f"Training {plain(results.runs[0].title, 40)} end to end"
    mark = emulated_mark(row.series for row in rows)
    others = [row for row in rows if row is not baseline and not row.fault_against(baseline)]
    if mark or baseline is None or not others:
        return title + mark
    best = min(others, key=lambda row: row.train_s)
    ratio = format_ratio(baseline.train_s / best.train_s)
    return f"{title}: {plain(best.series.label, 30)} is {ratio} as fast as the baseline"


def _caption(rows: list[Totals], baseline: Totals | None) -> str:
    """How much was trained, and what the marks mean."""
    images = sorted({row.train_images for row in rows if row.train_images})
    epochs = sorted({len(row.epoch_s) for row in rows})
    parts = [f"{'/'.join(map(str, epochs))} epoch(s)"]
    if images:
        parts.append(f"{' / '.join(f'{count:,}' for count in images)} images trained per engine")
    if baseline and len(rows) > 1:
        parts.append("bars: ratios of totals; dots: single epochs; diamond: with compilation")
    return " · ".join(parts)


def _seconds(seconds: float) -> str:
    """Three significant digits and a unit."""
    return format_us(seconds * 1e6) if math.isfinite(seconds) else "n/a"
