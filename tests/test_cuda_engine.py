"""The CUDA engine on the emulated device: a whole training step against the baseline, and its bookkeeping."""

from collections.abc import Iterator

import numpy as np
import pytest

from pcnn_bench import engines
from pcnn_bench.engine import Engine, Probe
from pcnn_bench.errors import DeviceMemoryError
from pcnn_bench.layers import LOSSES, SPECS, LayerSpec
from pcnn_bench.network import Floats, Labels, Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.conv2d import Conv2d
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine

OPTIMIZER = SgdSpec(learning_rate=0.05, momentum=0.9, weight_decay=0.01)
BATCH = 8


def _spec(kind: str, **arguments: object) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _network(loss: str = "softmax_cross_entropy") -> Network:
    specs = [
        _spec("conv2d", out_channels=4, kernel=3, padding=1), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("conv2d", out_channels=5, kernel=[3, 2], stride=[2, 1]), _spec("relu"),
        _spec("maxpool2d", size=2, stride=1), _spec("flatten"),
        _spec("dense", out_features=9), _spec("sigmoid"), _spec("dense", out_features=3),
    ]  # fmt: skip
    return Network((2, 13, 12), specs, LOSSES[loss].model_validate({"kind": loss}))


def _data(count: int) -> tuple[Floats, Labels]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((count, 2, 13, 12), dtype=np.float32)
    return x, rng.integers(0, 3, count).astype(np.int32)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _cuda(network: Network, device: EmulatedDevice) -> CudaEngine:
    return CudaEngine(network, batch_size=BATCH, optimizer=OPTIMIZER, device=device, rung="naive")


def _train(engine: Engine, x: Floats, labels: Labels, epochs: int = 1) -> Floats:
    for _ in range(epochs):
        for first in range(0, len(x), engine.batch_size):
            batch = slice(first, first + engine.batch_size)
            engine.set_batch(x[batch], labels[batch])
            engine.step()
    return engine.take_losses()


def test_a_layer_may_take_the_loss_along_to_a_higher_rung(device: EmulatedDevice) -> None:
    specs = [_spec("flatten"), _spec("dense", out_features=3, cuda={"rung": "graph"})]
    loss = "softmax_cross_entropy"
    network = Network((2, 13, 12), specs, LOSSES[loss](kind=loss))
    x, labels = _data(2 * BATCH)
    baseline = engines.make_baseline(
        network, batch_size=BATCH, optimizer=OPTIMIZER, dtype=np.float64
    )
    cuda = _cuda(network, device)
    assert [stage.op for stage in cuda.stages] == ["flatten", "dense_head"]
    for engine in (baseline, cuda):
        engine.load_parameters(network.initial_parameters(seed=1))
    np.testing.assert_allclose(_train(cuda, x, labels), _train(baseline, x, labels), rtol=1e-4)
    found, expected = (each.evaluate(x[:5], labels[:5])[0] for each in (cuda, baseline))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    cuda.close()


def test_all_that_an_engine_compiles_counts_as_its_own(device: EmulatedDevice) -> None:
    cuda = CudaEngine(
        _network(), batch_size=BATCH, optimizer=OPTIMIZER, device=device, rung="tuned"
    )
    assert cuda.compile_s > 0
    assert device.take_compile_s() == 0
    cuda.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_training_agrees_with_the_float64_baseline(device: EmulatedDevice, loss: str) -> None:
    network = _network(loss)
    x, labels = _data(2 * BATCH + 3)  # the last batch is partial
    baseline = engines.make_baseline(
        network, batch_size=BATCH, optimizer=OPTIMIZER, dtype=np.float64
    )
    cuda = _cuda(network, device)
    start = network.initial_parameters(seed=1)
    baseline.load_parameters(start)
    cuda.load_parameters(start)
    expected, actual = _train(baseline, x, labels, 3), _train(cuda, x, labels, 3)
    assert actual.shape == (3 * len(x),)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    for name, value in baseline.parameters().items():
        np.testing.assert_allclose(cuda.parameters()[name], value, rtol=1e-3, atol=1e-5)
    expected_losses, expected_classes = baseline.evaluate(x[:5], labels[:5])
    losses, classes = cuda.evaluate(x[:5], labels[:5])
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    np.testing.assert_array_equal(classes, expected_classes)


def test_evaluating_between_steps_changes_neither_training_nor_its_losses(
    device: EmulatedDevice,
) -> None:
    network = _network()
    x, labels = _data(2 * BATCH)
    runs = []
    for evaluates in (False, True):
        engine = _cuda(network, device)
        engine.load_parameters(network.initial_parameters(seed=1))
        for first in (0, BATCH):
            engine.set_batch(x[first : first + BATCH], labels[first : first + BATCH])
            engine.step()
            if evaluates:
                engine.evaluate(x[:3], labels[:3])
        runs.append((engine.take_losses(), engine.parameters()))
        engine.close()
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    for name, value in runs[0][1].items():
        np.testing.assert_array_equal(value, runs[1][1][name])


def test_a_full_history_is_fetched_and_nothing_is_lost(device: EmulatedDevice) -> None:
    network = _network()
    x, labels = _data(BATCH)
    engine = _cuda(network, device)
    engine._losses = engine._losses.view((3 * BATCH,))
    losses = _train(engine, np.concatenate([x] * 7), np.concatenate([labels] * 7))
    assert losses.shape == (7 * BATCH,)
    assert np.isfinite(losses).all()
    assert engine.take_losses().size == 0


def test_learning_rate_zero_leaves_the_parameters_bit_for_bit(device: EmulatedDevice) -> None:
    engine = _cuda(_network(), device)
    x, labels = _data(BATCH)
    before = engine.parameters()
    engine.set_learning_rate(0.0)
    _train(engine, x, labels)
    for name, value in engine.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_the_clock_covers_every_phase_of_every_stage(device: EmulatedDevice) -> None:
    engine = _cuda(_network(), device)
    x, labels = _data(BATCH)
    engine.set_batch(x, labels)
    clock = engine.make_clock()
    engine.step(clock)
    spans = clock.drain()
    assert clock.kind == "host"
    assert all(time_us > 0 for _, _, time_us in spans)
    timed = {(stage, phase) for stage, phase, _ in spans}
    planned = {(stage.name, phase) for stage in engine.stages for phase in stage.work(BATCH)}
    assert timed == planned
    assert clock.drain() == []


def test_memory_rows_add_up_to_what_is_allocated(device: EmulatedDevice) -> None:
    before = device.allocated_bytes
    engine = _cuda(_network(), device)
    rows = engine.memory()
    peak = next(row for row in rows if row.category == "peak")
    assert (peak.stage, peak.first_step, peak.last_step) == ("*", None, None)
    assert peak.byte_count == device.allocated_bytes - before
    assert (
        max(row.offset + row.byte_count for row in rows if row.offset is not None)
        <= peak.byte_count
    )
    parameter_bytes = sum(row.byte_count for row in rows if row.category == "parameters")
    assert parameter_bytes == 4 * engine.network.parameter_count
    engine.close()
    assert device.allocated_bytes == before


def test_too_large_a_batch_names_the_layer_and_the_batch_that_fits(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda: (1 << 20, 2 << 20))
    with pytest.raises(
        DeviceMemoryError, match=r"batch_size 4000 needs .* largest batch_size that fits is (\d+)"
    ) as error:
        CudaEngine(_network(), batch_size=4000, optimizer=OPTIMIZER, device=device, rung="naive")
    fits = int(str(error.value).rsplit(" ", 1)[1])
    CudaEngine(
        _network(), batch_size=fits, optimizer=OPTIMIZER, device=device, rung="naive"
    ).close()
    assert "layer conv2d1" in str(error.value)
    with pytest.raises(DeviceMemoryError):
        CudaEngine(
            _network(), batch_size=fits + 1, optimizer=OPTIMIZER, device=device, rung="naive"
        )


@pytest.mark.parametrize("seed", range(20))
def test_a_convolution_counts_only_products_on_the_map(seed: int) -> None:
    rng = np.random.default_rng(seed)
    h, w, r, s = (int(value) for value in rng.integers(1, 6, 4))
    padding = [int(rng.integers(r, r + 3)), int(rng.integers(s, s + 3))]  # some taps meet nothing
    stride = [int(value) for value in rng.integers(1, 4, 2)]
    spec = _spec("conv2d", out_channels=3, kernel=[r, s], stride=stride, padding=padding)
    network = Network((2, h, w), [spec], None, needs_grad_x=True)
    (layer,) = network.layers
    ones = np.ones((2 * padding[0] + h, 2 * padding[1] + w)) * 0
    ones[padding[0] : padding[0] + h, padding[1] : padding[1] + w] = 1
    windows = np.lib.stride_tricks.sliding_window_view(ones, (r, s))[:: stride[0], :: stride[1]]
    products = int(windows.sum()) * 2 * 3 * 5  # channels, maps, images
    work = Conv2d([layer]).work(5)
    assert work["forward"].flop_count == 2 * products
    bias = 5 * int(np.prod(layer.y_shape))
    assert work["backward"].flop_count == 4 * products + bias


def _probe_against_baseline(
    spec: LayerSpec, x_shape: tuple[int, ...], count: int, rung: str, device: EmulatedDevice
) -> None:
    """Forward of one layer on small integers, on which both engines are exact."""
    network = Network(x_shape, [spec], None, needs_grad_x=True)
    rng = np.random.default_rng(3)

    def integers(shape: tuple[int, ...]) -> Floats:
        return rng.integers(-3, 4, shape).astype(np.float32)

    (layer,) = network.layers
    given = Probe(
        integers((count, *x_shape)),
        parameters={name: integers(shape) for name, shape in layer.parameters.items()},
    )
    cuda = CudaEngine(network, batch_size=count, optimizer=OPTIMIZER, device=device, rung=rung)
    baseline = engines.make_baseline(network, batch_size=count, optimizer=OPTIMIZER)
    expected = baseline.probe(layer.name, given)["y"]
    np.testing.assert_array_equal(cuda.probe(layer.name, given)["y"], expected)
    assert len(np.unique(expected)) > 10
    cuda.close()


@pytest.mark.parametrize("rung", engines.rungs())
def test_more_images_than_a_grid_has_rows_are_all_computed(
    device: EmulatedDevice, rung: str
) -> None:
    # y and z of a grid end at 65,535
    _probe_against_baseline(
        _spec("conv2d", out_channels=2, kernel=[2, 3]), (3, 3, 4), 70_000, rung, device
    )
    _probe_against_baseline(_spec("dense", out_features=3), (5,), 70_000, rung, device)


@pytest.mark.parametrize("rung", engines.rungs())
def test_more_outputs_than_a_block_has_threads_are_all_computed(
    device: EmulatedDevice, rung: str
) -> None:
    _probe_against_baseline(_spec("dense", out_features=2048), (7,), 3, rung, device)
    _probe_against_baseline(
        _spec("conv2d", out_channels=2048, kernel=1), (2, 1, 2), 3, rung, device
    )


@pytest.mark.parametrize("rung", engines.rungs())
def test_large_scores_overflow_neither_loss_nor_gradient(device: EmulatedDevice, rung: str) -> None:
    kind = "softmax_cross_entropy"
    network = Network((3,), [], LOSSES[kind].model_validate({"kind": kind}), needs_grad_x=True)
    engine = CudaEngine(network, batch_size=3, optimizer=OPTIMIZER, device=device, rung=rung)
    scores = np.array([[1000.0, 0.0, -1000.0]] * 3, np.float32)
    found = engine.probe("loss", Probe(scores, labels=np.arange(3, dtype=np.int32)))
    np.testing.assert_array_equal(found["losses"], [0, 1000, 2000])
    expected = np.array([[0, 0, 0], [1, -1, 0], [1, 0, -1]]) / 3
    np.testing.assert_allclose(found["grad_x"], expected, rtol=1e-6)
