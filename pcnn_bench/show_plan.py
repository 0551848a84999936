"""What ``show`` says of engine cuda: the stages of a rung's plan, its memory, and the rungs side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Plan = Mapping[str, Any]
"""As ``engines.describe_plans`` has it."""


def compare(plan: Plan) -> dict[str, Any]:
    """The figures of a plan that are held against those of other rungs."""
    if "error" in plan:
        return dict(plan)
    memory = plan["memory"]
    return {
        "rung": plan["rung"],
        "stage_count": len(plan["stages"]),
        **plan["totals"]["step"],
        "activation_bytes": memory["category_bytes"].get("activations", 0),
        "allocation_bytes": memory["allocation_bytes"],
        "coverage": plan["coverage"],
        "fallback_count": len(plan["fallbacks"]),
        "repeats_bitwise": not plan["unrepeatable"],
        "same_plan_as": plan["same_plan_as"],
    }


def render_plan(plan: Plan, *, is_deterministic: bool) -> RenderableType:
    """Stages, fall-backs and memory of a plan; ``is_deterministic`` says whether the config demands that it repeats."""
    if "error" in plan:
        return Text(f"rung {plan['rung']}: no plan: {plan['error']}")
    return Group(
        Text(f"rung {plan['rung']}, {_repeats(plan, is_deterministic)}"),
        _stage_table(plan["stages"], plan["totals"]["step"]),
        *(Text(line) for line in _notes(plan)),
        _memory_table(plan["memory"]),
        Text(_memory_note(plan["memory"], keeps_data=plan["keeps_data"])),
    )


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line a rung, from ``compare``."""
    titles = (
        "stages", "laun-\nches", "FLOP", "byte", "activa-\ntions", "memory", "covers", "falls\nback",
    )  # fmt: skip
    table = _table(("rung", "left"), *((title, "right") for title in titles))
    for row in rows:
        if "error" in row:
            continue
        counts = row["coverage"]
        table.add_row(
            row["rung"],
            str(row["stage_count"]),
            str(row["launch_count"]),
            *(short(row[f"{name}_count"]) for name in ("flop", "byte")),
            *(short(row[f"{name}_bytes"]) for name in ("activation", "allocation")),
            f"{counts['taken']}/{counts['possible']}" if counts else "",
            str(row["fallback_count"]),
        )
    parts: list[RenderableType] = [Text("all rungs, a step of each")]
    if table.row_count:
        parts += [table, Text("covers: stages of the rung's own ops, of those that it could have")]
    return Group(*parts, *(Text(note) for note in _comparison_notes(rows)))


def _comparison_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a line has no room for."""
    errors: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            errors.setdefault(row["error"], []).append(row["rung"])
            continue
        if row["same_plan_as"]:
            yield f"rung {row['rung']}: same plan as {row['same_plan_as']}"
        if not row["repeats_bitwise"]:
            yield f"rung {row['rung']}: repeats not bit for bit"
    for error, rungs in errors.items():
        yield f"no plan of {', '.join(rungs)}: {error}"


def _repeats(plan: Plan, is_deterministic: bool) -> str:
    """Whether a second run gives the same bits, and what prevents it."""
    if not plan["unrepeatable"]:
        return "repeats: bit for bit"
    demanded = ", although training.deterministic demands it" if is_deterministic else ""
    return f"repeats: not bit for bit ({', '.join(plan['unrepeatable'])}){demanded}"


def _stage_table(stages: Sequence[Mapping[str, Any]], step: Mapping[str, int]) -> Table:
    """A line for each phase of each stage."""
    table = _table(
        ("stage", "left", "step"), ("op", "left"), ("phase", "left"),
        ("laun-\nches", "right", str(step["launch_count"])),
        ("FLOP", "right", short(step["flop_count"])), ("byte", "right", short(step["byte_count"])),
    )  # fmt: skip
    for stage in stages:
        name, op = stage["name"], stage["source"].removesuffix(".cu")
        for phase, counts in stage["phases"].items():
            table.add_row(
                Text(name),  # as Text, since a name may hold what rich takes for markup
                Text(_broken(op) or (stage["direction"] if phase == "backward" else "")),
                phase,
                str(counts["launch_count"]),
                short(counts["flop_count"]),
                short(counts["byte_count"]),
            )
            name = op = ""
    return table


def _broken(op: str, width: int = 16) -> str:
    """The name of an op, in lines that end where a word of it does."""
    lines = [""]
    for word in re.findall("[^_]+_?", op):
        if len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _notes(plan: Plan) -> Iterator[str]:
    """What a rung takes from lower rungs, and why."""

    def key(fallback: Mapping[str, Any]) -> tuple[str, str]:
        return fallback["rung"], fallback["reason"]

    for (rung, reason), group in groupby(sorted(plan["fallbacks"], key=key), key):
        stages = ", ".join(fallback["stage"] for fallback in group)
        yield f"falls back to rung {rung}: {stages} ({reason})"
    fallen = {fallback["stage"] for fallback in plan["fallbacks"]}
    chosen: dict[str, list[str]] = {}
    for stage in plan["stages"]:
        if stage["rung"] != plan["rung"] and stage["name"] not in fallen:
            chosen.setdefault(stage["rung"], []).append(stage["name"])
    for rung, names in chosen.items():
        yield f"of rung {rung}, by choice: {', '.join(names)}"


def _memory_table(memory: Mapping[str, Any]) -> Table:
    """A line for each tensor, those of a category together."""
    table = _table(("tensor", "left", "allocation"), ("byte", "right", f"{memory['allocation_bytes']:,}"),
                   ("steps", "right"), ("offset", "right"))  # fmt: skip
    for category, tensors in groupby(memory["tensors"], lambda row: row["category"]):
        table.add_row(category, f"{memory['category_bytes'][category]:,}", style="bold")
        for row in tensors:
            is_lent = row["first_step"] is not None
            table.add_row(
                Text(f"  {row['stage']} {row['tensor']}" if row["stage"] else f"  {row['tensor']}"),
                f"{row['byte_count']:,}",
                f"{row['first_step']}..{row['last_step']}" if is_lent else "always",
                f"{row['offset']:,}",
            )
    return table


def _memory_note(memory: Mapping[str, Any], *, keeps_data: bool) -> str:
    """What the steps are, what sharing saves, and what is not there."""
    last = memory["step_count"] - 1
    data = "\nThe training set, kept on the device, comes on top." if keeps_data else ""
    return (
        f"Steps 0 to {last}: forward through all stages, backward through all, update ({last}).\n"
        f"Tensors that do not always live take {short(memory['lent_bytes'], 'B')} in an arena of "
        f"{short(memory['arena_bytes'], 'B')}.{data}"
    )


def _table(*columns: tuple[str, ...]) -> Table:
    """An empty table of columns (title, justification, footer); the first takes what room there is."""
    has_footer = any(len(column) > 2 for column in columns)
    table = Table(box=SIMPLE_HEAD, show_footer=has_footer, pad_edge=False, padding=(0, 1, 0, 0))
    for index, (title, justify, *footer) in enumerate(columns):
        table.add_column(
            title,
            *footer,
            justify="left" if justify == "left" else "right",
            no_wrap=justify == "right",
            overflow="fold",
            min_width=10 if index == 0 else None,
        )
    return table


def short(count: int, unit: str = "") -> str:
    """Three digits and a prefix (15.1 M); empty where there is nothing."""
    if not count:
        return ""
    value, prefixes = float(count), ["E", "P", "T", "G", "M", "k", ""]
    prefix = prefixes.pop()
    while value >= 999.5 and prefixes:
        value, prefix = value / 1000, prefixes.pop()
    return f"{value:.3g} {prefix}{unit}".rstrip()
