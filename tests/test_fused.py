"""Rung `fused`: convolution, activation and pooling in one kernel, for every combination and on random shapes."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from ruamel.yaml import YAML

from pcnn_bench.awkward import CONVOLUTIONS, Case
from pcnn_bench.engine import Probe
from pcnn_bench.layers import SPECS, LayerSpec, Shape
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.random_networks import random_chain as random_chain
from pcnn_bench.verify import verify
from pcnn_cuda import ladder
from pcnn_cuda.conv2d_act_pool import ACTIVATIONS, POOLINGS, RUNS, Conv2dActPool, Conv2dActPoolKept
from pcnn_cuda.conv2d_avgpool_folded import RUNS as FOLDED_RUNS
from pcnn_cuda.conv2d_avgpool_folded import Conv2dAvgPoolFolded
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.op import Op
from pcnn_cuda.plan import Plan

OPTIMIZER = SgdSpec(learning_rate=0.1)
DIRECTIONS: tuple[Literal["push", "pull"], ...] = ("push", "pull")
POOLS: tuple[dict[str, Any], ...] = (
    {"size": 2},
    {"size": [3, 2], "stride": [2, 1]},  # windows overlap
    {"size": [1, 2], "stride": [2, 3]},  # and leave gaps
)
MATCHING_CONVOLUTIONS = (1, 3, 5, 6, 7, 8, 9, 10, 13)
"""Awkward ones whose output holds the windows of ``POOLS``."""
FAULTS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).parent.joinpath("faults", "faults_fused.yaml").read_text()
)


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rung's runs above the naive ops."""
    table = (*((run, Conv2dActPool) for run in RUNS), *ladder.RUNGS["naive"])
    monkeypatch.setitem(ladder.RUNGS, "fused", table)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _spec(kind: str, **arguments: Any) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _chain(
    x_shape: Shape,
    conv: dict[str, Any],
    *after: LayerSpec,
    n: int = 2,
    direction: Literal["push", "pull"] = "push",
) -> Case:
    return Case((_spec("conv2d", **conv, cuda={"backward": direction}), *after), x_shape, n)


def _combinations() -> list[Case]:
    """Every run of kinds; convolution, window and direction change from case to case."""
    cases = []
    for index, run in enumerate(RUNS):
        chosen = MATCHING_CONVOLUTIONS[index % len(MATCHING_CONVOLUTIONS)]
        n, x_shape, conv = CONVOLUTIONS[chosen]
        pool = POOLS[index % len(POOLS)]
        after = [_spec(kind, **(pool if kind in POOLINGS else {})) for kind in run[1:]]
        cases.append(_chain(x_shape, conv, *after, n=n, direction=DIRECTIONS[index % 2]))
    return cases


def _lenet() -> list[LayerSpec]:
    return [
        _spec("conv2d", out_channels=6, kernel=5, padding=2), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("conv2d", out_channels=16, kernel=5), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("flatten"), _spec("dense", out_features=10),
    ]  # fmt: skip


def _plan(specs: Sequence[LayerSpec], x_shape: Shape, rung: str = "fused", **options: Any) -> Plan:
    network = Network(x_shape, specs, SoftmaxCrossEntropySpec())
    return Plan(network, rung=rung, batch_size=64, optimizer=OPTIMIZER, **options)


# ---- results


@pytest.mark.slow
def test_every_combination_is_right_with_the_derivatives_kept(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (*((run, Conv2dActPoolKept) for run in RUNS), *ladder.RUNGS["naive"])
    monkeypatch.setitem(ladder.RUNGS, "fused", kept)
    cases = [case for case in _combinations() if case.specs[-1].kind == "avgpool2d"]
    assert not verify(None, device=device, rung="fused", cases=cases).mismatches
    means = [Conv2dActPoolKept(Network(case.x_shape, case.specs, None).layers) for case in cases]
    assert {op.passed_bytes == 4 * prod(op.sizes.size) for op in means} == {True, False}
    assert not any(op.sizes.recomputes for op in means)


@pytest.mark.slow
def test_every_combination_is_right_on_awkward_shapes(device: EmulatedDevice) -> None:
    cases = _combinations()
    found = verify(None, device=device, rung="fused", cases=cases)
    assert not found.mismatches
    assert found.case_count == len(cases) == 17
    assert {f"conv2d_act_pool_backward_{each}" for each in DIRECTIONS} <= set(found.kernels)


LARGER = (
    # more maps and channels than a block takes at once, neither a multiple of its share
    _chain((41, 9, 11), {"out_channels": 37, "kernel": 3, "padding": 1}, _spec("tanh"), _spec("avgpool2d", size=2)),
    _chain((67, 8, 8), {"out_channels": 70, "kernel": 1}, _spec("maxpool2d", size=2), direction="pull"),
    # several tiles in rows and in columns, windows across their seams
    _chain((2, 9, 601), {"out_channels": 3, "kernel": 3, "stride": 2, "padding": 1}, _spec("sigmoid"),
           _spec("avgpool2d", size=3, stride=2), n=1, direction="pull"),
    _chain((1, 140, 150), {"out_channels": 2, "kernel": 3, "padding": 1}, _spec("tanh"),
           _spec("maxpool2d", size=3, stride=2), n=1),
    # filters too long for registers; positions that need two bytes; signs that need three
    _chain((2, 3, 40), {"out_channels": 2, "kernel": [1, 17]}, _spec("relu"),
           _spec("avgpool2d", size=[2, 9], stride=1)),
    _chain((2, 40, 37), {"out_channels": 2, "kernel": [17, 1]}, _spec("relu"), _spec("maxpool2d", size=20),
           direction="pull"),
    # LeNet-5's second block
    _chain((6, 14, 14), {"out_channels": 16, "kernel": 5}, _spec("tanh"), _spec("avgpool2d", size=2), n=3),
)  # fmt: skip


@pytest.mark.slow
def test_shapes_that_need_several_blocks_chunks_or_bytes_are_right(device: EmulatedDevice) -> None:
    found = verify(None, device=device, rung="fused", cases=LARGER)
    assert not found.mismatches
    assert found.case_count == len(LARGER)


@pytest.mark.slow
def test_random_chains_are_right(device: EmulatedDevice) -> None:
    cases = [random_chain(np.random.default_rng(seed)) for seed in range(16)]
    found = verify(None, device=device, rung="fused", cases=cases)
    assert not found.mismatches
    assert found.case_count == len(cases)


def test_random_chains_vary_and_repeat() -> None:
    cases = [random_chain(np.random.default_rng(seed)) for seed in range(60)]
    assert cases[7] == random_chain(np.random.default_rng(7))
    assert {case.kinds for case in cases} >= set(RUNS[-5:])
    assert len({case.x_shape for case in cases}) > 50


CHECKED = (
    _chain((3, 7, 9), {"out_channels": 5, "kernel": [3, 2], "padding": 1}, _spec("tanh"), _spec("avgpool2d", size=2)),
    _chain((3, 7, 9), {"out_channels": 5, "kernel": [3, 2], "padding": 1}, _spec("tanh"), _spec("avgpool2d", size=2),
           direction="pull"),
    _chain((2, 9, 8), {"out_channels": 3, "kernel": 3, "stride": 2, "padding": 2}, _spec("relu"),
           _spec("avgpool2d", size=3, stride=1)),
    _chain((2, 9, 8), {"out_channels": 3, "kernel": 3, "stride": [3, 2]}, _spec("maxpool2d", size=2), _spec("sigmoid"),
           direction="pull"),
    _chain((19, 6, 6), {"out_channels": 21, "kernel": 3}, _spec("relu"), n=3),
)  # fmt: skip


@pytest.mark.checker
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_kernels_keep_the_rules_in_every_schedule(seed: int) -> None:
    device = EmulatedDevice(checker=True, seed=seed)
    try:
        found = verify(None, device=device, rung="fused", cases=CHECKED)
    finally:
        device.close()
    assert not found.mismatches
    assert set(found.kernels) == {*signatures(kernel_text("conv2d_act_pool.cu")), "sgd_update"}


def _engine(
    device: EmulatedDevice,
    specs: Sequence[LayerSpec],
    x_shape: Shape,
    direction: Literal["push", "pull"] = "push",
) -> CudaEngine:
    network = Network(x_shape, specs, None, needs_grad_x=True)
    return CudaEngine(
        network, batch_size=3, optimizer=OPTIMIZER, device=device, rung="fused", direction=direction
    )


def _probe(specs: Sequence[LayerSpec], x_shape: Shape) -> tuple[Network, Probe]:
    network = Network(x_shape, specs, None)
    rng = np.random.default_rng(5)
    (layer,) = (each for each in network.layers if each.parameters)
    return network, Probe(
        x=rng.standard_normal((3, *x_shape), dtype=np.float32),
        grad_y=rng.standard_normal((3, *network.output_shape), dtype=np.float32),
        parameters={
            name: rng.standard_normal(shape, dtype=np.float32)
            for name, shape in layer.parameters.items()
        },
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_results_repeat_bit_for_bit(
    device: EmulatedDevice, direction: Literal["push", "pull"]
) -> None:
    specs = [_spec("conv2d", out_channels=5, kernel=3), _spec("tanh"), _spec("maxpool2d", size=2)]
    _, given = _probe(specs, (2, 9, 8))
    engine = _engine(device, specs, (2, 9, 8), direction)
    (stage,) = engine.stages
    first, second = (engine.probe(stage.name, given) for _ in range(2))
    assert first.keys() == second.keys() >= {"y", "grad_x", "grad_weight", "grad_bias"}
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    engine.close()


def test_a_nan_is_the_maximum_and_nowhere_else(device: EmulatedDevice) -> None:
    specs = [_spec("conv2d", out_channels=1, kernel=1), _spec("maxpool2d", size=2), _spec("relu")]
    _, given = _probe(specs, (1, 4, 6))
    given.x[1, 0, 3, 2] = np.nan
    engine = _engine(device, specs, (1, 4, 6))
    y = engine.probe(engine.stages[0].name, given)["y"]
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 0, 1, 1]]
    engine.close()


def test_a_partial_batch_leaves_the_other_images_alone(device: EmulatedDevice) -> None:
    specs = [_spec("conv2d", out_channels=2, kernel=3), _spec("relu"), _spec("avgpool2d", size=2)]
    _, given = _probe(specs, (2, 6, 6))
    engine = _engine(device, specs, (2, 6, 6))
    whole = engine.probe(engine.stages[0].name, given)
    one = engine.probe(
        engine.stages[0].name,
        Probe(given.x[:1], given.grad_y[:1], None, given.parameters),  # type: ignore[index]
    )
    np.testing.assert_array_equal(one["y"], whole["y"][:1])
    np.testing.assert_array_equal(one["grad_x"], whole["grad_x"][:1])
    engine.close()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_first_layer_s_gradients_are_those_of_one_that_hands_errors_down(
    device: EmulatedDevice, direction: Literal["push", "pull"]
) -> None:
    specs = [_spec("conv2d", out_channels=2, kernel=3), _spec("relu")]
    network, given = _probe(specs, (2, 6, 6))
    above = _engine(device, specs, (2, 6, 6), direction)
    first = CudaEngine(
        network, batch_size=3, optimizer=OPTIMIZER, device=device, rung="fused", direction=direction
    )
    wanted, found = (each.probe(each.stages[0].name, given) for each in (above, first))
    assert wanted.keys() - found.keys() == {"grad_x"}
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name])
    above.close()
    first.close()


# ---- folded

FOLDED_CASES = (
    _chain((1, 28, 28), {"out_channels": 6, "kernel": 5}, _spec("avgpool2d", size=2), _spec("tanh")),
    _chain((6, 12, 12), {"out_channels": 5, "kernel": 5}, _spec("avgpool2d", size=2), _spec("sigmoid"), n=3,
           direction="pull"),
    _chain((3, 12, 13), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 2]},
           _spec("avgpool2d", size=[2, 3], stride=[1, 2]), n=3),
    _chain((3, 12, 13), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 2]},
           _spec("avgpool2d", size=[2, 3], stride=[3, 1]), _spec("relu"), direction="pull"),
)  # fmt: skip


@pytest.fixture
def folding(fused: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folded op above everything else, also where folding saves nothing."""
    monkeypatch.setattr(Conv2dAvgPoolFolded, "fits", lambda layers: True)
    table = (*((run, Conv2dAvgPoolFolded) for run in FOLDED_RUNS), *ladder.RUNGS["naive"])
    monkeypatch.setitem(ladder.RUNGS, "fused", table)


@pytest.mark.slow
@pytest.mark.usefixtures("folding")
def test_folded_convolutions_are_right(device: EmulatedDevice) -> None:
    found = verify(None, device=device, rung="fused", cases=FOLDED_CASES)
    assert not found.mismatches
    kernels = {*signatures(kernel_text("conv2d_avgpool_folded.cu")), "sgd_update"}
    assert set(found.kernels) == kernels


@pytest.mark.checker
@pytest.mark.usefixtures("folding")
def test_folded_kernels_keep_the_rules() -> None:
    device = EmulatedDevice(checker=True)
    try:
        assert not verify(None, device=device, rung="fused", cases=FOLDED_CASES[1:3]).mismatches
    finally:
        device.close()


def test_folding_saves_products_and_keeps_nothing() -> None:
    specs = [_spec("conv2d", out_channels=16, kernel=5), _spec("avgpool2d", size=2), _spec("tanh")]
    layers = Network((6, 12, 12), specs, None).layers
    folded, fused = Conv2dAvgPoolFolded(layers), Conv2dActPool(layers)
    activation = 64 * 16 * 4 * 4
    saved = folded.work(64)["forward"].flop_count - activation
    assert saved / (fused.work(64)["forward"].flop_count - 5 * activation) == 36 / 100
    assert not folded.saved()


@pytest.mark.parametrize(
    ("conv", "pool", "is_worth_it"),
    [
        ({"kernel": 5}, {"size": 2}, True),
        ({"kernel": 3}, {"size": 3, "stride": 1}, False),
        ({"kernel": 1, "stride": 2}, {"size": 2}, False),
    ],
)
def test_folding_is_left_alone_where_it_costs_more(
    conv: dict[str, Any], pool: dict[str, Any], is_worth_it: bool
) -> None:
    specs = [_spec("conv2d", out_channels=4, **conv), _spec("avgpool2d", **pool)]
    assert Conv2dAvgPoolFolded.fits(Network((2, 16, 16), specs, None).layers) is is_worth_it


# ---- what is launched, kept and counted


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_switching_backward_changes_the_kernels_launched(
    device: EmulatedDevice, direction: Literal["push", "pull"]
) -> None:
    specs = [_spec("conv2d", out_channels=2, kernel=3), _spec("tanh")]
    _, given = _probe(specs, (1, 5, 5))
    engine = _engine(device, specs, (1, 5, 5), direction)
    device.launched.clear()
    engine.probe(engine.stages[0].name, given)
    assert engine.stages[0].direction == direction
    (other,) = set(DIRECTIONS) - {direction}
    assert device.launched[f"conv2d_act_pool_backward_{direction}"] == 1
    assert device.launched[f"conv2d_act_pool_backward_{other}"] == 0
    engine.close()


def test_the_first_block_has_no_direction_and_no_input_gradient() -> None:
    first, second = _plan(_lenet(), (1, 28, 28)).stages[:2]
    assert (first.info.direction, second.info.direction) == ("", "push")
    assert first.grad_x is None
    assert second.grad_x is not None


def test_each_block_is_one_stage_and_nothing_of_the_pre_pool_map_s_size_is_planned() -> None:
    plan = _plan(_lenet(), (1, 28, 28))
    assert [stage.info.op for stage in plan.stages[:2]] == ["conv2d_act_pool"] * 2
    sizes = {tensor.shape[1:] for tensor in plan.tensors() if tensor.shape[:1] == (64,)}
    assert (6, 14, 14) in sizes
    assert not {(6, 28, 28), (16, 10, 10)} & sizes


def test_activations_shrink_below_a_third_of_the_naive_rung_s() -> None:
    def activations(rung: str) -> int:
        tensors = _plan(_lenet(), (1, 28, 28), rung).tensors()
        return sum(tensor.byte_count for tensor in tensors if tensor.category == "activations")

    assert activations("fused") <= 0.3 * activations("naive")


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ([_spec("tanh"), _spec("avgpool2d", size=2)], 0),
        ([_spec("avgpool2d", size=2), _spec("relu")], 0),
        ([_spec("relu"), _spec("avgpool2d", size=2)], 1),
        ([_spec("relu"), _spec("avgpool2d", size=3)], 2),
        ([_spec("maxpool2d", size=2), _spec("tanh")], 1),
        ([_spec("maxpool2d", size=16)], 1),
        ([_spec("maxpool2d", size=[16, 17])], 2),
        ([_spec("maxpool2d", size=1)], 0),
    ],
)
def test_a_window_leaves_as_few_bytes_as_backward_needs(after: list[LayerSpec], count: int) -> None:
    network = Network((1, 20, 20), [_spec("conv2d", out_channels=3, kernel=3), *after], None)
    op = Conv2dActPool(network.layers)
    saved = op.saved()
    if count:
        assert saved == {"passed": ((*network.output_shape, count), "uint8")}
    else:
        assert not saved


def test_work_counts_what_is_convolved_again_and_no_map_in_between() -> None:
    specs = [_spec("conv2d", out_channels=16, kernel=5), _spec("tanh"), _spec("avgpool2d", size=2)]
    layers = Network((6, 14, 14), specs, None, needs_grad_x=True).layers
    fused = Conv2dActPool(layers).work(64)
    naive = [ladder.LAYERS[layer.kind]([layer]).work(64) for layer in layers]
    convolution = 64 * 2 * 16 * 100 * 150
    assert fused["forward"].flop_count == sum(each["forward"].flop_count for each in naive)
    assert (
        fused["backward"].flop_count
        >= sum(each["backward"].flop_count for each in naive) + 2 * convolution
    )
    assert fused["forward"].byte_count == 4 * (64 * (6 * 14 * 14 + 16 * 5 * 5) + 16 * 150 + 16)


# ---- tiles


@pytest.mark.parametrize(
    ("x_shape", "conv", "after"),
    [
        ((3, 512, 512), {"out_channels": 32, "kernel": 3, "padding": 1}, [_spec("maxpool2d", size=2)]),
        ((256, 28, 28), {"out_channels": 256, "kernel": 7, "padding": 3}, [_spec("relu")]),
        ((1, 1, 5000), {"out_channels": 1, "kernel": [1, 9]}, [_spec("tanh"), _spec("avgpool2d", size=[1, 5])]),
        ((3, 224, 224), {"out_channels": 64, "kernel": 11, "stride": 4},
         [_spec("relu"), _spec("maxpool2d", size=3, stride=2)]),
    ],
)  # fmt: skip
def test_large_layers_find_tiles_that_fit(
    x_shape: Shape, conv: dict[str, Any], after: list[LayerSpec]
) -> None:
    layers = Network(x_shape, [_spec("conv2d", **conv), *after], None).layers
    assert Conv2dActPool.fits(layers)
    constants = Conv2dActPool(layers).constants()
    assert constants["THREADS"] <= 256
    assert 4 * max(constants["FORWARD_SHARED"], constants["BACKWARD_SHARED"]) <= 96 * 1024


def test_a_window_that_no_block_can_hold_does_not_fit() -> None:
    specs = [_spec("conv2d", out_channels=1, kernel=3), _spec("maxpool2d", size=300)]
    assert not Conv2dActPool.fits(Network((1, 512, 512), specs, None).layers)


def test_runs_are_those_of_the_issue_longer_ones_first() -> None:
    acts = ACTIVATIONS[1:]
    assert len(set(RUNS)) == len(RUNS) == 2 * len(acts) * len(POOLINGS) + len(acts) + len(POOLINGS)
    assert [len(run) for run in RUNS] == sorted((len(run) for run in RUNS), reverse=True)


# ---- planted faults

FAULT_CASES = {
    "max": _chain((3, 9, 11), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]},
                  _spec("maxpool2d", size=2, stride=[1, 2]), _spec("tanh"), n=3, direction="pull"),
    "signs": _chain((3, 9, 11), {"out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]},
                    _spec("relu"), _spec("avgpool2d", size=[2, 3]), n=3),
    "again": _chain((2, 7, 9), {"out_channels": 3, "kernel": 3, "padding": 1}, _spec("sigmoid"),
                    _spec("avgpool2d", size=2), n=3),
    "kept": _chain((2, 7, 9), {"out_channels": 3, "kernel": 3, "padding": 1}, _spec("tanh"),
                   _spec("avgpool2d", size=[3, 2], stride=[2, 1]), n=3),
    "ties": _chain((1, 6, 6), {"out_channels": 2, "kernel": 1}, _spec("maxpool2d", size=3), n=2),
    "gaps": _chain((2, 8, 9), {"out_channels": 3, "kernel": 2}, _spec("avgpool2d", size=[1, 3], stride=2),
                   _spec("tanh")),
    "straddling": _chain((1, 34, 31), {"out_channels": 3, "kernel": 3, "stride": 1}, _spec("maxpool2d", size=3),
                         _spec("relu"), n=3),
    "folded": FOLDED_CASES[2],
    "split": _chain((1, 33, 29), {"out_channels": 9, "kernel": 3, "padding": 1}, _spec("relu"), n=3),
}  # fmt: skip


def test_there_are_enough_faults_and_each_has_its_name() -> None:
    assert len(FAULTS) >= 16
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)


def _table_for(fault: dict[str, Any]) -> tuple[tuple[tuple[str, ...], type[Op]], ...]:
    ops: dict[str, tuple[type[Op], tuple[tuple[str, ...], ...]]] = {
        "folded": (Conv2dAvgPoolFolded, FOLDED_RUNS),
        "kept": (Conv2dActPoolKept, RUNS),
    }
    op, runs = ops.get(fault["case"], (Conv2dActPool, RUNS))
    return (*((run, op) for run in runs), *ladder.RUNGS["naive"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
def test_verify_catches(fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ladder.RUNGS, "fused", _table_for(fault))
    monkeypatch.setattr(Conv2dAvgPoolFolded, "fits", lambda layers: True)
    text = kernel_text(fault["source"])
    assert text.count(fault["find"]) == 1
    planted = {fault["source"]: text.replace(fault["find"], fault["put"])}
    device = EmulatedDevice(sources=planted)
    try:
        found = verify(None, device=device, rung="fused", cases=[FAULT_CASES[fault["case"]]])
    finally:
        device.close()
    assert found.mismatches, f"not caught: {fault['name']}"
