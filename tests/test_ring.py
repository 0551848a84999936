"""Rung `ring`: the fused block with circular buffers of rows, for every combination, any size, and what it loads."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from ruamel.yaml import YAML

from pcnn_bench.awkward import (
    AFTER_CONVOLUTION,
    CONVOLUTIONS,
    DEEP,
    POOLING_KINDS,
    Case,
    layer_spec,
)
from pcnn_bench.config import load_config
from pcnn_bench.engine import Probe
from pcnn_bench.layers import LayerSpec, Shape
from pcnn_bench.network import Layer, Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.random_networks import random_chain
from pcnn_bench.verify import verify
from pcnn_cuda import (
    conv2d_ring_backward_tiles,
    conv2d_ring_input_tiles,
    conv2d_ring_tiles,
    ladder,
)
from pcnn_cuda.conv2d_act_pool import RUNS, Conv2dActPool
from pcnn_cuda.conv2d_ring import Conv2dRing
from pcnn_cuda.conv2d_ring_backward_tiles import WeightStrip
from pcnn_cuda.conv2d_ring_tiles import Walk
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.op import Op
from pcnn_cuda.plan import Plan

Direction = Literal["push", "pull"]
DIRECTIONS: tuple[Direction, ...] = ("push", "pull")
OPTIMIZER = SgdSpec(learning_rate=0.1)
CONFIGS = Path(__file__).parent.parent / "configs"
POOLS: tuple[dict[str, Any], ...] = (
    {"size": [2, 1], "stride": [3, 2]},  # windows leave gaps
    {"size": 2},
    {"size": [3, 2], "stride": [1, 2]},  # and overlap
)
MATCHING_CONVOLUTIONS = (6, 1, 14, 8, 9, 7, 10, 13, 5)
"""Awkward ones whose output holds the windows of ``POOLS``."""
FAULTS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).parent.joinpath("faults", "faults_ring.yaml").read_text()
)


class Kept(Conv2dRing):
    """The derivatives kept, as rung ``graph`` keeps them for tiles."""

    keeps_slopes = True


def _over_naive(op: type[Op]) -> tuple[tuple[tuple[str, ...], type[Op]], ...]:
    return (*((run, op) for run in RUNS), *ladder.RUNGS["naive"])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rung's op above the naive ones, so that nothing else stands in for it."""
    monkeypatch.setitem(ladder.RUNGS, "ring", _over_naive(Conv2dRing))


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two rows a step and seven a walk: small maps, too, go through their rings, and have seams."""
    for module in (conv2d_ring_tiles, conv2d_ring_input_tiles, conv2d_ring_backward_tiles):
        monkeypatch.setattr(module, "step_rows", lambda extent: [min(2, extent)])
    monkeypatch.setattr(Walk, "band", lambda self, n: min(7, self.extent))
    monkeypatch.setattr(WeightStrip, "band", lambda self, n: min(7, self.sizes.out.h))
    choices = (conv2d_ring_tiles.choose_forward, conv2d_ring_backward_tiles.choose_backward)
    for choose in choices:
        choose.cache_clear()
    yield
    for choose in choices:
        choose.cache_clear()


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _chain(
    x_shape: Shape,
    conv: dict[str, Any],
    *after: LayerSpec,
    n: int = 2,
    direction: Direction = "push",
) -> Case:
    return Case((layer_spec("conv2d", **conv, cuda={"backward": direction}), *after), x_shape, n)


def _combinations() -> list[Case]:
    """Every run of kinds; convolution, window and direction change from case to case."""
    cases = []
    for index, kinds in enumerate(AFTER_CONVOLUTION):
        n, x_shape, conv = CONVOLUTIONS[MATCHING_CONVOLUTIONS[index % len(MATCHING_CONVOLUTIONS)]]
        pool = POOLS[index % len(POOLS)]
        after = [layer_spec(kind, **(pool if kind in POOLING_KINDS else {})) for kind in kinds]
        cases.append(_chain(x_shape, conv, *after, n=n, direction=DIRECTIONS[(index + 1) % 2]))
    return cases


def _layers(
    x_shape: Shape, conv: dict[str, Any], *after: LayerSpec, has_grad_x: bool = True
) -> Sequence[Layer]:
    specs = [layer_spec("conv2d", **conv), *after]
    return Network(x_shape, specs, None, needs_grad_x=has_grad_x).layers


RELU, TANH, SIGMOID = (layer_spec(kind) for kind in ("relu", "tanh", "sigmoid"))
MAX, MEAN = (layer_spec(kind, size=2) for kind in ("maxpool2d", "avgpool2d"))


# ---- results


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_every_combination_is_right_on_awkward_shapes(device: EmulatedDevice) -> None:
    cases = _combinations()
    found = verify(None, device=device, rung="ring", cases=cases)
    assert not found.mismatches
    assert found.case_count == len(cases) == 17
    assert {f"conv2d_ring_backward_{each}" for each in DIRECTIONS} <= set(found.kernels)


@pytest.mark.slow
@pytest.mark.usefixtures("alone", "stepping")
def test_every_combination_is_right_step_by_step(device: EmulatedDevice) -> None:
    assert not verify(None, device=device, rung="ring", cases=_combinations()).mismatches


@pytest.mark.slow
def test_derivatives_may_be_kept(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ladder.RUNGS, "ring", _over_naive(Kept))
    cases = [case for case in _combinations() if case.specs[-1].kind == "avgpool2d"]
    assert not verify(None, device=device, rung="ring", cases=cases).mismatches


LARGER = (
    # several strips side by side, and bands one below the other, with windows across their seams
    _chain((2, 9, 601), {"out_channels": 3, "kernel": 3, "stride": 2, "padding": 1}, SIGMOID,
           layer_spec("avgpool2d", size=3, stride=2), n=1, direction="pull"),
    _chain((5, 11, 290), {"out_channels": 40, "kernel": 3, "padding": 1}, MAX, TANH, n=1),
    _chain((1, 140, 150), {"out_channels": 2, "kernel": 3, "padding": 1}, TANH,
           layer_spec("maxpool2d", size=3, stride=2), n=1),
    # threads that share the channels, or the maps, of their sums
    _chain((67, 8, 8), {"out_channels": 70, "kernel": 1}, MAX, direction="pull"),
    _chain((41, 9, 11), {"out_channels": 37, "kernel": 3, "padding": 1}, RELU, MEAN),
    # filters too long for registers; positions that need two bytes
    _chain((2, 3, 40), {"out_channels": 2, "kernel": [1, 17]}, RELU, layer_spec("avgpool2d", size=[2, 9], stride=1)),
    _chain((2, 40, 37), {"out_channels": 2, "kernel": [17, 1]}, RELU, layer_spec("maxpool2d", size=20),
           direction="pull"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_shapes_that_need_several_strips_bands_or_threads_a_sum_are_right(
    device: EmulatedDevice,
) -> None:
    found = verify(None, device=device, rung="ring", cases=LARGER)
    assert not found.mismatches
    assert found.case_count == len(LARGER)


def test_the_larger_shapes_are_what_they_are_said_to_be() -> None:
    wide, banded, _, *shared, _, _ = (
        Conv2dRing(Network(case.x_shape, case.specs, None, needs_grad_x=True).layers)
        for case in LARGER
    )
    for op in (wide, banded):
        strips = op.backward_strips
        assert op.forward_strip.columns < op.sizes.pooled.w
        assert strips.input.columns < op.sizes.image.w
        assert strips.weight.columns < op.sizes.out.w
    assert banded.forward_strip.walk.bands(1) > 1
    assert banded.backward_strips.input.walk.bands(1) > 1
    assert {op.forward_strip.units.parts > 1 for op in shared} == {True}
    assert {op.backward_strips.input.parts > 1 for op in shared} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.usefixtures("alone")
def test_a_map_far_larger_than_shared_memory_runs(
    device: EmulatedDevice, direction: Direction
) -> None:
    case = _chain(
        (1, 512, 512), {"out_channels": 2, "kernel": 5, "stride": 2, "padding": 2}, RELU, MAX,
        n=1, direction=direction,
    )  # fmt: skip
    assert not verify(None, device=device, rung="ring", cases=[case]).mismatches


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_random_chains_are_right(device: EmulatedDevice) -> None:
    cases = [random_chain(np.random.default_rng(seed)) for seed in range(500, 516)]
    found = verify(None, device=device, rung="ring", cases=cases)
    assert not found.mismatches
    assert found.case_count == len(cases)


CHECKED = (
    _chain((3, 7, 9), {"out_channels": 5, "kernel": [3, 2], "padding": 1}, TANH, MEAN),
    _chain((3, 7, 9), {"out_channels": 5, "kernel": [3, 2], "padding": 1}, TANH, MEAN, direction="pull"),
    _chain((2, 9, 8), {"out_channels": 3, "kernel": 3, "stride": 2, "padding": 2}, RELU,
           layer_spec("avgpool2d", size=3, stride=1)),
    _chain((2, 9, 8), {"out_channels": 3, "kernel": 3, "stride": [3, 2]}, MAX, SIGMOID, direction="pull"),
    _chain((19, 6, 6), {"out_channels": 21, "kernel": 3}, RELU, n=3),
    _chain((1, 40, 5), {"out_channels": 2, "kernel": [5, 1], "stride": [2, 1]}, MAX, n=1),
)  # fmt: skip


@pytest.mark.checker
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.usefixtures("alone", "stepping")
def test_the_kernels_keep_the_rules_in_every_schedule(seed: int) -> None:
    device = EmulatedDevice(checker=True, seed=seed)
    try:
        found = verify(None, device=device, rung="ring", cases=CHECKED)
    finally:
        device.close()
    assert not found.mismatches
    assert set(found.kernels) == {*signatures(kernel_text("conv2d_ring.cu")), "sgd_update"}


def _engine(
    device: EmulatedDevice,
    specs: Sequence[LayerSpec],
    x_shape: Shape,
    direction: Direction = "push",
) -> CudaEngine:
    network = Network(x_shape, specs, None, needs_grad_x=True)
    return CudaEngine(
        network, batch_size=3, optimizer=OPTIMIZER, device=device, rung="ring", direction=direction
    )


def _probe(specs: Sequence[LayerSpec], x_shape: Shape, n: int = 3) -> Probe:
    network = Network(x_shape, specs, None)
    rng = np.random.default_rng(5)
    (layer,) = (each for each in network.layers if each.parameters)
    return Probe(
        x=rng.standard_normal((n, *x_shape), dtype=np.float32),
        grad_y=rng.standard_normal((n, *network.output_shape), dtype=np.float32),
        parameters={
            name: rng.standard_normal(shape, dtype=np.float32)
            for name, shape in layer.parameters.items()
        },
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_results_repeat_bit_for_bit_and_do_not_depend_on_the_bands(
    device: EmulatedDevice, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [layer_spec("conv2d", out_channels=3, kernel=3), TANH, MAX]
    given = _probe(specs, (2, 30, 8))
    engine = _engine(device, specs, (2, 30, 8), direction)
    (stage,) = engine.stages
    first, second = (engine.probe(stage.name, given) for _ in range(2))
    assert first.keys() == second.keys() >= {"y", "grad_x", "grad_weight", "grad_bias"}
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    engine.close()
    walks = set()
    for band in (2, 7, 30):
        monkeypatch.setattr(Walk, "band", lambda self, n, band=band: min(band, self.extent))
        other = _engine(device, specs, (2, 30, 8), direction)
        found = other.probe(stage.name, given)
        walks.add(other.plan.stages[0].op.forward_strip.walk.bands(3))  # type: ignore[attr-defined]
        for name in ("y", "grad_x"):
            np.testing.assert_array_equal(found[name], first[name])
        other.close()
    assert walks == {7, 2, 1}


@pytest.mark.usefixtures("alone")
def test_a_nan_is_the_maximum_and_nowhere_else(device: EmulatedDevice) -> None:
    specs = [layer_spec("conv2d", out_channels=1, kernel=1), MAX, RELU]
    given = _probe(specs, (1, 4, 6))
    given.x[1, 0, 3, 2] = np.nan
    engine = _engine(device, specs, (1, 4, 6))
    y = engine.probe(engine.stages[0].name, given)["y"]
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 0, 1, 1]]
    engine.close()


def test_fewer_images_than_an_engine_is_made_for_leave_the_others_alone(
    device: EmulatedDevice,
) -> None:
    specs = [layer_spec("conv2d", out_channels=2, kernel=3), RELU, MEAN]
    given = _probe(specs, (2, 16, 6))
    engine = _engine(device, specs, (2, 16, 6))
    whole = engine.probe(engine.stages[0].name, given)
    assert given.grad_y is not None
    one = engine.probe(
        engine.stages[0].name, Probe(given.x[:1], given.grad_y[:1], None, given.parameters)
    )
    np.testing.assert_array_equal(one["y"], whole["y"][:1])
    np.testing.assert_array_equal(one["grad_x"], whole["grad_x"][:1])
    engine.close()


def test_fewer_images_never_make_more_partial_sums_than_there_is_room_for() -> None:
    op = Conv2dRing(_layers((3, 40, 40), {"out_channels": 4, "kernel": 3}, RELU), batch_size=64)
    ((most, _), _) = op.workspace(64)["partials"]
    wanted = [op.backward_strips.weight.splits(n) for n in range(1, 65)]
    assert max(wanted) >= most == wanted[-1]


# ---- what is loaded


def _rows(first: int, count: int, stride: int, taps: int, padding: int, extent: int) -> int:
    """Cells of an axis below ``count`` units from ``first`` on, those that there are."""
    begin = first * stride - padding
    end = (first + count - 1) * stride - padding + taps
    return min(end, extent) - max(begin, 0)


@pytest.mark.checker
@pytest.mark.parametrize("band", [None, 5, 1000])
def test_a_block_loads_its_source_rows_once(
    band: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Height and halo once a block, not as often as filters and windows overlap."""
    if band is not None:
        monkeypatch.setattr(Walk, "band", lambda self, n: min(band, self.extent))
    device = EmulatedDevice(checker=True)
    pool = layer_spec("maxpool2d", size=3, stride=2)
    specs = [layer_spec("conv2d", out_channels=3, kernel=5, padding=[2, 1]), pool, TANH]
    engine = _engine(device, specs, (2, 46, 70))
    engine.probe(engine.stages[0].name, _probe(specs, (2, 46, 70), n=2))
    op = engine.plan.stages[0].op
    assert isinstance(op, Conv2dRing)
    strip, s = op.forward_strip, op.sizes
    bands = range(0, s.pooled.h, strip.walk.band(2))
    down = [
        _rows(2 * u, 2 * min(strip.walk.band(2), s.pooled.h - u) + 1, 1, 5, 2, 46) for u in bands
    ]
    across = [
        _rows(2 * v, 2 * min(strip.columns, s.pooled.w - v) + 1, 1, 5, 1, 70)
        for v in range(0, s.pooled.w, strip.columns)
    ]
    groups = -(-s.maps // strip.units.maps)
    x = 4 * 2 * s.channels  # bytes of a column of two images, a cell high
    assert device.loaded["conv2d_ring_forward", "x"] == x * groups * sum(down) * sum(across)
    halo = 5 - 1 + 3 - 2
    assert sum(down) <= 46 + halo * (len(bands) - 1)
    if band == 1000:
        assert sum(down) == 46
    engine.close()
    device.close()


@pytest.mark.checker
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_backward_loads_rows_of_errors_and_of_sources_once(
    direction: Direction, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of one cell, so that an error is one number; the derivative is convolved again from source rows."""
    monkeypatch.setattr(Walk, "band", lambda self, n: self.extent)
    monkeypatch.setattr(WeightStrip, "band", lambda self, n: self.sizes.out.h)
    device = EmulatedDevice(checker=True)
    conv = layer_spec("conv2d", out_channels=4, kernel=5, padding=2, stride=stride)
    specs = [conv, TANH, layer_spec("avgpool2d", size=1)]
    engine = _engine(device, specs, (3, 20, 9), direction)
    engine.probe(engine.stages[0].name, _probe(specs, (3, 20, 9)))
    op = engine.plan.stages[0].op
    assert isinstance(op, Conv2dRing)
    below, weight, s = op.backward_strips.input, op.backward_strips.weight, op.sizes
    assert s.recomputes
    assert below.columns >= s.image.w
    kernel = f"conv2d_ring_backward_{direction}"
    readers = below.walk.strips + -(-s.channels // weight.channels)
    assert device.loaded[kernel, "grad_y"] == 4 * 3 * s.maps * prod(s.out) * readers
    across = [
        _rows(q, min(weight.columns, s.out.w - q), stride, 5, 2, s.image.w)
        for q in range(0, s.out.w, weight.columns)
    ]
    columns = s.image.w * below.walk.strips + sum(across) * weight.groups
    assert device.loaded[kernel, "x"] == 4 * 3 * s.channels * s.image.h * columns
    engine.close()
    device.close()


# ---- what is launched, kept and counted


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_switching_backward_changes_the_kernels_launched(
    device: EmulatedDevice, direction: Direction
) -> None:
    specs = [layer_spec("conv2d", out_channels=2, kernel=3), TANH]
    engine = _engine(device, specs, (1, 5, 5), direction)
    device.launched.clear()
    engine.probe(engine.stages[0].name, _probe(specs, (1, 5, 5)))
    assert engine.stages[0].direction == direction
    (other,) = set(DIRECTIONS) - {direction}
    assert device.launched[f"conv2d_ring_backward_{direction}"] == 1
    assert device.launched[f"conv2d_ring_backward_{other}"] == 0
    engine.close()


@pytest.mark.parametrize(
    ("rung", "ops"),
    [("fused", {"conv2d_act_pool", "conv2d_avgpool_folded"}), ("ring", {"conv2d_ring"})],
)
@pytest.mark.parametrize("name", ["lenet5-mnist", "parallelcnn", "cifar-quick"])
def test_every_convolution_block_of_the_shipped_networks_is_the_rung_s(
    name: str, rung: str, ops: set[str]
) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    plan = Plan(
        config.build_network(),
        rung=rung,
        batch_size=config.training.batch_size,
        optimizer=OPTIMIZER,
    )
    blocks = [stage for stage in plan.stages if stage.op.layers[0].kind == "conv2d"]
    assert len(blocks) == sum(layer.kind == "conv2d" for layer in plan.network.layers)
    for block in blocks:
        assert block.info.op in ops
        assert {"forward", "backward"} <= block.info.work(1).keys()
        assert [layer.kind for layer in block.op.layers[1:]] != []


def test_nothing_of_the_pre_pool_map_is_kept() -> None:
    layers = _layers((6, 14, 14), {"out_channels": 16, "kernel": 5}, TANH, MEAN)
    ring, tile = Conv2dRing(layers, batch_size=64), Conv2dActPool(layers, batch_size=64)
    assert ring.saved() == tile.saved() == {}
    assert ring.work(64)["forward"] == tile.work(64)["forward"]
    assert ring.work(64)["backward"].flop_count >= 3 * ring.work(64)["forward"].flop_count


def test_work_counts_the_units_that_bands_share_each_time() -> None:
    layers = _layers(
        (1, 300, 20), {"out_channels": 1, "kernel": 3}, layer_spec("maxpool2d", size=3, stride=1)
    )
    op = Conv2dRing(layers)
    walk = op.forward_strip.walk
    assert walk.bands(1) > walk.bands(10_000) == 1
    few, many = (op.work(n)["forward"].flop_count / n for n in (1, 10_000))
    assert few - many == 2 * 9 * 18 * 2 * (walk.bands(1) - 1)  # two rows of 18 units at each seam


# ---- strips


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("x_shape", "conv", "after"),
    [
        ((3, 512, 512), {"out_channels": 32, "kernel": 3, "padding": 1}, [MAX]),
        ((64, 56, 56), {"out_channels": 64, "kernel": 3, "padding": 1}, [RELU]),
        ((1, 1, 5000), {"out_channels": 1, "kernel": [1, 9]}, [TANH, layer_spec("avgpool2d", size=[1, 5])]),
        ((3, 224, 224), {"out_channels": 16, "kernel": 11, "stride": 4},
         [RELU, layer_spec("maxpool2d", size=3, stride=2)]),
    ],
)  # fmt: skip
def test_large_layers_find_strips_that_fit(
    x_shape: Shape, conv: dict[str, Any], after: list[LayerSpec], direction: Direction
) -> None:
    layers = _layers(x_shape, conv, *after)
    assert Conv2dRing.fits(layers)
    constants = Conv2dRing(layers, direction, batch_size=16).constants()
    assert constants["THREADS"] <= 256
    shared = max(constants[f"{task}_SHARED"] for task in ("FORWARD", "INPUT", "WEIGHT"))
    assert 4 * shared <= 96 * 1024


def test_a_first_layer_need_not_hold_what_an_error_would_need() -> None:
    conv = {"out_channels": 64, "kernel": 11, "stride": 4}
    assert not Conv2dRing.fits(_layers((3, 224, 224), conv, RELU))
    first = _layers((3, 224, 224), conv, RELU, has_grad_x=False)
    assert Conv2dRing.fits(first)
    strips = Conv2dRing(first, batch_size=16).backward_strips
    assert strips.shared == strips.weight.shared
    assert strips.threads == strips.weight.threads


def test_few_images_are_cut_into_bands_and_many_are_not() -> None:
    op = Conv2dRing(_layers((3, 512, 512), {"out_channels": 8, "kernel": 3}, RELU), batch_size=4)
    for walk in (op.forward_strip.walk, op.backward_strips.input.walk):
        assert walk.blocks(1) >= 132  # a block for every multiprocessor
        assert walk.bands(1) > walk.bands(64) > walk.bands(100_000) == 1


N, DEEP_SHAPE, DEEP_CONV = DEEP


@pytest.mark.parametrize(
    ("x_shape", "conv", "after"),
    [
        (DEEP_SHAPE, DEEP_CONV, [RELU]),
        ((1, 512, 512), {"out_channels": 1, "kernel": 3}, [layer_spec("maxpool2d", size=300)]),
        ((512, 28, 28), {"out_channels": 512, "kernel": 3, "padding": 1}, [RELU]),
    ],
)
def test_what_no_block_can_hold_falls_back_to_the_rung_below(
    x_shape: Shape, conv: dict[str, Any], after: list[LayerSpec]
) -> None:
    layers = _layers(x_shape, conv, *after)
    assert not Conv2dRing.fits(layers)
    chosen, below = (ladder.cover(layers, rung) for rung in ("ring", "fused"))
    assert [type(op) for op in chosen] == [type(op) for op in below]


# ---- planted faults

FAULT_CASES = {
    "max": _chain((3, 21, 11), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]},
                  layer_spec("maxpool2d", size=2, stride=[1, 2]), TANH, n=3, direction="pull"),
    "signs": _chain((3, 19, 11), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]}, RELU,
                    layer_spec("avgpool2d", size=[2, 3]), n=3),
    "again": _chain((2, 17, 9), {"out_channels": 3, "kernel": 3, "padding": 1}, SIGMOID, MEAN, n=3),
    "gaps": _chain((2, 18, 9), {"out_channels": 3, "kernel": 2}, TANH, layer_spec("maxpool2d", size=1, stride=2)),
    "wide": _chain((2, 9, 601), {"out_channels": 3, "kernel": 3, "padding": 1}, RELU, n=1),
    "parts": _chain((40, 6, 6), {"out_channels": 36, "kernel": 1}, RELU, n=3, direction="pull"),
}  # fmt: skip


def test_there_are_enough_faults_and_each_has_its_name() -> None:
    assert len(FAULTS) >= 12
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)


@pytest.mark.slow
@pytest.mark.usefixtures("alone", "stepping")
@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
def test_verify_catches(fault: dict[str, Any]) -> None:
    text = kernel_text(fault["source"])
    assert text.count(fault["find"]) == 1
    planted = {fault["source"]: text.replace(fault["find"], fault["put"])}
    device = EmulatedDevice(sources=planted)
    try:
        found = verify(None, device=device, rung="ring", cases=[FAULT_CASES[fault["case"]]])
    finally:
        device.close()
    assert found.mismatches, f"not caught: {fault['name']}"
