"""Time per layer: the baseline and one other series side by side, for each phase."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pcnn_bench.figures.common import (
    NothingToDrawError,
    color,
    count_range,
    emulated_mark,
    format_us,
    hatch,
    key,
    log_time_axis,
    new_figure,
    plain,
    source_line,
    style,
)
from pcnn_bench.figures.stage_rows import draw_panels, stage_names, write_absent
from pcnn_bench.pairing import Pair, Series, Times, baseline_of, engine_fault, stage_pairs
from pcnn_bench.results_reading import Results

ROW_INCHES = 0.30
BAR = 0.38


def draw(results: Results, series: Series) -> Figure:
    """One run's times of the stages of ``series``, each against the baseline's for the same layers.

    Raises:
        NothingToDrawError: no stage has a time.
    """
    pairs = stage_pairs(results, series)
    times = [side for pair in pairs for side in (pair.baseline, pair.other) if side]
    if not times:
        raise NothingToDrawError(f"{series.label}: layers.csv holds no time of a stage")
    baseline = baseline_of(results)
    sides: list[Series] = [baseline] if baseline else []
    sides += [series] if series != baseline else []
    low_us = 10.0 ** math.floor(math.log10(min(side.median_us for side in times)) - 0.2)
    high_us = max(side.median_us for side in times)

    def draw_row(axes: Axes, y: float, pair: Pair) -> None:
        offset = BAR / 2 if len(sides) == 2 else 0.0
        for side in sides:
            is_baseline = side == baseline
            bar_y = y - offset if is_baseline else y + offset
            _draw_bar(axes, bar_y, low_us, side, pair.baseline if is_baseline else pair.other)

    with style():
        figure = new_figure(
            max(ROW_INCHES * len(stage_names(pairs)) + 0.75, 1.6),
            title=_title(results, series),
            subtitle=_subtitle(results, sides),
            caption=[_caption(pairs, sides, baseline), source_line(results.runs[0])],
            keys=[key(side) for side in sides],
        )
        panels = draw_panels(figure, pairs, draw_row)
        log_time_axis(panels[0], low_us, high_us)
        middle = panels[len(panels) // 2]
        middle.set_xlabel(f"time per training step of {pairs[0].batch_size} images, log scale")
    return figure


def _draw_bar(axes: Axes, y: float, low_us: float, side: Series, times: Times | None) -> None:
    """A bar from the axis to the median, its quartiles and its number."""
    if times is None:
        write_absent(axes, low_us, y)
        return
    axes.barh(
        y,
        times.median_us - low_us,
        left=low_us,
        height=BAR,
        color=color(side),
        edgecolor="white",
        linewidth=0,
        hatch=hatch(side),
    )
    if math.isfinite(times.p25_us) and math.isfinite(times.p75_us):
        axes.plot([times.p25_us, times.p75_us], [y, y], color="black", linewidth=1.0)
    end = times.median_us if math.isnan(times.p75_us) else max(times.median_us, times.p75_us)
    axes.text(end, y, f" {format_us(times.median_us)}", size=6.5, va="center")


def _title(results: Results, series: Series) -> str:
    """What is compared, and that it is emulated where it is."""
    name = plain(results.runs[0].title, 40)
    if series == baseline_of(results):
        return f"Time per layer of {name}: the baseline alone"
    return f"Time per layer of {name}: {plain(series.short, 30)}{emulated_mark([series])}"


def _subtitle(results: Results, sides: list[Series]) -> str:
    """What bar and line mean, and which side did not end well."""
    found = [fault for side in sides if (fault := engine_fault(results, side))]
    return " ".join(
        ["Median of the samples; the thin line spans the middle half of them."]
        + [f"{plain(fault, 60)}." for fault in found]
    )


def _caption(pairs: list[Pair], sides: list[Series], baseline: Series | None) -> str:
    """Sample counts and clocks of both sides."""
    parts = []
    for side in sides:
        found = [pair.baseline if side == baseline else pair.other for pair in pairs]
        times = [one for one in found if one]
        clocks = "/".join(sorted({one.clock for one in times}))
        if times:
            count = count_range(one.sample_count for one in times)
            parts.append(f"{plain(side.label, 40)}: {count} samples, {plain(clocks, 20)} clock")
    return " · ".join(parts)
