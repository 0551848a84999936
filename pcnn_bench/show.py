"""What a config asks for, before anything is loaded or run: layers, shapes, parameters, work, and the rungs' plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pcnn_bench import engines
from pcnn_bench.config import Config
from pcnn_bench.network import LOSS_NAME, Layer
from pcnn_bench.show_plan import compare, render_comparison, render_plan, short


def describe(config: Config, rung: str | None = None) -> dict[str, Any]:
    """The resolved network in numbers that JSON can hold; ``rung`` replaces the config's.

    Shapes are those of one image; ``forward``, ``backward`` and ``update`` hold ``flop_count`` and
    ``byte_count`` for one full batch. Bytes are the least traffic: each operand read once, each
    result written once, float32. The loss is the last layer; ``step`` is the sum of everything.

    ``plan`` is what the rung makes of it, as ``engines.describe_plans`` has it; ``rungs`` compares the plans of all
    rungs, unless ``rung`` asks for one. Where engine cuda does not run there is no plan, unless ``rung`` asks for it.

    Raises:
        ConfigError: the config, one of its layers or the caller names a rung that is not built.
    """
    shown, *_ = engines.check_rungs(config, rung)
    if rung is not None:
        rungs: tuple[str, ...] = (shown,)
    else:
        rungs = engines.rungs() if "cuda" in config.engines else ()
    network = config.build_network()
    batch_size = config.training.batch_size
    optimizer = config.training.optimizer
    plans = engines.describe_plans(
        network, rungs, batch_size=batch_size, optimizer=optimizer, direction=config.cuda.backward
    )
    layers = [_describe_layer(layer, batch_size) for layer in network.all_layers]
    update = _work(
        optimizer.update_flops(network.parameter_count),
        optimizer.update_bytes(network.parameter_count),
    )
    forward = _sum([layer["forward"] for layer in layers])
    backward = _sum([layer["backward"] for layer in layers])
    return {
        "name": config.name,
        "input_shape": list(network.input_shape),
        "batch_size": batch_size,
        "deterministic": config.training.deterministic,
        "layers": layers,
        "totals": {
            "parameter_count": network.parameter_count,
            "forward": forward,
            "backward": backward,
            "update": update,
            "step": _sum([forward, backward, update]),
        },
        "plan": next((plan for plan in plans if plan["rung"] == shown), None),
        "rungs": [compare(plan) for plan in plans] if rung is None else [],
    }


def render(description: dict[str, Any]) -> RenderableType:
    """Tables of ``describe``'s result for a rich console; they fit 80 columns and need no colour."""
    totals = description["totals"]
    table = Table(box=SIMPLE_HEAD, show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("layer", "total", overflow="fold", min_width=10, vertical="bottom")
    table.add_column("output", no_wrap=True, vertical="bottom")
    for title, footer in (
        ("parameters", f"{totals['parameter_count']:,}"),
        ("forward\nFLOP", short(totals["forward"]["flop_count"])),
        ("\nbyte", short(totals["forward"]["byte_count"])),
        ("backward\nFLOP", short(totals["backward"]["flop_count"])),
        ("\nbyte", short(totals["backward"]["byte_count"])),
    ):
        table.add_column(title, footer, justify="right", no_wrap=True, vertical="bottom")
    for layer in description["layers"]:
        table.add_row(
            Text(_title(layer)),  # as Text, since a name may hold what rich takes for markup
            "x".join(map(str, layer["y_shape"])) or "1",
            f"{layer['parameter_count']:,}" if layer["parameter_count"] else "",
            *(
                short(layer[phase][count])
                for phase in ("forward", "backward")
                for count in ("flop_count", "byte_count")
            ),
        )
    heading = (
        f"{description['name']}: input {'x'.join(map(str, description['input_shape']))}, "
        f"loss {description['layers'][-1]['kind']}, batch {description['batch_size']}"
    )
    parts: list[RenderableType] = [
        Text(heading),
        table,
        Text(
            f"update: {_work_text(totals['update'])}; whole step: {_work_text(totals['step'])}\n"
            "For one batch, with each operand moved once; k = 1000."
        ),
    ]
    if description["plan"]:
        plan = render_plan(description["plan"], is_deterministic=description["deterministic"])
        parts += [Text(), plan]
    if description["rungs"]:
        parts += [Text(), render_comparison(description["rungs"])]
    return Group(*parts)


def _describe_layer(layer: Layer, batch_size: int) -> dict[str, Any]:
    x = layer.batch_x(batch_size)
    spec = layer.spec
    return {
        "name": layer.name,
        "kind": layer.kind,
        "x_shape": list(layer.x_shape),
        "y_shape": list(layer.y_shape),
        "parameters": {name: list(shape) for name, shape in layer.parameters.items()},
        "parameter_count": layer.parameter_count,
        "forward": _work(spec.forward_flops(x), spec.forward_bytes(x)),
        "backward": _work(
            spec.backward_flops(x, layer.needs_grad_x), spec.backward_bytes(x, layer.needs_grad_x)
        ),
    }


def _work(flop_count: int, byte_count: int) -> dict[str, int]:
    return {"flop_count": flop_count, "byte_count": byte_count}


def _sum(works: Sequence[dict[str, int]]) -> dict[str, int]:
    return _work(
        sum(work["flop_count"] for work in works), sum(work["byte_count"] for work in works)
    )


def _work_text(work: dict[str, int]) -> str:
    return f"{short(work['flop_count'], 'FLOP')}, {short(work['byte_count'], 'B')}"


def _title(layer: dict[str, Any]) -> str:
    """The layer's name; with its kind where the name does not begin with it."""
    name, kind = layer["name"], layer["kind"]
    return name if name.startswith(kind) or name == LOSS_NAME else f"{name} ({kind})"
