"""A plan in numbers that JSON can hold: its stages, what it falls back to and why, and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from pcnn_bench.engine import STAGE_PHASES, Stage, Work
from pcnn_bench.errors import DeviceError
from pcnn_bench.network import Layer
from pcnn_cuda import load_batch
from pcnn_cuda.coverage import additions, coverage
from pcnn_cuda.ladder import BEST_OF, HOST_DATA, RUNGS, Table
from pcnn_cuda.launch import kernel_text, repeats_bitwise
from pcnn_cuda.op import Op
from pcnn_cuda.paper import Launches, launches_of
from pcnn_cuda.plan import Category, Plan
from pcnn_cuda.sgd import Sgd

LOWEST_RUNG = next(iter(RUNGS))


def describe(plan: Plan) -> dict[str, Any]:
    """What a step of the plan's batch executes, and where its tensors lie.

    ``phases`` of a stage holds those in which it executes something: launches, FLOPs and bytes. ``fallbacks`` are
    stages whose op is not of the rung that was asked for. ``coverage`` is as ``coverage.coverage`` has it.

    Raises:
        DeviceError: a GPU would refuse a launch.
    """
    launches = launches_of(plan, plan.batch_size)
    stages = [
        _describe_stage(plan, stage.info, stage.op, launches)
        for stage in plan.stages
        if not stage.op.is_view
    ]
    if plan.update:
        stages.append(_describe_stage(plan, plan.update, None, launches))
    counts = coverage(plan)
    return {
        "rung": plan.rung,
        "direction": plan.direction,
        "keeps_data": plan.rung not in HOST_DATA,
        "stages": stages,
        "totals": _totals(stages),
        "fallbacks": list(_fallbacks(plan)),
        "coverage": counts and {"taken": counts[0], "possible": counts[1]},
        "unrepeatable": sorted(
            source for source in _sources(plan) if not repeats_bitwise(kernel_text(source))
        ),
        "memory": _describe_memory(plan),
    }


def _describe_stage(plan: Plan, stage: Stage, op: Op | None, launches: Launches) -> dict[str, Any]:
    """One stage; ``op`` is None for the update of all layers, which belongs to the rung itself."""
    work = stage.work(plan.batch_size)
    return {
        "name": stage.name,
        "layers": list(stage.layers),
        "op": stage.op,
        "source": f"{stage.op}.cu" if op is None else op.source,
        "rung": plan.rung if op is None else _home(op),
        "direction": stage.direction,
        "phases": {
            phase: _describe_phase(work.get(phase), len(launches.get((stage.name, phase), ())))
            for phase in STAGE_PHASES
            if phase in work or (stage.name, phase) in launches
        },
    }


def _describe_phase(work: Work | None, launch_count: int) -> dict[str, int]:
    done = work or Work(0, 0)
    return {"launch_count": launch_count, **asdict(done)}


def _totals(stages: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The sums of each phase, and of the whole ``step``."""
    totals: dict[str, Counter[str]] = {phase: Counter() for phase in (*STAGE_PHASES, "step")}
    for stage in stages:
        for phase, counts in stage["phases"].items():
            totals[phase].update(counts)
            totals["step"].update(counts)
    names = ("launch_count", "flop_count", "byte_count")
    return {phase: {name: counts[name] for name in names} for phase, counts in totals.items()}


def _sources(plan: Plan) -> set[str]:
    """The kernel sources of a training step."""
    sources = {stage.op.source for stage in plan.stages if not stage.op.is_view}
    return sources | {Sgd.source} | (set() if plan.rung in HOST_DATA else {load_batch.SOURCE})


def _describe_memory(plan: Plan) -> dict[str, Any]:
    """Every tensor by category; what lives always lies first, what is lent shares the arena behind it."""
    order = get_args(Category)
    rows = sorted(plan.memory(), key=lambda row: (order.index(row.category), row.offset))
    byte_counts = Counter[str]()
    for row in rows:
        byte_counts[row.category] += row.byte_count
    arena = plan.byte_count - sum(tensor.reserved_bytes for tensor in plan.static)
    return {
        "tensors": [asdict(row) for row in rows],
        "category_bytes": dict(byte_counts),
        "step_count": 2 * len(plan.stages) + 1,
        "arena_bytes": arena,
        "lent_bytes": sum(tensor.reserved_bytes for tensor in plan.arena),
        "allocation_bytes": plan.byte_count,
    }


# Fall-backs


def _home(op: Op) -> str:
    """The lowest rung that has the op; of one that leaves the work to other kernels, the rung of these."""
    if op.source != f"{op.stem}.cu":
        return next(rung for rung, table in RUNGS.items() if op.source in _sources_of(table))
    return next(rung for rung, table in RUNGS.items() if type(op) in {line[1] for line in table})


def _sources_of(table: Table) -> set[str]:
    return {f"{op.stem}.cu" for _, op in table}


def _fallbacks(plan: Plan) -> Iterator[dict[str, Any]]:
    """The stages whose op is of a lower rung than the one asked for, by the layer or for the whole network."""
    for stage in plan.stages:
        op = stage.op
        choice = op.layers[0].spec.cuda
        wanted = (choice and choice.rung) or plan.rung
        home = _home(op)
        if op.is_view or home == wanted or (wanted in BEST_OF and home != LOWEST_RUNG):
            continue
        yield {
            "stage": stage.info.name,
            "layers": list(stage.info.layers),
            "wanted": wanted,
            "rung": home,
            "source": op.source,
            "reason": _reason(op, wanted, plan.network.all_layers),
        }


def _reason(op: Op, wanted: str, layers: Sequence[Layer]) -> str:
    """Why no op of the rung wanted covers what this one covers."""
    own = additions(wanted)
    if wanted in BEST_OF:
        own = tuple(line for line in RUNGS[wanted] if line not in RUNGS[LOWEST_RUNG])
    place, kind = layers.index(op.layers[0]), op.layers[0].kind
    obstacles = [
        _obstacle(layers[first : first + len(run)], candidate, op)
        for first in range(place, -1, -1)
        for run, candidate in own
        if tuple(layer.kind for layer in layers[first : first + len(run)]) == run
        and first + len(run) > place
    ]
    if not obstacles:
        alone = " alone" if any(kind in run for run, _ in own) else ""
        return f"no op of rung {wanted} takes {kind}{alone}"
    return min(obstacles, key=lambda obstacle: obstacle[0])[1]


def _obstacle(layers: Sequence[Layer], candidate: type[Op], taken: Op) -> tuple[int, str]:
    """(rank, why the candidate does not cover these layers); what the person can change ranks first."""
    for layer in layers:
        if layer is not taken.layers[0] and layer.spec.cuda and layer.spec.cuda.rung:
            return 0, f"{layer.name} names a rung of its own"
    if type(taken) is candidate:
        return 1, f"{candidate.stem} leaves windows of this size to {taken.source}"
    if candidate.fits(layers):
        return 3, f"{layers[0].name} runs without what follows it"
    try:
        candidate(layers).constants()
    except DeviceError as error:
        return 1, str(error).partition(";")[0]
    return 2, f"{candidate.stem} saves nothing at these sizes"
