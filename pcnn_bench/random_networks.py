"""Random small networks, to verify what nobody thought of: any window, stride, padding and counts, quick to emulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pcnn_bench.awkward import ACTIVATIONS, AFTER_CONVOLUTION, POOLING_KINDS, Case, layer_spec
from pcnn_bench.config import SCHEMA_VERSION, Config, dump_config
from pcnn_bench.layers import LOSSES, LayerSpec, Shape

if TYPE_CHECKING:
    import numpy as np

STRIDES = (1, 1, 2, 3)
"""Most are 1: others shrink small maps to nothing."""
MAX_KERNEL, MAX_PADDING, MAX_POOL, MAX_STEP = 7, 3, 4, 3
MAX_MAPS, MAX_UNITS, MAX_IMAGES = 11, 19, 5
SPARE = (2, 2, 254)
"""Room beyond the batch: tiles depend on what an engine is made for, those of 256 images are for large batches."""
MAX_BLOCKS = 2
"""Convolutions of a network: compiling them is what takes the time."""

Choice = TypeVar("Choice")


def random_chain(rng: np.random.Generator) -> Case:
    """A convolution with what may follow it, and a direction for its errors."""
    kernel, padding, out = (
        _pair(rng, *limits) for limits in ((1, MAX_KERNEL), (0, MAX_PADDING), (1, 13))
    )
    stride = [_choose(rng, STRIDES) for _ in "hw"]
    extents = [
        max(1, (extent - 1) * step + taps - 2 * pad + _draw(rng, 0, step - 1))
        for extent, step, taps, pad in zip(out, stride, kernel, padding, strict=True)
    ]
    x_shape = (_draw(rng, 1, 7), *extents)
    conv = layer_spec(
        "conv2d", out_channels=_draw(rng, 1, MAX_MAPS), kernel=kernel, stride=stride, padding=padding,
        cuda={"backward": _choose(rng, ("push", "pull"))},
    )  # fmt: skip
    after = _after(rng, _choose(rng, AFTER_CONVOLUTION), conv.output_shape((1, *x_shape)))
    return Case((conv, *after), x_shape, _draw(rng, 1, MAX_IMAGES))


def random_network(rng: np.random.Generator) -> Case:
    """A whole network: convolutions with what may follow them, fully connected layers, and either loss."""
    x_shape = (_draw(rng, 1, 4), *_pair(rng, 5, 19))
    specs: list[LayerSpec] = []
    shape: Shape = (1, *x_shape)
    for _ in range(_draw(rng, 1, MAX_BLOCKS)):
        conv = _convolution(rng, shape)
        block = [
            conv,
            *_after(rng, _choose(rng, ((), *AFTER_CONVOLUTION)), conv.output_shape(shape)),
        ]
        for each in block:
            shape = each.output_shape(shape)
        specs += block
    specs.append(layer_spec("flatten"))
    for _ in range(_draw(rng, 0, 1)):
        specs.append(layer_spec("dense", out_features=_draw(rng, 1, MAX_UNITS)))
        specs += [layer_spec(kind) for kind in _choose(rng, ((), *((act,) for act in ACTIVATIONS)))]
    specs.append(layer_spec("dense", out_features=_draw(rng, 1, MAX_UNITS)))
    loss = _choose(rng, tuple(LOSSES))
    layers = (*specs, LOSSES[loss](kind=loss))
    return Case(layers, x_shape, _draw(rng, 1, MAX_IMAGES), _choose(rng, SPARE))


def as_config(case: Case) -> str:
    """A config with the network of a case that ends in a loss, ready to be run again."""
    *specs, loss = case.specs
    config = Config.model_validate(
        {
            "schema": SCHEMA_VERSION,
            "name": f"random-{case.seed}",
            "data": {"set": "synthetic"},
            "network": {
                "input": list(case.x_shape),
                "layers": [each.model_dump(mode="json") for each in specs],
                "loss": loss.kind,
            },
            "training": {
                "epochs": 1,
                "batch_size": case.n,
                "optimizer": {"kind": "sgd", "learning_rate": 0.1},
            },
        }
    )
    return dump_config(config)


def _convolution(rng: np.random.Generator, shape: Shape) -> LayerSpec:
    """One whose kernel fits these maps."""
    padding = _pair(rng, 0, MAX_PADDING)
    kernel = [
        _draw(rng, 1, min(MAX_KERNEL, extent + 2 * pad))
        for extent, pad in zip(shape[2:], padding, strict=True)
    ]
    stride = [_choose(rng, STRIDES) for _ in "hw"]
    return layer_spec(
        "conv2d",
        out_channels=_draw(rng, 1, MAX_MAPS),
        kernel=kernel,
        stride=stride,
        padding=padding,
    )


def _after(rng: np.random.Generator, kinds: Sequence[str], shape: Shape) -> list[LayerSpec]:
    """Layers of these kinds; a pooling's windows fit these maps, and may overlap or leave gaps."""
    size = [_draw(rng, 1, min(MAX_POOL, extent)) for extent in shape[2:]]
    pool: dict[str, Any] = {"size": size, "stride": _pair(rng, 1, MAX_STEP)}
    return [layer_spec(kind, **(pool if kind in POOLING_KINDS else {})) for kind in kinds]


def _draw(rng: np.random.Generator, low: int, high: int) -> int:
    """One of ``low`` to ``high``, both included."""
    return int(rng.integers(low, high + 1))


def _pair(rng: np.random.Generator, low: int, high: int) -> list[int]:
    """Rows and columns, each drawn by itself."""
    return [_draw(rng, low, high) for _ in "hw"]


def _choose(rng: np.random.Generator, among: Sequence[Choice]) -> Choice:
    return among[_draw(rng, 0, len(among) - 1)]
