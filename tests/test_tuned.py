"""Rung ``tuned``: convolution and fully connected layers by tiles, on shapes that reach every branch of the tiling."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from pcnn_bench.awkward import Case, awkward_cases
from pcnn_bench.engine import Probe
from pcnn_bench.layers import SPECS, LayerSpec, Shape
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.verify import verify
from pcnn_cuda import ladder
from pcnn_cuda.conv2d_tiles import MAX_EDGE, MAX_FLOATS, choose_tile, choose_weight_tile
from pcnn_cuda.conv2d_tuned import WANTED_BLOCKS, Conv2dTuned
from pcnn_cuda.dense_tuned import DenseActivation, DenseTuned
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.plan import Plan

OPTIMIZER = SgdSpec(learning_rate=0.05, momentum=0.9)
FAULTS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).parent.joinpath("faults", "faults_tuned.yaml").read_text()
)
ACTIVATIONS = ("tanh", "relu", "sigmoid")


@pytest.fixture(autouse=True)
def rung(monkeypatch: pytest.MonkeyPatch) -> str:
    """A rung of these ops alone, whatever else the ladder's own makes of them."""
    pairs = tuple((("dense", kind), DenseActivation) for kind in ACTIVATIONS)
    alone = ((("conv2d",), Conv2dTuned), (("dense",), DenseTuned))
    monkeypatch.setitem(ladder.RUNGS, "tiles", (*pairs, *alone, *ladder.RUNGS["naive"]))
    return "tiles"


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _spec(kind: str, **arguments: Any) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _convolution(x_shape: Shape, out_channels: int, kernel: Any, **arguments: Any) -> Network:
    spec = _spec("conv2d", out_channels=out_channels, kernel=kernel, **arguments)
    return Network(x_shape, [spec], None, needs_grad_x=True)


def _dense(n: int, features: int, units: int, activation: str = "") -> Case:
    specs = [_spec("dense", out_features=units)]
    specs += [_spec(activation)] if activation else []
    return Case(tuple(specs), (features,), n)


def _awkward() -> list[Case]:
    return [case for case in awkward_cases() if case.kinds[0] in ("conv2d", "dense")]


def _random_convolution(rng: np.random.Generator) -> Case:
    """A shape that holds its window; every extent drawn by itself."""
    kernel, stride, padding = rng.integers(1, 8, 2), rng.integers(1, 5, 2), rng.integers(0, 4, 2)
    extent = np.maximum(rng.integers(1, 24, 2), kernel - 2 * padding)
    spec = _spec(
        "conv2d",
        out_channels=int(rng.integers(1, 20)),
        kernel=kernel.tolist(),
        stride=stride.tolist(),
        padding=padding.tolist(),
    )
    shape = (int(rng.integers(1, 14)), *extent.tolist())
    return Case((spec,), shape, int(rng.integers(1, 5)))


LARGE = (
    Case((_spec("conv2d", out_channels=16, kernel=5),), (6, 14, 14), 3),  # LeNet-5
    Case((_spec("conv2d", out_channels=40, kernel=5, padding=2),), (20, 8, 8), 5),  # many tiles
    Case((_spec("conv2d", out_channels=9, kernel=1),), (70, 6, 8), 2),  # several channels a thread
    Case((_spec("conv2d", out_channels=2, kernel=3, padding=1),), (1, 5, 530), 1),  # tiles of columns
    Case((_spec("conv2d", out_channels=3, kernel=32, stride=32),), (2, 64, 64), 2),  # the largest window
    Case((_spec("conv2d", out_channels=2, kernel=3),), (1, 4, 4), 600),  # slices of several strips
)  # fmt: skip
FAULT_CONVOLUTIONS = (
    Case((_spec("conv2d", out_channels=18, kernel=3, padding=1),), (2, 6, 6), 3),  # tiles of maps
    Case((_spec("conv2d", out_channels=18, kernel=3, stride=2),), (2, 9, 21), 2),  # wide threads
)
"""Beside two awkward ones: what some catch, all do, and each is compiled anew."""
PRODUCTS = (
    _dense(5, 600, 33),  # a sum in three stages
    _dense(130, 9, 20),  # a weight gradient in two
    *(_dense(3, 30, 18, kind) for kind in ACTIVATIONS),
)


def test_every_kernel_is_right_on_awkward_shapes(device: EmulatedDevice, rung: str) -> None:
    found = verify(None, device=device, rung=rung, cases=_awkward())
    assert found.rows
    assert not found.mismatches
    own = {f"{stem}.cu" for stem in (Conv2dTuned.stem, DenseTuned.stem)}
    assert {name for source in own for name in signatures(kernel_text(source))} <= {*found.kernels}


@pytest.mark.parametrize(
    "case", [*LARGE, *PRODUCTS], ids=lambda case: f"{case.kinds}-{case.x_shape}"
)
def test_every_branch_of_the_tiling_is_right(device: EmulatedDevice, rung: str, case: Case) -> None:
    found = verify(None, device=device, rung=rung, cases=[case])
    assert found.rows
    assert not found.mismatches


def test_random_windows_are_right(device: EmulatedDevice, rung: str) -> None:
    rng = np.random.default_rng(3)
    found = verify(
        None, device=device, rung=rung, cases=[_random_convolution(rng) for _ in range(12)]
    )
    assert found.case_count == 12
    assert not found.mismatches


@pytest.mark.checker
@pytest.mark.parametrize("seed", [0])
def test_the_kernels_keep_the_rules_in_every_schedule(rung: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = EmulatedDevice(checker=True, seed=seed)
    try:
        cases = [case for case in _awkward() if prod(case.x_shape) < 3000]
        cases += [_random_convolution(rng) for _ in range(4)]
        cases += [LARGE[1], LARGE[2], *PRODUCTS]
        found = verify(None, device=device, rung=rung, cases=cases)
    finally:
        device.close()
    assert found.case_count >= len(cases)
    assert not found.mismatches


def test_a_window_beyond_the_tiles_is_left_to_the_naive_kernels(
    device: EmulatedDevice, rung: str
) -> None:
    spec = _spec("conv2d", out_channels=2, kernel=[MAX_EDGE + 1, 1])
    found = verify(None, device=device, rung=rung, cases=[Case((spec,), (1, MAX_EDGE + 2, 3), 2)])
    assert not found.mismatches
    assert {"conv2d_forward", "conv2d_backward_input"} <= {*found.kernels}


def test_results_are_the_same_to_the_last_bit(device: EmulatedDevice, rung: str) -> None:
    network = _convolution((3, 9, 9), 5, 3)
    rng = np.random.default_rng(0)
    given = Probe(
        x=rng.standard_normal((7, 3, 9, 9), dtype=np.float32),
        grad_y=rng.standard_normal((7, 5, 7, 7), dtype=np.float32),
        parameters={
            name: rng.standard_normal(shape, dtype=np.float32)
            for name, shape in network.layers[0].parameters.items()
        },
    )
    engine = CudaEngine(network, batch_size=9, optimizer=OPTIMIZER, device=device, rung=rung)
    first, second = engine.probe("conv2d1", given), engine.probe("conv2d1", given)
    engine.close()
    assert set(first) >= {"y", "grad_x", "grad_weight", "grad_bias"}
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def _random_op(seed: int) -> Conv2dTuned:
    """An op of any window that tiles allow, on maps up to 200 x 200."""
    rng = np.random.default_rng(seed)
    kernel, stride = (np.ceil(MAX_EDGE ** rng.random(2)).astype(int) for _ in range(2))
    padding = rng.integers(0, kernel + 1)
    extent = np.maximum(rng.integers(1, 200, 2), kernel)
    channels, maps = (int(256 ** rng.random()) for _ in range(2))
    network = _convolution(
        (channels, *extent.tolist()),
        maps,
        kernel.tolist(),
        stride=stride.tolist(),
        padding=padding.tolist(),
    )
    return Conv2dTuned(network.layers)


@pytest.mark.parametrize("seed", range(40))
def test_every_tile_fits_a_block(seed: int) -> None:
    op = _random_op(seed)
    taps = prod(op.geometry.kernel)
    for geometry in (op.geometry, op.transposed):
        tile = choose_tile(geometry)
        assert tile.floats(taps) <= MAX_FLOATS
        assert 1 <= tile.threads <= 1024
        assert tile.rows % geometry.down[0] == tile.thread_columns % geometry.down[1] == 0
    weight_tile = choose_weight_tile(op.geometry)
    assert max(weight_tile.floats(op.geometry)) <= MAX_FLOATS
    assert 1 <= weight_tile.threads(op.geometry.kernel[0]) <= 1024


@pytest.mark.parametrize("seed", range(5))
def test_no_smaller_batch_needs_more_slices_than_the_plan_reserves(seed: int) -> None:
    op = _random_op(seed)
    reserved = op.workspace(80)["partial"][0][0]
    for n in range(1, 81):
        size, count = op.slices(n)
        strips = n * op.weight_tile.strip_count(op.geometry)
        assert (count - 1) * size < strips <= count * size
        assert count <= reserved
        assert count * op.weight_tile.tile_count(op.geometry) <= max(
            WANTED_BLOCKS, op.weight_tile.tile_count(op.geometry)
        )


@pytest.mark.parametrize(
    ("x_shape", "maps", "padding"), [((1, 28, 28), 6, 2), ((6, 14, 14), 16, 0)]
)
def test_a_batch_of_64_gives_lenet_nearly_a_block_for_each_multiprocessor(
    x_shape: Shape, maps: int, padding: int
) -> None:
    op = Conv2dTuned(_convolution(x_shape, maps, 5, padding=padding).layers)
    assert prod(choose_tile(op.geometry).grid(op.geometry, 64)) >= 128
    assert prod(choose_tile(op.transposed).grid(op.transposed, 64)) >= 128
    assert op.slices(64)[1] * op.weight_tile.tile_count(op.geometry) >= 128


def test_the_sums_of_slices_are_scratch_of_backward_and_counted_as_traffic(rung: str) -> None:
    network = _convolution((6, 14, 14), 16, 5)
    plan = Plan(network, rung=rung, batch_size=64, optimizer=OPTIMIZER)
    (partial,) = [tensor for tensor in plan.arena if tensor.name == "partial"]
    assert partial.category == "workspace"
    assert partial.first_step == partial.last_step == 1
    (stage,) = plan.stages
    spec, x = network.layers[0].spec, network.layers[0].batch_x(64)
    counted = stage.info.work(64)["backward"].byte_count
    assert counted == spec.backward_bytes(x, True) + 2 * partial.byte_count


def test_a_dense_layer_and_its_activation_are_one_stage_of_two_launches(
    device: EmulatedDevice, rung: str
) -> None:
    case = _dense(4, 20, 6, "tanh")
    network = Network(case.x_shape, case.specs, None, needs_grad_x=True)
    engine = CudaEngine(network, batch_size=4, optimizer=OPTIMIZER, device=device, rung=rung)
    (stage,) = engine.stages
    engine.close()
    assert stage.layers == ("dense1", "tanh1")
    verify(None, device=device, rung=rung, cases=[case])
    own = {name: count for name, count in device.launched.items() if "dense" in name}
    assert own == {
        "dense_tuned_forward": 2,
        "dense_tuned_backward": 2,
    }  # random values, then integers


def test_the_stage_of_two_layers_does_not_count_the_map_between_them() -> None:
    case = _dense(4, 20, 6, "tanh")
    layers = Network(case.x_shape, case.specs, None, needs_grad_x=True).layers
    forward = DenseActivation(layers).work(4)["forward"]
    assert forward.byte_count == 4 * (4 * 20 + 20 * 6 + 6 + 4 * 6)
    assert forward.flop_count == sum(layer.spec.forward_flops(layer.batch_x(4)) for layer in layers)


def test_every_source_has_a_fault() -> None:
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS) >= 20
    sources = {
        "conv2d_tuned.cu",
        "conv2d_tile.cuh",
        "dense_tuned.cu",
        "activation.cuh",
        "matrix_tile.cuh",
        "tile.cuh",
    }
    assert {fault["source"] for fault in FAULTS} == sources


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
def test_verify_catches(fault: dict[str, Any], rung: str) -> None:
    text = kernel_text(fault["source"])
    assert text.count(fault["find"]) == 1, f"{fault['find']!r} in {fault['source']}"
    if fault["source"] in ("dense_tuned.cu", "matrix_tile.cuh", "activation.cuh"):
        cases = [_dense(5, 31, 33), *PRODUCTS[2:]]
    else:
        cases = [_awkward()[1], _awkward()[8], *FAULT_CONVOLUTIONS]
    device = EmulatedDevice(sources={fault["source"]: text.replace(fault["find"], fault["put"])})
    try:
        found = verify(None, device=device, rung=rung, cases=cases)
    finally:
        device.close()
    assert found.mismatches, f"not caught: {fault['name']}"
