"""What the figures share: style, colours, labels, header and footer, axes, and the encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, LogLocator

from pcnn_bench.pairing import Series
from pcnn_bench.results_reading import Run

WIDTH_INCHES = 7.0
"""700 px at 100 dots per inch, the width of a README's column: 8 pt text is then 11 px."""
MARGIN_INCHES = 0.1
KEY_COLUMNS = 3
"""Columns of a legend: the most that hold names like ``cuda persistent (emulated)``."""
PNG_DPI = 200
"""Twice that, for displays that show two dots per px."""

# Okabe and Ito's palette, told apart under the common colour blindnesses (Wong 2011, Nature
# Methods 8:441).
COLORS = {"baseline": "#0072B2", "cuda": "#D55E00", "torch": "#009E73"}
OTHER_COLOR = "#CC79A7"
MUTED = "#595959"
HATCH = "////"
"""Emulated times are hatched, so that they are known for what they are without reading."""

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    # Layer and config names are the user's: a "$" in one is a dollar, not mathematics.
    "text.parse_math": False,
    # Element ids of an SVG are drawn at random otherwise, and every run's file would differ.
    "svg.hashsalt": "pcnn-bench",
}


class NothingToDrawError(Exception):
    """The rows that the figure needs are not there; the message says which."""


@contextmanager
def style() -> Iterator[None]:
    """Our style whatever the user's matplotlibrc says; the caller's is back afterwards."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def color(series: Series) -> str:
    """One colour per engine in every figure."""
    return COLORS.get(series.engine, OTHER_COLOR)


def hatch(series: Series) -> str | None:
    """Hatched where emulated."""
    return HATCH if series.is_emulated else None


def key(series: Series) -> Patch:
    """The series' entry in a legend."""
    return Patch(
        facecolor=color(series),
        edgecolor="white",
        hatch=hatch(series),
        label=plain(series.label, 30),
    )


def plain(text: str, limit: int) -> str:
    """``text`` printable and at most ``limit`` characters, shortened in the middle."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(shown) <= limit:
        return shown
    tail = (limit - 1) // 2
    return f"{shown[: limit - 1 - tail]}…{shown[len(shown) - tail :]}"


def format_ratio(ratio: float) -> str:
    """Three significant digits: 0.0123x, 1.05x, 24.1x, 1230x."""
    return f"{_three_digits(ratio)}x"


def format_us(time_us: float) -> str:
    """Three significant digits in the unit that fits: 870 ns, 12.3 µs, 4.56 ms, 7.89 s."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if time_us >= 0.9995 * size:
            return f"{_three_digits(time_us / size)} {unit}"
    return f"{_three_digits(time_us * 1e3)} ns"


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent where a person would write none."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if 100 <= rounded < 1e6 else f"{value:#.3g}".rstrip(".")


def ratio_name(*, is_emulated: bool) -> str:
    """What a ratio to the baseline is called: an emulated time gives no speedup."""
    if is_emulated:
        return "emulated/baseline, log scale"
    return "speedup over baseline, log scale"


def emulated_mark(series: Iterable[Series]) -> str:
    """The end of a title where emulated times are in the figure; empty where they are not."""
    is_emulated = any(one.is_emulated for one in series)
    return " (emulated device: not GPU times)" if is_emulated else ""


def count_range(counts: Iterable[int]) -> str:
    """``20`` where all are equal, else ``18 to 20``."""
    low, *_, high = sorted([*counts] * 2)
    return f"{low}" if low == high else f"{low} to {high}"


def source_line(run: Run) -> str:
    """The end of every caption: which device, data, commit and run."""
    # run.json has the device null where none was opened: only the baseline ran, on the processor
    unnamed = "cpu" if run.info.get("device", "") is None else "device unknown"
    device = run.text("device", "name") or unnamed
    kind = run.text("device", "kind")
    commit = run.text("commit")
    version = run.text("package_version")
    parts = [
        f"device: {plain(device, 60)}" + (f" ({kind})" if kind and kind not in device else ""),
        f"data: {plain(run.text('data', 'set') or 'unknown', 40)}",
        f"commit {plain(commit[:10], 10)}"
        if commit
        else f"version {plain(version or 'unknown', 20)}",
        f"run {plain(run.name, 70)}",
    ]
    if run.status not in ("", "ok"):
        parts.insert(0, f"this run is {plain(run.status, 20)}")
    return " · ".join(parts)


def new_figure(
    body_inches: float,
    *,
    title: str,
    subtitle: str,
    caption: Sequence[str],
    keys: Sequence[Artist] = (),
) -> Figure:
    """An empty figure whose axes will fill ``body_inches`` between header and footer.

    The header holds the title (wrapped), a subtitle and the legend; the footer the caption. They have
    places of their own, so nothing the axes hold can run into them.
    """
    title_lines = _wrap(title, FontProperties(size=11, weight="bold"))
    subtitle_lines = _wrap(subtitle, FontProperties(size=8))
    caption_lines = [line for part in caption for line in _wrap(part, FontProperties(size=7))]
    line_inches = {"title": 0.20, "subtitle": 0.15, "caption": 0.13}
    header = 0.10 + line_inches["title"] * len(title_lines)
    header += 0.04 + line_inches["subtitle"] * len(subtitle_lines)
    footer = 0.12 + line_inches["caption"] * len(caption_lines)
    keys_inches = 0.09 + 0.18 * ceil(len(keys) / KEY_COLUMNS) if keys else 0.0
    height = header + keys_inches + body_inches + footer

    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=PNG_DPI, facecolor="white")
    left = MARGIN_INCHES / WIDTH_INCHES
    top = 1 - 0.08 / height
    figure.text(left, top, "\n".join(title_lines), size=11, weight="bold", va="top")
    below = top - (line_inches["title"] * len(title_lines) + 0.04) / height
    figure.text(left, below, "\n".join(subtitle_lines), color=MUTED, va="top")
    figure.text(left, 0.06 / height, "\n".join(caption_lines), size=7, color=MUTED, va="bottom")
    if keys:
        figure.legend(
            handles=list(keys),
            loc="upper left",
            bbox_to_anchor=(left, 1 - header / height),
            ncols=KEY_COLUMNS,
            borderaxespad=0.1,
            borderpad=0,
        )
    figure.set_layout_engine(
        ConstrainedLayoutEngine(
            rect=(0, footer / height, 1, body_inches / height), w_pad=0.06, h_pad=0.05
        )
    )
    return figure


def _wrap(text: str, font: FontProperties) -> list[str]:
    """The lines of ``text`` that fit between the margins; a word that is too long is broken."""
    limit_pt = 72 * (WIDTH_INCHES - 2 * MARGIN_INCHES)

    def fits(line: str) -> bool:
        width_pt, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
        return bool(width_pt <= limit_pt)

    lines = [""]
    for word in text.split():
        if fits(f"{lines[-1]} {word}"):
            lines[-1] = f"{lines[-1]} {word}".lstrip()
            continue
        lines.append("")
        for character in word:
            if not fits(lines[-1] + character):
                lines.append("")
            lines[-1] += character
    return [line for line in lines if line]


def log_time_axis(axes: Axes, low_us: float, high_us: float) -> None:
    """A logarithmic x axis of times in microseconds, with room for a number after each bar."""
    axes.set_xscale("log")
    # 0.45 / 1.45: the third of a narrow panel that "1.21 ms" takes.
    room = (high_us / low_us) ** 0.45
    axes.set_xlim(low_us, high_us * max(room, 3.0))
    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=5))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(lambda value, _: _tick_us(value))


def _tick_us(value: float) -> str:
    """A decade: 100 ns, 1 µs, 10 ms."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if value >= 0.999 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value * 1e3:g} ns"


def log_ratio_axis(axes: Axes, low: float, high: float) -> None:
    """A logarithmic x axis of ratios around a line at 1, with room for numbers at both ends."""
    axes.set_xscale("log")
    low, high = min(low, 1.0), max(high, 1.0)
    # A number takes some 0.29 of a narrow panel, on one side or on both: 0.4 / 1.4, 0.7 / 2.4.
    room = max((high / low) ** (0.7 if low < 1 < high else 0.4), 1.5)
    left = low / (room if low < 1 else 1.15)
    right = high * (room if high > 1 else 1.15)
    axes.set_xlim(left, right)
    # Beyond a decade and a half the labels between decades would touch.
    subs = (1.0, 2.0, 5.0) if right / left < 32 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=4))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axvline(1.0, color="black", linewidth=0.9, zorder=3)


def encode(figure: Figure, suffix: str) -> bytes:
    """The figure as the bytes of a ``png`` or ``svg`` file, the same for the same rows."""
    file = BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None
    with style():
        figure.savefig(file, format=suffix, metadata=metadata)
    # Everything has its place now; placing it anew for the next format takes as long as drawing.
    figure.set_layout_engine("none")
    return file.getvalue()
