"""The shapes every kernel is verified on: 1, odd, prime, one over a block, N, C and K all different."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pcnn_bench.layers import LOSSES, SPECS, LayerSpec, Shape


@dataclass(frozen=True, slots=True)
class Case:
    """Consecutive layers by themselves (a loss may be the last), the shape of one image, and how many images.

    Engines are made for ``spare`` images more: a kernel that reads there spreads NaN, one that writes there is caught.
    ``seed`` is what a random network, and the values it is given, are drawn from.
    """

    specs: tuple[LayerSpec, ...]
    x_shape: Shape
    n: int
    spare: int = 2
    seed: int | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the layers."""
        return tuple(spec.kind for spec in self.specs)


CONVOLUTIONS: tuple[tuple[int, Shape, dict[str, Any]], ...] = (
    (1, (1, 1, 1), {"out_channels": 1, "kernel": 1}),
    (2, (3, 7, 5), {"out_channels": 4, "kernel": [3, 2], "stride": [2, 3], "padding": [1, 0]}),
    (3, (2, 4, 4), {"out_channels": 5, "kernel": 1, "stride": 2}),
    (2, (3, 5, 4), {"out_channels": 1, "kernel": 1, "padding": 1}),
    (1, (2, 4, 4), {"out_channels": 3, "kernel": 2}),
    (1, (1, 33, 17), {"out_channels": 2, "kernel": 3}),
    (3, (5, 13, 11), {"out_channels": 7, "kernel": 5, "padding": 2}),
    (2, (4, 29, 29), {"out_channels": 5, "kernel": 5, "stride": 2}),
    (4, (2, 3, 3), {"out_channels": 3, "kernel": 5, "padding": 2}),
    (2, (3, 9, 8), {"out_channels": 5, "kernel": [7, 1], "padding": [0, 2]}),
    (5, (2, 8, 9), {"out_channels": 3, "kernel": [1, 7], "padding": [1, 3]}),
    (2, (2, 11, 10), {"out_channels": 3, "kernel": 2, "stride": 3}),
    (1, (1, 1, 257), {"out_channels": 2, "kernel": 1}),
    (3, (1, 2, 2), {"out_channels": 2, "kernel": 2, "padding": 3}),
    # sums over so many cells that gradients need blocks of several warps: 64 threads, and 256
    (5, (1, 33, 29), {"out_channels": 2, "kernel": 3, "padding": 1}),
    (3, (1, 75, 75), {"out_channels": 2, "kernel": 3, "padding": 1}),
)
POOLINGS: tuple[tuple[int, Shape, dict[str, Any]], ...] = (
    (1, (1, 1, 1), {"size": 1}),
    (2, (3, 5, 7), {"size": 2}),
    (3, (2, 7, 9), {"size": 3, "stride": 2}),
    (2, (5, 11, 8), {"size": 2, "stride": 3}),
    (3, (2, 9, 7), {"size": [3, 2], "stride": [1, 2]}),
    (2, (3, 6, 6), {"size": 6}),
    (1, (2, 13, 11), {"size": 3, "stride": 1}),
    (1, (1, 2, 514), {"size": 2}),
)
DENSES: tuple[tuple[int, Shape, dict[str, Any]], ...] = (
    (1, (1,), {"out_features": 1}),
    (3, (13,), {"out_features": 7}),
    (1, (257,), {"out_features": 2}),
    (5, (31,), {"out_features": 33}),
    (2, (3,), {"out_features": 257}),
)
HEADS: tuple[tuple[int, Shape, tuple[tuple[int, str], ...]], ...] = (
    (2, (13,), ((7, "tanh"), (5, "relu"), (3, ""))),
    (3, (130,), ((9, ""), (4, "sigmoid"))),
    (140, (5,), ((6, "sigmoid"), (3, ""))),
    (270, (4,), ((3, "tanh"),)),
    (530, (3,), ((2, ""),)),
)
"""Fully connected layers (units, activation) below a loss, and batches of few and of many images."""
ELEMENTWISE: tuple[tuple[int, Shape], ...] = (
    (1, (1,)),
    (3, (5, 7, 2)),
    (1, (257,)),
    (2, (1, 1, 31)),
)
LOSS_INPUTS: tuple[tuple[int, Shape], ...] = ((1, (1,)), (5, (10,)), (3, (257,)), (257, (2,)))

ACTIVATIONS = ("tanh", "relu", "sigmoid")
POOLING_KINDS = ("maxpool2d", "avgpool2d")
AFTER_CONVOLUTION: tuple[tuple[str, ...], ...] = (
    *((act, pool) for act in ACTIVATIONS for pool in POOLING_KINDS),
    *((pool, act) for act in ACTIVATIONS for pool in POOLING_KINDS),
    *((kind,) for kind in (*ACTIVATIONS, *POOLING_KINDS)),
)
"""The kinds of layers that may run as one with the convolution before them."""
POOLED: tuple[tuple[int, dict[str, Any]], ...] = (
    (6, {"size": 2}),
    (5, {"size": 3, "stride": 2}),
    (1, {"size": [2, 1]}),
)
"""Convolutions of ``CONVOLUTIONS`` and poolings after them: even, overlapping, and uneven with a stride."""
DEEP: tuple[int, Shape, dict[str, Any]] = (1, (170, 6, 6), {"out_channels": 2, "kernel": 5})
"""A convolution of so many channels that no block holds rows of all: it needs a rung that takes some at a time."""


def layer_spec(kind: str, **arguments: Any) -> LayerSpec:
    """A layer as the YAML says it."""
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _chains() -> Iterator[Case]:
    """Layers that a rung may run as one."""
    for kind in ACTIVATIONS:
        for n, x_shape, arguments in DENSES:
            yield Case((layer_spec("dense", **arguments), layer_spec(kind)), x_shape, n)
    for number, (n, x_shape, layers) in enumerate(HEADS):
        loss_kind, loss = list(LOSSES.items())[number % len(LOSSES)]
        head = [
            spec
            for units, kind in layers
            for spec in (layer_spec("dense", out_features=units), kind and layer_spec(kind))
            if spec
        ]
        yield Case((*head, loss(kind=loss_kind)), x_shape, n)
    for number, kinds in enumerate(AFTER_CONVOLUTION):
        which, pooling = POOLED[number % len(POOLED)]
        n, x_shape, arguments = CONVOLUTIONS[which]
        rest = (layer_spec(kind, **(pooling if kind in POOLING_KINDS else {})) for kind in kinds)
        yield Case((layer_spec("conv2d", **arguments), *rest), x_shape, n)
    n, x_shape, arguments = DEEP
    for kinds in (("relu",), ("avgpool2d", "tanh")):
        rest = (
            layer_spec(kind, **({"size": 2} if kind in POOLING_KINDS else {})) for kind in kinds
        )
        yield Case((layer_spec("conv2d", **arguments), *rest), x_shape, n)


def awkward_cases() -> Iterator[Case]:
    """Every case, kind by kind."""
    with_arguments = {
        "conv2d": CONVOLUTIONS,
        "maxpool2d": POOLINGS,
        "avgpool2d": POOLINGS,
        "dense": DENSES,
    }
    for kind, spec in SPECS.items():
        if kind in with_arguments:
            for n, x_shape, arguments in with_arguments[kind]:
                yield Case((spec(kind=kind, **arguments),), x_shape, n)
        elif kind != "flatten":  # a view: there is no kernel to verify
            yield from (Case((spec(kind=kind),), x_shape, n) for n, x_shape in ELEMENTWISE)
    yield from _chains()
    for kind, loss in LOSSES.items():
        yield from (Case((loss(kind=kind),), x_shape, n) for n, x_shape in LOSS_INPUTS)
