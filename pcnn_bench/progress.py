"""What a run shows on stderr: a bar on a terminal, one line an epoch elsewhere, or nothing.

Nothing here runs by itself: a display changes only when it is told something, which is never inside
a timed region. Nothing here ends a run either: where nobody can be told, nobody is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from pcnn_bench.results import EpochRow
from pcnn_bench.streams import lenient_stderr


class Progress:
    """Shows nothing but ``say``; the base of the displays."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def say(self, text: str) -> None:
        """A line the person must see, whatever the display."""
        print(text, file=self.stream, flush=True)

    def activity(self, text: str, total: int | None = None) -> None:
        """A new activity begins, of ``total`` epochs or of unknown length."""

    def epoch(self, row: EpochRow) -> None:
        """An epoch has ended."""


class Lines(Progress):
    """One line an epoch: for logs."""

    def epoch(self, row: EpochRow) -> None:
        """Print the row."""
        self.say(epoch_line(row))


class Bar(Progress):
    """A bar that advances by epochs: for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        super().__init__(stream)
        # without auto_refresh there is no thread that could draw during a measurement
        self._rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._rich.add_task("", note="", total=None)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def activity(self, text: str, total: int | None = None) -> None:
        """Start the bar anew."""
        self._rich.reset(self._task, description=text, total=total, note="")
        self._rich.refresh()

    def epoch(self, row: EpochRow) -> None:
        """Advance by one."""
        self._rich.update(self._task, advance=1, note=_figures(row))
        self._rich.refresh()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw in the body, leave the terminal clean."""
        with self._rich:
            yield


@contextmanager
def showing(
    quiet: bool, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[Progress]:
    """None if ``quiet``, a bar on a terminal that is neither in CI nor NO_COLOR, else lines."""
    stream = lenient_stderr(stream)
    if quiet:
        yield Progress(stream)
    elif stream.isatty() and not environ.get("CI") and not environ.get("NO_COLOR"):
        bar = Bar(stream)
        with bar.shown():
            yield bar
    else:
        yield Lines(stream)


def epoch_line(row: EpochRow) -> str:
    """``cuda naive (gpu): epoch 2: loss 0.1234, test accuracy 0.9500, 1.2 s``."""
    rung = f" {row.rung}" if row.rung else ""
    return f"{row.engine}{rung} ({row.device}): epoch {row.epoch}: {_figures(row)}"


def _figures(row: EpochRow) -> str:
    parts = [] if row.status == "ok" else [row.status]
    if row.train_loss is not None:
        parts.append(f"loss {row.train_loss:.4f}")
    if row.test_accuracy is not None:
        parts.append(f"test accuracy {row.test_accuracy:.4f}")
    return ", ".join([*parts, f"{row.wall_s:.1f} s"])
