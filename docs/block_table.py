"""Write docs/blocks.md from the published measurement of blocks; ``--check`` only says whether it is up to date.

``python docs/block_table.py [--check]``; exit codes 0 done, 1 the page differs. The measurement is made by
``tests/benchmarks/blocks.py``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from published_quantities import UNKNOWN

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "results" / "published" / "h200" / "blocks.csv"
PAGE = ROOT / "docs" / "blocks.md"
AS_FAST = 0.02
"""Times closer than this are called equal."""
PHASES = ("forward", "backward")
Row = Mapping[str, str]
Rows = Mapping[tuple[str, str, str, str], Row]

HEAD = """# Block by block

A convolution with its activation and its pooling, by itself, its input's gradient wanted: push against pull, the ring
against the tile, and what `tuned` and `graph` make of the same block. Medians on an NVIDIA H200, all variants of a
shape in turns; the counters are Nsight Compute's. This page is written by `python docs/block_table.py` from
[blocks.csv](../results/published/h200/blocks.csv), which `tests/benchmarks/blocks.py` measures; CI fails if it differs.
In rung `fused` a block owns a *tile* of the map, in `ring` it walks down the map with a circular buffer of rows.
[The ladder](ladder.md) explains the rungs. Times within 2 % of each other are called even; *despite* stands before what
speaks for the loser. Where pooling windows overlap, `graph` leaves the block to `tuned` since
this was measured, and because of it.
"""

COUNTERS = {
    "l2_bytes": ("L2 traffic", False),
    "shared_bank_conflicts": ("bank conflicts", False),
    "occupancy_percent": ("occupancy", True),
    "fma_pipe_percent": ("use of the FMA pipes", True),
}
"""Column -> (its name, whether more is better)."""


def main(is_check: bool) -> int:
    """Write the page, or compare it."""
    with SOURCE.open(newline="") as file:
        rows = {
            tuple(row[key] for key in ("shape", "rung", "direction", "phase")): row
            for row in csv.DictReader(file)
        }
    text = "\n".join(page(rows)) + "\n"  # type: ignore[arg-type]
    if not is_check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(
        f"{PAGE.name} differs from {SOURCE.name}; run python docs/block_table.py", file=sys.stderr
    )
    return 1


def page(rows: Rows) -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    shapes = list(dict.fromkeys(shape for shape, *_ in rows))
    yield "## Microseconds\n"
    yield "| block | map, batch | phase | `tuned` | tile, push | tile, pull | ring, push | ring, pull | `graph` |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    for shape in shapes:
        for phase in PHASES:
            yield _times(rows, shape, phase)
    yield "\nForward has no direction. A ring that does not fit leaves the block to the tile."
    yield "\n## Push against pull, the backward of a tile\n"
    yield from _duels(
        rows, shapes, "backward", ("fused", "push", "push"), ("fused", "pull", "pull")
    )
    yield "\n## Ring against tile, forward\n"
    yield from _duels(rows, shapes, "forward", ("ring", "push", "ring"), ("fused", "push", "tile"))
    yield "\n## Ring against tile, the better direction of each backward\n"
    yield from _duels(rows, shapes, "backward", ("ring", "", "ring"), ("fused", "", "tile"))


def _times(rows: Rows, shape: str, phase: str) -> str:
    row = rows[shape, "tuned", "push", phase]
    what = f"{row['channels']} to {row['maps']} maps, {row['kernel']} x {row['kernel']}"
    cells = [f"{float(row['median_us']):,.1f}"]
    for rung in ("fused", "ring"):
        for direction in ("push", "pull") if phase == "backward" else ("push",):
            cells.append(_time(rows.get((shape, rung, direction, phase)), rung))
        if phase == "forward":
            cells.append("")
    best = [rows[key] for d in ("push", "pull") if (key := (shape, "graph", d, phase)) in rows]
    cells.append(f"{min(float(each['median_us']) for each in best):,.1f}" if best else UNKNOWN)
    return f"| {shape}: {what} | {row['height']} x {row['width']}, {row['batch']} | {phase} | {' | '.join(cells)} |"


def _time(row: Row | None, rung: str) -> str:
    if row is None or (rung == "ring" and row["op"] != "conv2d_ring"):
        return UNKNOWN
    return f"{float(row['median_us']):,.1f}"


Side = tuple[str, str, str]
"""A rung, a direction (empty for the better one) and what to call it."""


def _duels(rows: Rows, shapes: list[str], phase: str, one: Side, other: Side) -> Iterator[str]:
    """A table of two sides: times, the winner, and the counters by which it differs most."""
    yield f"| block | {one[2]}, us | {other[2]}, us | winner | by | what differs most, winner to loser |"
    yield "|---|---:|---:|---|---:|---|"
    wins: dict[str, int] = {}
    for shape in shapes:
        pair = [_best(rows, shape, phase, side) for side in (one, other)]
        if None in pair:
            yield f"| {shape} | {UNKNOWN} | {UNKNOWN} | {UNKNOWN} | {UNKNOWN} | it does not fit |"
            continue
        first, second = (row for row in pair if row)
        times = [float(row["median_us"]) for row in (first, second)]
        low, high = sorted(times)
        if high / low <= 1 + AS_FAST:
            winner, why = "even", ""
        else:
            is_first = times[0] == low
            winner = one[2] if is_first else other[2]
            why = _why(*((first, second) if is_first else (second, first)))
        wins[winner] = wins.get(winner, 0) + 1
        yield f"| {shape} | {times[0]:,.1f} | {times[1]:,.1f} | {winner} | {high / low:.2f}x | {why} |"
    counts = ", ".join(
        f"{name} {count}" for name, count in sorted(wins.items(), key=lambda item: -item[1])
    )
    yield f"\n{counts}."


def _best(rows: Rows, shape: str, phase: str, side: Side) -> Row | None:
    rung, direction, _ = side
    found = [
        rows.get((shape, rung, each, phase))
        for each in ([direction] if direction else ["push", "pull"])
    ]
    there = [row for row in found if row and (rung != "ring" or row["op"] == "conv2d_ring")]
    return min(there, key=lambda row: float(row["median_us"]), default=None)


def _why(winner: Row, loser: Row) -> str:
    """The counters that favour the winner, the most telling first; what favours the loser is not hidden."""
    found = []
    for column, (name, more_is_better) in COUNTERS.items():
        if not winner.get(column) or not loser.get(column):
            continue
        a, b = float(winner[column]), float(loser[column])
        if min(a, b) <= 0 or max(a, b) / min(a, b) < 1.1:
            continue
        found.append((max(a, b) / min(a, b), f"{name} {a / b:.2f}x", (a > b) == more_is_better))
    found.sort(key=lambda each: (not each[2], -each[0]))
    return (
        "; ".join(text if helps else f"despite {text}" for _, text, helps in found)
        or "no counter by a tenth"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    sys.exit(main(parser.parse_args().check))
