"""Ratio per layer: one series against the baseline, on a log axis around 1, with intervals."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pcnn_bench.figures.common import (
    NothingToDrawError,
    color,
    count_range,
    emulated_mark,
    format_ratio,
    hatch,
    key,
    log_ratio_axis,
    new_figure,
    plain,
    ratio_name,
    source_line,
    style,
)
from pcnn_bench.figures.stage_rows import draw_panels, stage_names, write_absent
from pcnn_bench.pairing import Pair, Ratio, Series, stage_pairs, step_pair
from pcnn_bench.results_reading import Results

ROW_INCHES = 0.24
BAR = 0.62


def _shown_ratio(series: Series, speedup: Ratio) -> Ratio:
    """What a figure may show: the speedup, or emulated/baseline, its inverse, where emulated."""
    low, ratio, high = speedup
    return (1 / high, 1 / ratio, 1 / low) if series.is_emulated else speedup


def draw(results: Results, series: Series) -> Figure:
    """One run's ratio for each stage and phase of ``series``.

    Raises:
        NothingToDrawError: no stage has a time on both sides; the message gives a reason.
    """
    pairs = stage_pairs(results, series)
    ratios = {id(p): _shown_ratio(series, p.speedup) for p in pairs if p.speedup}
    if not ratios:
        reasons = dict.fromkeys(pair.reason for pair in pairs)
        why = next(iter(reasons), "layers.csv holds no stage of it")
        raise NothingToDrawError(f"{series.label}: no ratio: {why}")

    def draw_row(axes: Axes, y: float, pair: Pair) -> None:
        if id(pair) in ratios:
            _draw_bar(axes, y, series, ratios[id(pair)])
        else:
            write_absent(axes, 1.0, y)

    ends = [end for ratio in ratios.values() for end in ratio if math.isfinite(end)]
    step = step_pair(results, series)
    with style():
        figure = new_figure(
            max(ROW_INCHES * len(stage_names(pairs)) + 0.75, 1.5),
            title=_title(results, series, step),
            subtitle=_subtitle(series, pairs),
            caption=[_caption(pairs), source_line(results.runs[0])],
            keys=[key(series)],
        )
        panels = draw_panels(figure, pairs, draw_row)
        for axes in panels:
            log_ratio_axis(axes, min(ends), max(ends))
        panels[len(panels) // 2].set_xlabel(ratio_name(is_emulated=series.is_emulated))
    return figure


def _draw_bar(axes: Axes, y: float, series: Series, shown: Ratio) -> None:
    """A bar from 1 to the ratio, its interval and its number at the far end."""
    low, ratio, high = shown
    axes.barh(
        y,
        ratio - 1.0,
        left=1.0,
        height=BAR,
        color=color(series),
        edgecolor="white",
        linewidth=0,
        hatch=hatch(series),
    )
    ends = [ratio]
    if math.isfinite(low) and math.isfinite(high):
        axes.plot([low, high], [y, y], color="black", linewidth=1.2, marker="|", markersize=4)
        ends = [low, ratio, high]
    is_right = ratio >= 1
    axes.text(
        max(ends) if is_right else min(ends),
        y,
        f"  {format_ratio(ratio)}  ",
        size=6.5,
        va="center",
        ha="left" if is_right else "right",
    )


def _title(results: Results, series: Series, step: Pair | None) -> str:
    """The whole step's ratio where it may be a headline; emulated times make none."""
    name = plain(results.runs[0].title, 40)
    engine = plain(series.short, 30)
    if series.is_emulated:
        return f"emulated/baseline per layer of {name}: {engine}{emulated_mark([series])}"
    if step is None or step.speedup is None:
        return f"Speedup per layer of {name}: {engine} over the baseline"
    low, ratio, high = step.speedup
    interval = f" ({format_ratio(low)} to {format_ratio(high)})" if math.isfinite(low) else ""
    return f"A training step of {name}: {engine} {format_ratio(ratio)} as fast{interval}"


def _subtitle(series: Series, pairs: list[Pair]) -> str:
    """The least and the greatest ratio, and how many are missing."""
    shown = [(_shown_ratio(series, p.speedup)[1], p) for p in pairs if p.speedup]
    ends = [
        f"{format_ratio(ratio)} ({plain(pair.stage, 26)} {pair.phase})"
        for ratio, pair in (min(shown, key=lambda s: s[0]), max(shown, key=lambda s: s[0]))
    ]
    absent = len(pairs) - len(shown)
    missing = f"; {absent} of {len(pairs)} n/a" if absent else ""
    what = "Emulated time over the baseline's time: from" if series.is_emulated else "From"
    return f"{what} {ends[0]} to {ends[1]}{missing}."


def _caption(pairs: list[Pair]) -> str:
    """What the bars are, and of how many samples."""
    sides = [side for p in pairs if p.speedup for side in (p.baseline, p.other) if side]
    clocks = " and ".join(sorted({side.clock for side in sides}))
    return (
        f"Ratios of median times ({plain(clocks, 20)} clock), batch {pairs[0].batch_size}, "
        f"{count_range(side.sample_count for side in sides)} samples a side;"
        " thin lines: 95 % bootstrap intervals"
    )
