"""``pcnn-bench plot``: every figure that the rows allow, into the ``figures`` folder of each run."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pcnn_bench.errors import ResultsError
from pcnn_bench.figures import end_to_end, layer_speedups, layer_times, loss_accuracy
from pcnn_bench.figures.common import NothingToDrawError, encode
from pcnn_bench.pairing import BASELINE, Series, all_series, stage_pairs
from pcnn_bench.results import RunFolder, load_results
from pcnn_bench.results_reading import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg")


class Plotted(NamedTuple):
    """What ``plot`` did."""

    files: list[Path]
    """Those written."""
    notes: list[str]
    """A line for everything that was skipped or failed, with the reason."""
    failures: list[str]
    """Those of the notes that are about a figure which had its data and was not made."""


def plot(path: Path, *, output: Path | None = None) -> Plotted:
    """Draw every figure of one run folder, or of every run folder below ``path``.

    Figures go to ``<run>/figures/``; with ``output`` to that folder for one run, and to
    ``output/<run>/`` for each of several.

    Raises:
        ResultsError: nothing usable is there, or not one figure could be drawn or written.
    """
    if output is not None and os.path.isfile(output):
        raise ResultsError(f"--output: {output} is a file; name a folder")
    results = load_results(path)
    written: list[Path] = []
    notes: list[str] = []
    failures: list[str] = []
    for run in results.runs:
        target = run.path / "figures"
        if output is not None:
            target = output if run.path == path else output / run.name
        drawn = _plot_run(results.only(run), target)
        written += drawn.files
        notes += [f"{run.name}: {note}" for note in drawn.notes]
        failures += [f"{run.name}: {failure}" for failure in drawn.failures]
    if not written:
        raise ResultsError(f"{path}: no figure could be made: {notes[0]}")
    return Plotted(written, [*results.warnings, *notes], failures)


def _plot_run(results: Results, target: Path) -> Plotted:
    """Every figure of one run; one that fails does not stop the others, and is noted first."""
    written: list[Path] = []
    failures: list[str] = []
    notes = _absent_ratios(results)
    folder = RunFolder(target)
    for name, draw in _figures(results):
        try:
            # matplotlib warns of characters that its font lacks; they show as boxes.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                figure = draw()
                contents = {suffix: encode(figure, suffix) for suffix in SUFFIXES}
            _make_folder(target)
            for suffix, content in contents.items():
                folder.write_bytes(f"{name}.{suffix}", content)
                written.append(target / f"{name}.{suffix}")
            notes += dict.fromkeys(f"{name}: {warning.message}" for warning in caught)
        except NothingToDrawError as reason:
            notes.append(f"{name}: skipped: {reason}")
        except ResultsError as error:
            failures.append(f"{name}: {error}")
        except Exception as error:
            # A figure is the last thing a run makes: a fault in one must not lose the others.
            failures.append(f"{name}: failed: {type(error).__name__}: {error}")
    return Plotted(written, failures + notes, failures)


def _make_folder(target: Path) -> None:
    """Make the folder of the figures, once there is one to be written.

    Raises:
        ResultsError: it cannot be made.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ResultsError(f"{target}: is a file; name a folder with --output") from error
    except OSError as error:
        raise ResultsError(
            f"{target}: cannot be made ({error.strerror}); name another folder with --output"
        ) from error


def _figures(results: Results) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """File name and drawing of every figure of one run."""
    yield "end_to_end", partial(end_to_end.draw, results)
    yield "loss_accuracy", partial(loss_accuracy.draw, results)
    series = all_series(results)
    others = [one for one in series if one.engine != BASELINE]
    for one in others or series:
        ending = f"-{_file_part(one)}" if len(others) > 1 else ""
        yield f"layer_times{ending}", partial(layer_times.draw, results, one)
        kind = "ratios" if one.is_emulated else "speedups"
        yield f"layer_{kind}{ending}", partial(layer_speedups.draw, results, one)


def _file_part(series: Series) -> str:
    """The series in a file name."""
    parts = (series.engine, series.rung, series.device)
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts if part)


def _absent_ratios(results: Results) -> list[str]:
    """Why ratios of one run are missing, each reason once."""
    notes = [f"end_to_end: n/a: {fault}" for fault in end_to_end.faults(results)]
    for series in all_series(results):
        reasons: dict[str, list[str]] = {}
        for pair in stage_pairs(results, series) if series.engine != BASELINE else []:
            if pair.reason:
                reasons.setdefault(pair.reason, []).append(f"{pair.stage} {pair.phase}")
        notes += [
            f"{series.label}: no ratio for {', '.join(where[:3])}"
            + (f" and {len(where) - 3} more" if len(where) > 3 else "")
            + f": {reason}"
            for reason, where in reasons.items()
        ]
    return notes
