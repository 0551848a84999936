"""The fully connected layers at the end and the loss in one launch, for every run of kinds and on awkward widths."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ruamel.yaml import YAML

from pcnn_bench.awkward import Case
from pcnn_bench.engine import Probe
from pcnn_bench.engines import make_baseline
from pcnn_bench.layers import LOSSES, SPECS, LayerSpec
from pcnn_bench.network import Floats, Labels, Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.verify import verify
from pcnn_cuda import dense_head, ladder
from pcnn_cuda.dense_head import BLOCKS, HEAD_LOSSES, RUNS, STEPS, DenseHead, images_for
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.plan import Plan

OPTIMIZER = SgdSpec(learning_rate=0.05, momentum=0.9)
FAULTS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).parent.joinpath("faults", "faults_dense_head.yaml").read_text()
)
SOFTMAX, SQUARES = HEAD_LOSSES

Units = tuple[int, str]
"""Of a fully connected layer: how many, and the activation after it, if any."""


@pytest.fixture(autouse=True, params=["own update", "one update"])
def rung(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A rung of this op above the naive ones, which adds up split gradients itself or leaves them to the update."""
    table = (*((run, DenseHead) for run in RUNS), *ladder.RUNGS["naive"])
    name = "heads" if request.param == "own update" else "graph"
    monkeypatch.setitem(ladder.RUNGS, name, table)
    return name


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _specs(*layers: Units) -> list[LayerSpec]:
    specs: list[LayerSpec] = []
    for units, activation in layers:
        specs.append(SPECS["dense"].model_validate({"kind": "dense", "out_features": units}))
        specs += [SPECS[activation].model_validate({"kind": activation})] if activation else []
    return specs


def _case(n: int, features: int, *layers: Units, loss: str = SOFTMAX) -> Case:
    return Case((*_specs(*layers), LOSSES[loss](kind=loss)), (features,), n)


def _network(features: int, *layers: Units, loss: str = SOFTMAX, **options: Any) -> Network:
    return Network((features,), _specs(*layers), LOSSES[loss](kind=loss), **options)


LENET = ((120, "tanh"), (84, "tanh"), (10, ""))
CASES = (
    _case(3, 7, (5, "tanh"), (3, "relu"), (4, "sigmoid"), loss=SQUARES),
    _case(1, 1, (1, "")),
    _case(5, 31, (33, "relu"), (10, ""), loss=SQUARES),
    _case(2, 257, (3, "sigmoid")),  # an odd number of features, a loop over lanes that ends early
    _case(3, 3, (259, "tanh"), (2, "")),  # many units in turn, few features
    _case(
        2, 1102, (18, "relu"), (6, ""), (7, ""), loss=SQUARES
    ),  # pairs of features, more than threads
    _case(4, 400, *LENET),
    _case(3, 2600, (2, "relu"), (5, "")),  # vectors of features, more than threads
)
BATCHES = tuple(
    _case(n, 6, (5, "tanh"), (3, ""), loss=loss)
    for n, loss in ((64, SQUARES), (133, SOFTMAX), (265, SQUARES), (529, SOFTMAX), (2, SOFTMAX))
)
"""Each number of images a block, the last block partly filled; and splits of the weight gradients."""


def _engine(
    device: EmulatedDevice, network: Network, rung: str, batch_size: int, **options: Any
) -> CudaEngine:
    return CudaEngine(
        network, batch_size=batch_size, optimizer=OPTIMIZER, device=device, rung=rung, **options
    )


def _probe(network: Network, n: int, seed: int = 0) -> Probe:
    rng = np.random.default_rng(seed)
    several = sum(bool(layer.parameters) for layer in network.layers) > 1
    return Probe(
        x=rng.standard_normal((n, *network.input_shape), dtype=np.float32),
        labels=rng.integers(0, network.output_shape[0], n).astype(np.int32),
        parameters={
            f"{layer.name}.{name}" if several else name: rng.standard_normal(
                shape, dtype=np.float32
            )
            for layer in network.layers
            for name, shape in layer.parameters.items()
        },
    )


def _results(
    device: EmulatedDevice, network: Network, rung: str, given: Probe, batch_size: int = 0
) -> dict[str, npt.NDArray[np.floating]]:
    engine = _engine(device, network, rung, batch_size or len(given.x))
    try:
        (stage,) = (each for each in engine.stages if each.op == "dense_head")
        return engine.probe(stage.name, given)
    finally:
        engine.close()


def test_the_widths_and_batches_are_right(device: EmulatedDevice, rung: str) -> None:
    found = verify(None, device=device, rung=rung, cases=[*CASES, *BATCHES])
    assert found.case_count == len(CASES) + len(BATCHES)
    assert not found.mismatches
    update = {"sgd_update", "sgd_update_joined"} if rung == "graph" else {"sgd_update"}
    own = set(signatures(kernel_text("dense_head.cu")))
    assert set(found.kernels) == update | (own - {DenseHead.sum_kernel} if rung == "graph" else own)


@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_slices_of_several_stagings_are_right(
    device: EmulatedDevice, rung: str, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr(dense_head, "WEIGHT_BLOCKS", blocks)
    network = _network(6, (5, "tanh"), (3, ""))
    assert DenseHead(network.all_layers)._slices(265)[0] == {2: 288, 4: 160, 8: 96}[blocks]
    assert not verify(None, device=device, rung=rung, cases=[BATCHES[2]]).mismatches


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_run_of_kinds_is_right(device: EmulatedDevice, rung: str, count: int) -> None:
    chosen = [run for run in RUNS if run.count("dense") == count][
        rung == "graph" :: 2 * count * count - 1
    ]
    cases = []
    for number, (*kinds, loss) in enumerate(chosen):
        after = [
            "" if following == "dense" else following
            for kind, following in zip(kinds, [*kinds[1:], "dense"], strict=True)
            if kind == "dense"
        ]
        widths = [2 + (number + 3 * index) % 7 for index in range(count)]
        cases.append(_case(3, 4 + number % 9, *zip(widths, after, strict=True), loss=loss))
    found = verify(None, device=device, rung=rung, cases=cases)
    assert found.case_count == len(cases) > 2
    assert not found.mismatches


def test_runs_hold_one_to_three_layers_and_end_with_a_loss() -> None:
    assert len(set(RUNS)) == len(RUNS) == 2 * (4 + 4**2 + 4**3)
    for run in RUNS:
        assert run[0] == "dense"
        assert run[-1] in HEAD_LOSSES
        assert 1 <= run.count("dense") <= 3
        assert all(a == "dense" or b == "dense" for a, b in pairwise(run[:-1]))


@pytest.mark.checker
@pytest.mark.parametrize("seed", [0])
def test_the_kernels_keep_the_rules_in_every_schedule(rung: str, seed: int) -> None:
    device = EmulatedDevice(checker=True, seed=seed)
    try:
        found = verify(None, device=device, rung=rung, cases=[*CASES[:6], *BATCHES])
    finally:
        device.close()
    assert not found.mismatches
    assert {f"dense_head_step_{word}" for word in STEPS.values()} <= set(found.kernels)


@pytest.mark.parametrize("n", [1, 3, 5, 64, 133])
@pytest.mark.parametrize("loss", HEAD_LOSSES)
def test_results_do_not_depend_on_the_images_of_a_block(
    device: EmulatedDevice, rung: str, monkeypatch: pytest.MonkeyPatch, n: int, loss: str
) -> None:
    network = _network(38, (21, "tanh"), (6, "sigmoid"), (5, ""), loss=loss, needs_grad_x=True)
    given = _probe(network, n)
    wanted = _results(device, network, rung, given)
    for images in STEPS:
        monkeypatch.setattr(dense_head, "images_for", lambda n, images=images: images)
        found = _results(device, network, rung, given, batch_size=n + 2)
        assert (
            found.keys()
            == wanted.keys()
            >= {"losses", "predictions", "grad_x", "grad_dense1.weight"}
        )
        for name, value in found.items():
            np.testing.assert_array_equal(value, wanted[name], err_msg=f"{name}, {images} images")


def test_a_block_takes_more_images_only_once_every_multiprocessor_has_one() -> None:
    assert [images_for(n) for n in (1, 64, BLOCKS, BLOCKS + 1, 4 * BLOCKS, 1024, 10**6)] == [
        1, 1, 1, 2, 4, 8, 8,
    ]  # fmt: skip


def test_the_first_of_equal_scores_is_predicted_and_a_nan_makes_its_loss_a_nan(
    device: EmulatedDevice, rung: str
) -> None:
    for loss in HEAD_LOSSES:
        network = _network(6, (40, ""), loss=loss, needs_grad_x=True)
        given = _probe(network, 3)
        for value in given.parameters.values():
            value[7:] = value[7]  # equal rows of weights: equal scores
            value[:7] = value[7]
        given.x[1, 2] = np.nan
        found = _results(device, network, rung, given)
        assert found["predictions"][[0, 2]].tolist() == [0, 0]
        assert np.isnan(found["losses"]).tolist() == [False, True, False]
        assert np.isnan(found["grad_x"]).any(axis=1).tolist() == [False, True, False]
        assert np.isnan(found["grad_weight"]).any()


def test_a_partial_batch_leaves_the_other_images_alone(device: EmulatedDevice, rung: str) -> None:
    network = _network(6, (5, "relu"), (3, ""), needs_grad_x=True)
    given = _probe(network, 2)
    found = _results(device, network, rung, given, batch_size=300)
    assert found["beyond_batch"] == 0
    np.testing.assert_array_equal(found["losses"], _results(device, network, rung, given)["losses"])


def test_a_head_without_layers_below_has_no_input_gradient_and_the_same_others(
    device: EmulatedDevice, rung: str
) -> None:
    layers = ((9, "tanh"), (4, ""))
    given = _probe(_network(10, *layers), 5)
    wanted = _results(device, _network(10, *layers, needs_grad_x=True), rung, given)
    found = _results(device, _network(10, *layers), rung, given)
    assert wanted.keys() - found.keys() == {"grad_x"}
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name])


def _expected(network: Network, given: Probe) -> dict[str, npt.NDArray[np.floating]]:
    """What the chain of layers gives in float64."""
    reference = make_baseline(
        network, batch_size=len(given.x), optimizer=OPTIMIZER, dtype=np.float64
    )
    own = {
        layer.name: {key: given.parameters[f"{layer.name}.{key}"] for key in layer.parameters}
        for layer in network.layers
    }
    inputs = [given.x]
    for layer in network.layers:
        found = reference.probe(layer.name, Probe(inputs[-1], parameters=own[layer.name]))
        inputs.append(found["y"])
    found = reference.probe("loss", Probe(inputs[-1], labels=given.labels))
    expected = {name: found[name] for name in ("losses", "predictions")}
    for layer, x in reversed(list(zip(network.layers, inputs, strict=False))):
        found = reference.probe(layer.name, Probe(x, found["grad_x"], None, own[layer.name]))
        expected |= {f"grad_{layer.name}.{key}": found[f"grad_{key}"] for key in layer.parameters}
    return {**expected, "grad_x": found["grad_x"]}


@pytest.mark.parametrize("n", [3, 200, 300, 600])
@pytest.mark.parametrize("loss", HEAD_LOSSES)
def test_wide_layers_with_usual_parameters_err_by_roundings_alone(
    device: EmulatedDevice, rung: str, n: int, loss: str
) -> None:
    """The bounds of verify grow with each layer; of numbers of usual size the errors do not."""
    network = _network(400, *LENET, loss=loss, needs_grad_x=True)
    drawn = _probe(network, n)
    given = Probe(drawn.x, None, drawn.labels, network.initial_parameters(seed=1))
    found = _results(device, network, rung, given)
    for name, value in _expected(network, given).items():
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=4e-6 * np.abs(value).max(), err_msg=name
        )


def _train(engine: CudaEngine, batches: Sequence[tuple[Floats, Labels]]) -> dict[str, Floats]:
    for x, labels in batches:
        engine.set_batch(x, labels)
        engine.step()
    return {"losses": engine.take_losses(), **engine.parameters()}


def test_training_follows_the_naive_rung_with_a_last_partial_batch(
    device: EmulatedDevice, rung: str
) -> None:
    network = Network(
        (2, 3, 3), [SPECS["flatten"](kind="flatten"), *_specs((7, "tanh"), (3, ""))],
        LOSSES[SOFTMAX](kind=SOFTMAX),
    )  # fmt: skip
    rng = np.random.default_rng(2)
    batches = [
        (rng.standard_normal((n, 2, 3, 3), dtype=np.float32), rng.integers(0, 3, n).astype(np.int32))
        for n in (70, 70, 33)
    ]  # fmt: skip
    found, wanted = (
        _train(engine, batches)
        for engine in (
            _engine(device, network, rung, 70),
            _engine(device, network, "naive", 70),
        )
    )
    assert found["losses"].shape == (173,)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)


# ---- what is launched, kept and counted


def test_one_launch_forward_and_one_aside(device: EmulatedDevice, rung: str) -> None:
    network = _network(20, (7, "tanh"), (6, "relu"), (3, ""))
    given = _probe(network, 129)
    device.launched.clear()
    _results(device, network, rung, given)
    own = {name: count for name, count in device.launched.items() if "dense_head" in name}
    wanted = {"dense_head_step_one": 1, "dense_head_backward": 1}
    assert own == (wanted if rung == "graph" else {**wanted, "dense_head_sum": 1})


@pytest.mark.parametrize(("n", "splits"), [(1, 1), (128, 1), (129, 2), (257, 3), (1024, 4)])
def test_a_batch_is_split_until_there_are_blocks_enough(n: int, splits: int, rung: str) -> None:
    op = DenseHead(_network(400, *LENET).all_layers)
    size, count = op._slices(n)
    assert count == splits
    assert (count - 1) * size < n <= count * size
    plan = Plan(_network(400, *LENET), rung=rung, batch_size=n, optimizer=OPTIMIZER)
    assert ("partials" in plan.stages[0].workspace) == (splits > 1)


def test_the_stage_counts_each_product_once() -> None:
    network = _network(400, *LENET, needs_grad_x=True)
    op = DenseHead(network.all_layers)
    work = op.work(64)
    layers = [(layer.spec, layer.batch_x(64)) for layer in network.all_layers]
    assert work["forward"].flop_count + work["backward"].flop_count == sum(
        spec.forward_flops(x) + spec.backward_flops(x, True) for spec, x in layers
    )
    parameters = network.parameter_count
    assert parameters == 59_134
    assert work["forward"].byte_count == 4 * (64 * (2 * 400 + 204 + 216 + 3) + parameters)
    assert work["backward"].byte_count == 4 * (64 * (400 + 204 + 216) + parameters)
    assert op.work(256)["backward"].byte_count == 4 * (256 * (400 + 204 + 216) + 5 * parameters)
    assert op.merges == {"forward": ("backward",)}


@pytest.mark.parametrize(
    ("features", "layers", "fits"),
    [
        (400, LENET, True),
        (4096, ((64, "relu"), (10, "")), True),
        (4097, ((10, ""),), False),
        (1024, ((300, "relu"), (10, "")), False),  # more weights than a block should read
        (3, ((4000, "relu"), (2, "")), False),  # more units than its shared memory holds
    ],
)
def test_what_a_block_cannot_hold_is_left_to_other_ops(
    features: int, layers: tuple[Units, ...], fits: bool
) -> None:
    assert DenseHead.fits(_network(features, *layers).all_layers) is fits


def test_the_whole_head_of_lenet_is_one_stage(rung: str) -> None:
    network = Network(
        (16, 5, 5), [SPECS["flatten"](kind="flatten"), *_specs(*LENET)],
        LOSSES[SOFTMAX](kind=SOFTMAX),
    )  # fmt: skip
    plan = Plan(network, rung=rung, batch_size=64, optimizer=OPTIMIZER)
    assert [stage.info.op for stage in plan.stages] == ["flatten", "dense_head"]
    assert plan.stages[1].info.layers == ("dense1", "tanh1", "dense2", "tanh2", "dense3", "loss")


# ---- faults

FAULT_CASES = [CASES[0], CASES[4], CASES[5], BATCHES[0], BATCHES[1]]


def test_every_source_has_a_fault() -> None:
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS) >= 12
    sources = {
        f"dense_head{part}" for part in (".cu", ".cuh", "_forward.cuh", "_error.cuh", "_weight.cuh")
    }
    assert {fault["source"] for fault in FAULTS} == sources


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
@pytest.mark.parametrize("rung", ["own update"], indirect=True)
def test_verify_catches(fault: dict[str, Any], rung: str) -> None:
    text = kernel_text(fault["source"])
    assert text.count(fault["find"]) == 1, f"{fault['find']!r} in {fault['source']}"
    device = EmulatedDevice(sources={fault["source"]: text.replace(fault["find"], fault["put"])})
    try:
        found = (verify(None, device=device, rung=rung, cases=[case]) for case in FAULT_CASES)
        is_caught = any(each.mismatches for each in found)  # the first that shows it will do
    finally:
        device.close()
    assert is_caught, f"not caught: {fault['name']}"
