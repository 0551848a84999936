"""Batches of one and of 70,000, and layers that no tile was made for: planned and launched, or refused when planned."""

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcnn_bench import engines
from pcnn_bench.awkward import layer_spec
from pcnn_bench.config import load_config
from pcnn_bench.engine import Probe
from pcnn_bench.errors import DeviceError
from pcnn_bench.layers import LayerSpec, Shape
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.verify import check_engine
from pcnn_cuda.conv2d_tiles import MAX_FLOATS, Geometry, choose_tile, choose_weight_tile
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.launch import MAX_INDEX
from pcnn_cuda.paper import launches_of
from pcnn_cuda.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
OPTIMIZER = SgdSpec(learning_rate=0.1)
MANY = 70_000
"""More images than a grid's second and third extent have blocks."""
RUNGS = engines.rungs()


def _launch(network: Network, rung: str, batch_size: int) -> Plan:
    """The plan, after all its launches were held against the limits of a GPU."""
    plan = Plan(network, rung=rung, batch_size=batch_size, optimizer=OPTIMIZER)
    launches = launches_of(plan, batch_size)
    assert launches
    for group in launches.values():
        for launch in group:  # kernels count threads in 32 bits
            assert launch.shape.grid[0] * launch.shape.block[0] < 2**31
    return plan


# ---- batches


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("batch_size", [1, 2, 1000])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_can_be_launched(path: Path, batch_size: int, rung: str) -> None:
    _launch(load_config(path).build_network(), rung, batch_size)


@pytest.mark.parametrize("rung", RUNGS)
def test_lenet_takes_70_000_images_at_once(rung: str) -> None:
    network = load_config(ROOT / "configs" / "lenet5-fashion.yaml").build_network()
    plan = _launch(network, rung, MANY)
    assert plan.byte_count < 4 * 2**30
    largest = max(plan.tensors(), key=lambda tensor: prod(tensor.shape))
    assert MANY * 28 * 28 <= prod(largest.shape) <= MAX_INDEX


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_70_000_images_are_launched_or_refused_with_the_most_that_will_do(
    path: Path, rung: str
) -> None:
    network = load_config(path).build_network()
    try:
        _launch(network, rung, MANY)
    except DeviceError as error:
        refusal = str(error)
    else:
        return
    fits = re.search(r"layer \S+: \w+ has \d+ elements.*batch_size of at most (\d+)$", refusal)
    assert fits, refusal
    _launch(network, rung, int(fits[1]))
    with pytest.raises(DeviceError, match=f"at most {fits[1]}$"):
        _launch(network, rung, int(fits[1]) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("rung", RUNGS)
def test_70_000_images_are_right(rung: str) -> None:
    """All in one step, each stage within the same bounds as ever: sums over so many must be made with care."""
    specs = [
        layer_spec("conv2d", out_channels=1, kernel=3), layer_spec("tanh"),
        layer_spec("avgpool2d", size=2), layer_spec("flatten"), layer_spec("dense", out_features=3),
    ]  # fmt: skip
    network = Network((1, 4, 4), specs, SoftmaxCrossEntropySpec(), needs_grad_x=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((MANY, 1, 4, 4), dtype=np.float32)
    labels = rng.integers(0, 3, MANY).astype(np.int32)
    device = EmulatedDevice()
    engine = engines.make_cuda(
        network, batch_size=MANY, optimizer=OPTIMIZER, device=device, rung=rung
    )
    try:
        rows = check_engine(engine, network, network.initial_parameters(0), x, labels, OPTIMIZER)
        engine.set_batch(x, labels)
        engine.step()
        losses = engine.take_losses()
    finally:
        engine.close()
        device.close()
    assert rows
    assert [row for row in rows if row.status != "ok"] == []
    assert losses.shape == (MANY,)
    assert np.isfinite(losses).all()


# ---- layers

Layers = tuple[tuple[str, dict[str, Any]], ...]


def _conv(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return "conv2d", arguments


ODD_LAYERS: tuple[tuple[Shape, Layers], ...] = (
    ((1, 512, 512), (_conv(out_channels=8, kernel=3, padding=1), ("relu", {}), ("maxpool2d", {"size": 2}))),
    ((3, 400, 400), (_conv(out_channels=2, kernel=3), ("tanh", {}), ("avgpool2d", {"size": 300}))),
    ((1, 1, 5000), (_conv(out_channels=257, kernel=[1, 33]), ("maxpool2d", {"size": [1, 3]}))),
    ((513, 7, 7), (_conv(out_channels=1024, kernel=7, padding=3), ("sigmoid", {}))),
    ((64, 64, 64), (_conv(out_channels=64, kernel=32, stride=32), ("tanh", {}))),
    ((1, 560, 9113), (_conv(out_channels=257, kernel=[32, 30], stride=[22, 31]), ("tanh", {}))),
    ((3, 224, 224), (_conv(out_channels=96, kernel=11, stride=4), ("relu", {}))),
    ((2, 90, 90), (_conv(out_channels=3, kernel=64, padding=40), ("avgpool2d", {"size": 2}))),
    ((16, 3, 900), (_conv(out_channels=10, kernel=[3, 64], stride=[1, 33]), ("tanh", {}))),
    ((1, 1, 1), (_conv(out_channels=1, kernel=7, padding=3), ("maxpool2d", {"size": 1}))),
    ((2, 5, 4), (_conv(out_channels=3, kernel=1, stride=7, padding=40), ("avgpool2d", {"size": 5, "stride": 9}))),
)  # fmt: skip


def _network(x_shape: Shape, layers: Layers) -> Network:
    specs = [layer_spec(kind, **arguments) for kind, arguments in layers]
    specs += [layer_spec("flatten"), layer_spec("dense", out_features=2)]
    return Network(x_shape, specs, SoftmaxCrossEntropySpec(), needs_grad_x=True)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("x_shape", "layers"), ODD_LAYERS, ids=lambda each: str(each[0]))
def test_an_odd_layer_has_a_tile_that_fits_or_another_op(
    x_shape: Shape, layers: Layers, rung: str
) -> None:
    network = _network(x_shape, layers)
    for batch_size in (1, 300):
        plan = _launch(network, rung, batch_size)
        covered = [layer for stage in plan.stages for layer in stage.info.layers]
        assert covered == [layer.name for layer in network.all_layers]


def test_tuned_tiles_fit_the_shared_memory_that_a_kernel_may_declare() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        kernel, stride, padding = (
            (int(pair[0]), int(pair[1]))
            for pair in (rng.integers(1, 33, 2), rng.integers(1, 33, 2), rng.integers(0, 9, 2))
        )
        channels, maps = (int(count) for count in rng.choice([1, 3, 10, 64, 257], 2))
        out = (int(rng.integers(1, 300)), int(rng.integers(1, 300)))
        forward = Geometry(channels, maps, out, kernel, up=stride, down=(1, 1), shift=padding)
        mirrored = (kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1])
        backward = Geometry(channels, maps, out, kernel, up=(1, 1), down=stride, shift=mirrored)
        for geometry in (forward, backward):
            tile = choose_tile(geometry)
            assert tile.floats(prod(kernel)) <= MAX_FLOATS
            assert tile.threads <= 1024
        weights = choose_weight_tile(forward)
        assert max(weights.floats(forward)) <= MAX_FLOATS
        assert weights.threads(kernel[0]) <= 1024


def test_an_image_that_nothing_can_hold_is_refused_before_tiles_are_looked_for() -> None:
    edge = 2**31 - 1
    network = _network((1, edge, edge), (_conv(out_channels=2, kernel=3),))
    for rung in RUNGS:
        with pytest.raises(DeviceError, match=r"layer input: x has .* make the layer smaller"):
            Plan(network, rung=rung, batch_size=1, optimizer=OPTIMIZER)


@pytest.mark.parametrize(
    ("x_shape", "spec"),
    [
        ((2,), layer_spec("dense", out_features=2)),
        ((2, 1, 1), layer_spec("conv2d", out_channels=2, kernel=1)),
    ],
    ids=["dense", "conv2d"],
)
def test_a_long_sum_of_like_terms_stays_right(x_shape: Shape, spec: LayerSpec) -> None:
    """One after the other, all terms would be rounded the same way: the sum would be wrong by 6e-4 of itself."""
    network = Network(x_shape, [spec], None)
    device = EmulatedDevice()
    engine = engines.make_cuda(
        network, batch_size=MANY, optimizer=OPTIMIZER, device=device, rung="naive"
    )
    x = np.full((MANY, *x_shape), 0.7, np.float32)
    grad_y = np.full((MANY, *network.output_shape), 0.1, np.float32)
    found = engine.probe(engine.stages[0].name, Probe(x, grad_y))
    engine.close()
    device.close()
    bias, weight = MANY * float(grad_y.flat[0]), MANY * float(grad_y.flat[0]) * float(x.flat[0])
    np.testing.assert_allclose(found["grad_bias"], bias, rtol=1e-5)
    np.testing.assert_allclose(found["grad_weight"], weight, rtol=1e-5)
