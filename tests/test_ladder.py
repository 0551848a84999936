"""Which op each rung gives a block: the table itself, and what rung `graph` chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcnn_bench.config import load_config
from pcnn_bench.layers import SPECS, LayerSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_cuda.ladder import PULLED_CHANNELS, PULLED_EXTENT, RUNGS
from pcnn_cuda.plan import Plan

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
FUSED_OPS = {
    "fused": {"conv2d_act_pool", "conv2d_avgpool_folded"},
    "ring": {"conv2d_ring"},
    "graph": {"conv2d_act_pool", "conv2d_avgpool_folded"},
}


def _spec(kind: str, **arguments: Any) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _plan(x_shape: tuple[int, ...], *specs: LayerSpec, rung: str = "graph", **options: Any) -> Plan:
    config = load_config(CONFIGS / "quickstart.yaml", ())
    network = Network(
        x_shape,
        [*specs, _spec("flatten"), _spec("dense", out_features=10)],
        SoftmaxCrossEntropySpec(),
    )
    return Plan(network, rung=rung, batch_size=64, optimizer=config.training.optimizer, **options)


def test_rungs_are_those_of_the_ladder_in_order() -> None:
    assert list(RUNGS) == ["naive", "tuned", "fused", "ring", "graph"]


@pytest.mark.parametrize("name", ["lenet5-fashion", "parallelcnn", "cifar-quick"])
@pytest.mark.parametrize("rung", list(FUSED_OPS))
def test_every_convolution_block_of_a_shipped_network_is_the_rungs_own(
    name: str, rung: str
) -> None:
    config = load_config(CONFIGS / f"{name}.yaml", ())
    network = config.build_network()
    training = config.training
    plan = Plan(network, rung=rung, batch_size=training.batch_size, optimizer=training.optimizer)
    blocks = [stage for stage in plan.stages if "conv2d" in stage.info.layers[0]]
    assert len(blocks) == sum(layer.kind == "conv2d" for layer in network.layers)
    assert {stage.info.op for stage in blocks} <= FUSED_OPS[rung]
    for (
        stage
    ) in blocks:  # nothing of the block is left to another stage, and both phases are the op's
        kinds = [layer.kind for layer in stage.op.layers]
        assert any("pool" in kind for kind in kinds)
        assert {"forward", "backward"} <= set(stage.info.work(training.batch_size))


def test_graph_leaves_a_block_whose_windows_overlap_to_tuned_kernels() -> None:
    conv, relu = _spec("conv2d", out_channels=4, kernel=3), _spec("relu")
    overlapping = _plan((2, 16, 16), conv, relu, _spec("maxpool2d", size=3, stride=2))
    assert [stage.info.op for stage in overlapping.stages][:3] == [
        "conv2d_tuned",
        "relu",
        "maxpool2d",
    ]
    even = _plan((2, 16, 16), conv, relu, _spec("maxpool2d", size=2))
    assert even.stages[0].info.op == "conv2d_act_pool"


@pytest.mark.parametrize(
    ("x_shape", "kernel", "direction"),
    [
        ((8, 16, 16), 3, "push"),
        ((8, PULLED_EXTENT, PULLED_EXTENT), 3, "pull"),
        ((PULLED_CHANNELS, 16, 16), 3, "pull"),
        ((PULLED_CHANNELS, PULLED_EXTENT, PULLED_EXTENT), 1, "push"),
    ],
)
def test_graph_prefers_the_direction_that_was_measured_to_be_faster(
    x_shape: tuple[int, int, int], kernel: int, direction: str
) -> None:
    below = _spec("conv2d", out_channels=x_shape[0], kernel=1)
    block = (
        _spec("conv2d", out_channels=4, kernel=kernel),
        _spec("relu"),
        _spec("maxpool2d", size=2),
    )
    assert _plan(x_shape, below, *block).stages[1].info.direction == direction
    other = "pull" if direction == "push" else "push"
    assert _plan(x_shape, below, *block, direction=other).stages[1].info.direction == other
    assert _plan(x_shape, below, *block, rung="fused").stages[1].info.direction == "push"


def test_the_end_of_a_network_is_one_stage_under_graph_where_it_is_small() -> None:
    small = _plan((1, 8, 8), _spec("conv2d", out_channels=2, kernel=3))
    assert small.stages[-1].info.op == "dense_head"
    large = _plan((1, 80, 80), _spec("conv2d", out_channels=2, kernel=3))
    assert [stage.info.op for stage in large.stages][-2:] == [
        "dense_tuned",
        "softmax_cross_entropy_tuned",
    ]
