"""The layout of both per-layer figures: a row for each stage, a panel for each phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pcnn_bench.engine import STAGE_PHASES
from pcnn_bench.figures.common import MUTED, plain
from pcnn_bench.pairing import Pair

NAME_LIMIT = 26
"""Characters of a stage's name on one line: a quarter of the width, leaving three panels legible."""


def stage_names(pairs: Sequence[Pair]) -> list[str]:
    """The stages in the order of their first row."""
    return list(dict.fromkeys(pair.stage for pair in pairs))


def stage_label(pair: Pair) -> str:
    """The stage's name in one or two lines; its layers under it where the name does not tell them."""
    layers = "+".join(pair.layers)
    if layers != pair.stage:
        return f"{plain(pair.stage, NAME_LIMIT)}\n({plain(layers, NAME_LIMIT - 2)})"
    if len(layers) <= NAME_LIMIT:
        return plain(layers, NAME_LIMIT)
    cut = layers.rfind("+", 0, NAME_LIMIT) + 1 or NAME_LIMIT
    return f"{plain(layers[:cut], NAME_LIMIT)}\n{plain(layers[cut:], NAME_LIMIT)}"


def draw_panels(
    figure: Figure, pairs: Sequence[Pair], draw_row: Callable[[Axes, float, Pair], None]
) -> list[Axes]:
    """One panel for each phase that has a row; ``draw_row(axes, y, pair)`` draws one of them."""
    names = stage_names(pairs)
    y_of = {name: float(index) for index, name in enumerate(names)}
    phases = [phase for phase in STAGE_PHASES if any(pair.phase == phase for pair in pairs)]
    panels = list(figure.subplots(1, len(phases), sharex=True, sharey=True, squeeze=False)[0])
    labels = {pair.stage: stage_label(pair) for pair in pairs}
    for axes, phase in zip(panels, phases, strict=True):
        axes.set_title(phase, loc="left")
        axes.grid(False, axis="y")
        for pair in pairs:
            if pair.phase == phase:
                draw_row(axes, y_of[pair.stage], pair)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(list(y_of.values()), [labels[name] for name in names], size=7)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    return panels


def write_absent(axes: Axes, x: float, y: float) -> None:
    """Mark a row that has no number; the reason is in the figure's notes."""
    axes.text(x, y, " n/a", size=6.5, color=MUTED, va="center", style="italic")
