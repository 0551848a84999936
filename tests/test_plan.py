"""The plan: which tensors share memory, how long they live, and that none that live together overlap."""

from itertools import combinations

import numpy as np
import pytest

from pcnn_bench.errors import ConfigError, DeviceError
from pcnn_bench.layers import SPECS, LayerSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.binding import Binding
from pcnn_cuda.device import DeviceArray
from pcnn_cuda.paper import Paper
from pcnn_cuda.plan import Plan, Tensor
from pcnn_cuda.sgd import Sgd

OPTIMIZER = SgdSpec(learning_rate=0.1)
LOSS = SoftmaxCrossEntropySpec()


def _spec(kind: str, **arguments: object) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _plan(
    specs: list[LayerSpec], shape: tuple[int, ...] = (1, 28, 28), batch_size: int = 64
) -> Plan:
    return Plan(
        Network(shape, specs, LOSS), rung="naive", batch_size=batch_size, optimizer=OPTIMIZER
    )


def _lenet() -> list[LayerSpec]:
    return [
        _spec("conv2d", out_channels=6, kernel=5, padding=2), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("conv2d", out_channels=16, kernel=5), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("flatten"), _spec("dense", out_features=120), _spec("tanh"), _spec("dense", out_features=10),
    ]  # fmt: skip


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.offset < b.offset + b.byte_count and b.offset < a.offset + a.byte_count


def _live_together(a: Tensor, b: Tensor) -> bool:
    if None in (a.first_step, b.first_step):
        return True
    assert a.first_step is not None
    assert a.last_step is not None
    assert b.first_step is not None
    assert b.last_step is not None
    return a.first_step <= b.last_step and b.first_step <= a.last_step


def _random_specs(rng: np.random.Generator) -> list[LayerSpec]:
    kinds = ["conv2d", "maxpool2d", "avgpool2d", "tanh", "relu", "sigmoid"]
    specs = []
    for kind in rng.choice(kinds, rng.integers(1, 7)):
        size = int(rng.integers(1, 3))
        arguments = {
            "conv2d": {"out_channels": int(rng.integers(1, 5)), "kernel": size, "padding": 1},
            "maxpool2d": {"size": size},
            "avgpool2d": {"size": size},
        }
        specs.append(_spec(str(kind), **arguments.get(str(kind), {})))
    return [*specs, _spec("flatten"), _spec("dense", out_features=10)]


@pytest.mark.parametrize("seed", range(30))
def test_tensors_that_live_together_never_overlap(seed: int) -> None:
    plan = _plan(_random_specs(np.random.default_rng(seed)), (2, 33, 35), batch_size=3)
    for a, b in combinations(plan.tensors(), 2):
        assert not (_live_together(a, b) and _overlap(a, b)), (a, b)
    assert all(t.offset % 256 == 0 for t in plan.tensors())
    assert plan.byte_count >= max(t.offset + t.byte_count for t in plan.tensors())


def test_memory_is_reused() -> None:
    plan = _plan(_lenet())
    lent = sum(tensor.reserved_bytes for tensor in plan.arena)
    used = plan.byte_count - sum(tensor.reserved_bytes for tensor in plan.static)
    assert used < lent


def test_activations_run_in_place_after_layers_that_do_not_need_their_output() -> None:
    by_name = {stage.info.name: stage for stage in _plan(_lenet()).stages}
    assert by_name["tanh1"].y.tensor is by_name["conv2d1"].y.tensor
    assert by_name["tanh1"].grad_x is not None
    assert by_name["tanh1"].grad_y is not None
    assert by_name["tanh1"].grad_x.tensor is by_name["tanh1"].grad_y.tensor


def test_an_activation_neither_overwrites_the_input_nor_what_another_activation_keeps() -> None:
    specs = [_spec("relu"), _spec("tanh"), _spec("sigmoid"), _spec("flatten"), _spec("relu")]
    plan = _plan([*specs, _spec("dense", out_features=10)])
    tensors = [id(stage.y.tensor) for stage in plan.stages if not stage.op.is_view]
    assert len(set(tensors)) == len(tensors)
    assert plan.stages[0].y.tensor is not plan.input


def test_what_backward_reads_is_an_activation_and_lives_until_then() -> None:
    plan = _plan(_lenet())
    conv2 = next(stage for stage in plan.stages if stage.info.name == "conv2d2")
    stage_count = len(plan.stages)
    assert conv2.x.tensor.category == "activations"
    assert conv2.x.tensor.last_step == 2 * stage_count - 1 - plan.stages.index(conv2)


def test_nothing_flows_back_below_the_first_parameters() -> None:
    plan = _plan(
        [
            _spec("avgpool2d", size=2),
            *_lenet()[:1],
            _spec("flatten"),
            _spec("dense", out_features=10),
        ]
    )
    pool, conv = plan.stages[:2]
    assert not pool.needs_backward
    assert "backward" not in pool.info.work(4)
    assert conv.grad_x is None
    assert conv.gradient is not None


def test_a_tensor_that_32_bit_indices_cannot_reach_is_refused_with_the_layer_and_a_batch() -> None:
    with pytest.raises(DeviceError, match=r"layer conv2d1: y .* batch_size of at most \d+"):
        _plan(_lenet(), batch_size=500_000)


def test_a_layer_may_name_its_rung_but_only_one_that_is_built() -> None:
    named = _spec("conv2d", out_channels=6, kernel=5, cuda={"rung": "naive"})
    assert _plan([named, *_lenet()[1:3], *_lenet()[6:]]).stages[0].op.stem == "conv2d"
    wrong = _spec("conv2d", out_channels=6, kernel=5, cuda={"rung": "warp"})
    with pytest.raises(ConfigError, match="'warp' is not built; choose one of naive"):
        _plan([wrong, *_lenet()[6:]])


@pytest.mark.parametrize("n", [3, 200])
def test_partial_sums_count_where_they_are_joined(n: int) -> None:
    fused = [_spec("conv2d", out_channels=3, kernel=3), _spec("tanh"), _spec("avgpool2d", size=2)]
    folded = [_spec("conv2d", out_channels=3, kernel=3), _spec("avgpool2d", size=2)]
    others = [_spec("conv2d", out_channels=2, kernel=2), _spec("flatten"), _spec("dense", out_features=10)]  # fmt: skip
    network = Network((2, 23, 21), [*fused, *folded, *others], LOSS)
    plan = Plan(network, rung="graph", batch_size=n, optimizer=OPTIMIZER)
    paper, sgd = Paper(), Sgd(OPTIMIZER)
    for stage in plan.stages:
        stage.op.load(paper)
    sgd.load(paper)
    memory = DeviceArray(0, (plan.byte_count,), "uint8")
    binding = Binding(plan, memory, sgd, lambda rows: DeviceArray(0, rows.shape, "int32"))
    partials = joined = 0
    for stage in (each for each in plan.stages if each.needs_backward and not each.op.is_view):
        sums = stage.op.partial_sums(n, binding.tensors[stage.info.name])
        count = sum(each.split_count * each.gradient.size for each in sums)
        assert stage.op.partial_count(n) == count
        gradients = sum(each.gradient.size for each in sums)
        alone, here = (work(n)["backward"].byte_count for work in (stage.op.work, stage.info.work))
        assert alone - here == 4 * (
            count + gradients
        )  # the update reads the parts and writes the gradient
        partials, joined = partials + count, joined + gradients
    assert partials > joined > 0
    assert plan.update
    update = plan.update.work(n)["update"].byte_count
    assert update == 4 * (5 * network.parameter_count + partials)


def test_a_layer_that_names_its_rung_begins_a_run_of_its_own() -> None:
    specs = _lenet()
    specs[1] = _spec("tanh", cuda={"rung": "naive"})
    plan = Plan(Network((1, 28, 28), specs, LOSS), rung="fused", batch_size=4, optimizer=OPTIMIZER)
    assert [stage.info.name for stage in plan.stages][:3] == ["conv2d1", "tanh1", "avgpool2d1"]


def test_switching_backward_changes_the_kernels_that_are_launched() -> None:
    from pcnn_cuda.emulated_device import EmulatedDevice
    from pcnn_cuda.engine import CudaEngine

    launched = {}
    for direction in ("push", "pull"):
        device = EmulatedDevice()
        specs = [*_lenet()[:5], _spec("flatten"), _spec("dense", out_features=10)]
        engine = CudaEngine(
            Network((1, 14, 14), specs, LOSS), batch_size=2, optimizer=OPTIMIZER, device=device,
            rung="fused", direction=direction,
        )  # fmt: skip
        engine.set_batch(np.zeros((2, 1, 14, 14), np.float32), np.zeros(2, np.int32))
        engine.step()
        launched[direction] = {name for name in device.launched if "backward" in name}
        engine.close()
        device.close()
    assert launched["push"] != launched["pull"]
    assert any("push" in name for name in launched["push"] - launched["pull"])
    assert any("pull" in name for name in launched["pull"] - launched["push"])
