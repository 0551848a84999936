"""Loss and accuracy of every series against epochs and against seconds of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from pcnn_bench.figures.common import (
    NothingToDrawError,
    color,
    emulated_mark,
    new_figure,
    plain,
    source_line,
    style,
)
from pcnn_bench.pairing import BASELINE, Series, all_series
from pcnn_bench.results_reading import Results

PANEL_INCHES = 1.9
_LINES = ("-", "--", ":", "-.")
_MARKS = ("o", "^", "D")
"""The next one when the lines begin anew."""
_TITLE_SERIES = 4
"""As many as a title holds in two lines."""


def curves(results: Results) -> dict[Series, pd.DataFrame]:
    """The epochs of each series of one run, in order, with ``seconds``: training time up to then.

    A missing epoch makes every later ``seconds`` unknown (NaN), since its own time is not known.
    """
    found = {}
    for series in all_series(results):
        rows = results.epochs[
            (results.epochs["engine"] == series.engine)
            & (results.epochs["device"] == series.device)
            & (results.epochs["rung"] == series.rung)
        ].sort_values("epoch")
        if len(rows):
            unbroken = rows["epoch"].to_numpy() == np.arange(1, len(rows) + 1)
            known = np.logical_and.accumulate(unbroken)
            seconds = np.where(known, rows["wall_s"].to_numpy().cumsum(), np.nan)
            found[series] = rows.assign(seconds=seconds)
    return found


def draw(results: Results) -> Figure:
    """One run's learning curves; without test accuracies, those of the loss alone.

    Raises:
        NothingToDrawError: there is no finished epoch.
    """
    found = curves(results)
    if not any(rows[["train_loss", "test_loss"]].notna().any(axis=None) for rows in found.values()):
        raise NothingToDrawError("epochs.csv holds no loss")
    has_accuracy = any(rows["test_accuracy"].notna().any() for rows in found.values())
    looks = _looks(list(found))
    with style():
        figure = new_figure(
            PANEL_INCHES * (2 if has_accuracy else 1) + 0.2,
            title=_title(results, found, has_accuracy),
            subtitle=_subtitle(found),
            caption=[_caption(found), source_line(results.runs[0])],
            keys=[
                Line2D([], [], label=plain(series.label, 30), **look)
                for series, look in looks.items()
            ],
        )
        panels = figure.subplots(2 if has_accuracy else 1, 2, sharex="col", sharey="row")
        grid = np.atleast_2d(panels)
        for column, x in enumerate(("epoch", "seconds")):
            for series, rows in found.items():
                _draw_curve(grid[0, column], rows, x, "train_loss", looks[series], pale=True)
                _draw_curve(grid[0, column], rows, x, "test_loss", looks[series])
                if has_accuracy:
                    _draw_curve(grid[1, column], rows, x, "test_accuracy", looks[series])
            for axes in grid[:, column]:
                _mark_bad_epochs(axes, found, x)
        _dress(grid, found, has_accuracy)
    return figure


def _looks(series: list[Series]) -> dict[Series, dict[str, Any]]:
    """Colour by engine; lines and marks tell an engine's rungs apart; emulated marks are hollow.

    The baseline is drawn broad, below the others: the engines often agree to the width of a line.
    """
    looks: dict[Series, dict[str, Any]] = {}
    rungs: dict[str, int] = {}
    for one in series:
        index = rungs[one.engine] = rungs.get(one.engine, -1) + 1
        is_baseline = one.engine == BASELINE
        looks[one] = {
            "color": color(one),
            "linestyle": _LINES[index % len(_LINES)],
            "linewidth": 2.8 if is_baseline else 1.4,
            "marker": "s" if is_baseline else _MARKS[index // len(_LINES) % len(_MARKS)],
            "markersize": 5.5 if is_baseline else 4,
            "markerfacecolor": "white" if one.is_emulated else color(one),
            "zorder": 2 if is_baseline else 3,
        }
    return looks


def _draw_curve(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, look: dict[str, Any], *, pale: bool = False
) -> None:
    """One curve; the training set's is pale and has no marks unless a mark is all there is."""
    known = rows[[x, y]].dropna()
    if pale:
        look = {**look, "alpha": 0.35, "marker": "x" if len(known) == 1 else ""}
    axes.plot(known[x], known[y], **look)


def _mark_bad_epochs(axes: Axes, found: dict[Series, pd.DataFrame], x: str) -> None:
    """A dotted line where an epoch did not end well; the subtitle says what it did."""
    for series, rows in found.items():
        for place in rows[rows["status"] != "ok"][x].dropna():
            axes.axvline(place, color=color(series), linestyle=":", linewidth=1)


def _dress(grid: Any, found: dict[Series, pd.DataFrame], has_accuracy: bool) -> None:
    """Labels and scales of the panels."""
    grid[0, 0].set_ylabel("loss (mean per image)")
    if has_accuracy:
        grid[1, 0].set_ylabel("test accuracy (fraction)")
    epochs, seconds = grid[-1, 0], grid[-1, 1]
    epochs.set_xlabel("epoch")
    epochs.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=8))
    last = max(int(rows["epoch"].max()) for rows in found.values())
    epochs.set_xlim(0.5, last + 0.5)
    times = np.concatenate([rows["seconds"].dropna().to_numpy() for rows in found.values()])
    if times.size:
        # Engines differ by orders of magnitude; on a linear axis the faster one is a vertical line.
        seconds.set_xscale("log")
        low, high = times.min() / 1.5, times.max() * 1.5
        seconds.set_xlim(low, high)
        subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
        seconds.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
        seconds.set_xlabel("seconds of training (evaluation excluded), log scale")
    else:
        seconds.set_xlabel("seconds of training: unknown")
    seconds.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    seconds.xaxis.set_minor_formatter(lambda value, _: "")


def _title(results: Results, found: dict[Series, pd.DataFrame], has_accuracy: bool) -> str:
    """The last accuracies, or losses, of every series."""
    name = plain(results.runs[0].title, 40)
    column = "test_accuracy" if has_accuracy else "train_loss"
    ends = []
    for series, rows in found.items():
        values = rows[column].dropna()
        if len(values):
            ends.append(f"{plain(series.short, 30)} {values.iloc[-1]:.4g}")
    if len(ends) > _TITLE_SERIES:  # the lower rungs are in the legend
        ends = [ends[0], *ends[1 - _TITLE_SERIES :]]
    word = "test accuracy" if has_accuracy else "training loss"
    return f"{name}: last {word}: {', '.join(ends)}{emulated_mark(found)}"


def _subtitle(found: dict[Series, pd.DataFrame]) -> str:
    """How to tell the curves apart, and what did not end well."""
    parts = ["Full colour with marks: test set; pale: training set while it learns."]
    for series, rows in found.items():
        for row in rows[rows["status"] != "ok"].to_dict("records")[:2]:
            parts.append(f"{plain(series.label, 40)}: {row['status']} in epoch {row['epoch']}.")
    return " ".join(parts)


def _caption(found: dict[Series, pd.DataFrame]) -> str:
    """Epochs of every series."""
    counts = [f"{plain(series.label, 40)}: {len(rows)} epoch(s)" for series, rows in found.items()]
    return " · ".join(counts)
