"""What a rung does for a network that the rung below does not: the stages it covers, and whether anything differs."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from pcnn_cuda.ladder import BEST_OF, CAPTURED, HOST_DATA, RUNGS, Table
from pcnn_cuda.plan import Plan, PlannedStage


def additions(rung: str) -> Table:
    """The lines of a rung's table that the rung below lacks; the lowest one's all.

    A rung that takes the best of those below has the lines that go beyond single layers for its own.
    """
    below = {upper: lower for lower, upper in pairwise(RUNGS)}.get(rung)
    if rung in BEST_OF:
        below = "tuned"
    known = RUNGS[below] if below else ()
    return tuple(line for line in RUNGS[rung] if line not in known and not line[1].is_view)


def coverage(plan: Plan) -> tuple[int, int] | None:
    """(stages of the plan's rung, stages that it could take); None for a rung that adds no op.

    A stage is of the rung if its op is one that the rung adds to the rung below, and leaves nothing to a lower one's
    kernels. Beside those, the rung could take every run of layers that one of its own lines names, whatever the sizes,
    the longest first; but not where the plan has an op that the table prefers to its own.
    """
    own = additions(plan.rung)
    if not own:
        return None
    layers = plan.network.all_layers
    stages = {stage.op.layers[0].name: stage for stage in plan.stages}
    taken = possible = first = 0
    while first < len(layers):
        kinds = tuple(layer.kind for layer in layers[first:])
        lines = tuple(line for line in own if kinds[: len(line[0])] == line[0])
        stage = stages.get(layers[first].name)
        is_ours = stage is not None and _is_of(stage, own)
        if lines and (is_ours or stage is None or not _is_preferred(stage, lines, plan.rung)):
            taken += is_ours
            possible += 1
        if stage is not None and is_ours:
            first += len(stage.op.layers)
        else:
            first += max((len(run) for run, _ in lines), default=1)
    return taken, possible


def _is_of(stage: PlannedStage, lines: Table) -> bool:
    """Whether the stage's op is of one of these lines and works with kernels of its own."""
    op = stage.op
    return any(type(op) is of for _, of in lines) and op.source == f"{op.stem}.cu"


def _is_preferred(stage: PlannedStage, lines: Table, rung: str) -> bool:
    """Whether the rung's table names the stage's op before the first of these lines."""
    kinds = tuple(layer.kind for layer in stage.op.layers)
    table = RUNGS[rung]
    line = (kinds, type(stage.op))
    return line in table and table.index(line) < min(map(table.index, lines))


def launched(plan: Plan) -> Hashable:
    """What a step of the plan launches: plans for which this is equal do the same in the same way."""
    stages = tuple(
        (
            stage.info.layers,
            type(stage.op),
            stage.op.direction,
            tuple(sorted(stage.op.constants().items())),
        )
        for stage in plan.stages
        if not stage.op.is_view
    )
    return stages, plan.updates_at_once, plan.rung in CAPTURED, plan.rung in HOST_DATA
