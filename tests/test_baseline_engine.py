"""The baseline engine: training, probing, memory, and what it refuses."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from reference.layers import assert_derivative
from reference.loops import conv2d, softmax_cross_entropy

from pcnn_baseline import threads
from pcnn_baseline.conv2d import Conv2d
from pcnn_baseline.engine import BaselineEngine
from pcnn_bench.clocks import HostClock
from pcnn_bench.engine import Engine, Probe, Work
from pcnn_bench.errors import DataError, UnavailableError
from pcnn_bench.layers import LOSSES, SPECS
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec

SGD = SgdSpec(learning_rate=0.05, momentum=0.9)
CLASSES = 3
LAYERS: list[dict[str, Any]] = [
    {"kind": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},
    {"kind": "tanh"},
    {"kind": "avgpool2d", "size": 2},
    {"kind": "conv2d", "out_channels": 5, "kernel": 2},
    {"kind": "maxpool2d", "size": 2, "stride": 1},
    {"kind": "relu"},
    {"kind": "flatten"},
    {"kind": "dense", "out_features": 6},
    {"kind": "sigmoid"},
    {"kind": "dense", "out_features": CLASSES},
]


def _network(
    layers: list[dict[str, Any]] = LAYERS,
    *,
    shape: tuple[int, ...] = (2, 8, 7),
    loss: str | None = "softmax_cross_entropy",
    needs_grad_x: bool = False,
) -> Network:
    specs = [SPECS[layer["kind"]].model_validate(layer) for layer in layers]
    return Network(
        shape, specs, None if loss is None else LOSSES[loss](kind=loss), needs_grad_x=needs_grad_x
    )


def _engine(
    network: Network | None = None,
    *,
    batch_size: int = 8,
    optimizer: SgdSpec = SGD,
    dtype: npt.DTypeLike = np.float32,
) -> BaselineEngine:
    network = network or _network()
    engine = BaselineEngine(network, batch_size=batch_size, optimizer=optimizer, dtype=dtype)
    engine.load_parameters(network.initial_parameters(0))
    return engine


def _batch(count: int, seed: int = 0, shape: tuple[int, ...] = (2, 8, 7)) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape), dtype=np.float32)
    return x, rng.integers(0, CLASSES, count).astype(np.int32)


def _step(engine: Engine, x: Any, labels: Any) -> Any:
    engine.set_batch(x, labels)
    engine.step()
    return engine.take_losses()


def _assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


# --- training ---


@pytest.mark.parametrize("loss", LOSSES)
def test_one_step_moves_every_parameter_against_its_gradient(loss: str) -> None:
    engine = _engine(_network(loss=loss), optimizer=SgdSpec(learning_rate=1), dtype=np.float64)
    x, labels = _batch(5)
    before = engine.parameters()
    _step(engine, x, labels)
    gradients = {name: before[name] - after for name, after in engine.parameters().items()}
    rng = np.random.default_rng(1)
    for name, gradient in gradients.items():
        moved = {key: value.copy() for key, value in before.items()}

        def mean_loss(moved: dict[str, Any] = moved) -> float:
            engine.load_parameters(moved)
            return float(engine.evaluate(x, labels)[0].mean())

        assert_derivative(mean_loss, moved[name], gradient, rng)


def test_twenty_steps_reduce_the_loss() -> None:
    without_sigmoid = [
        layer for layer in LAYERS if layer["kind"] != "sigmoid"
    ]  # which learns slowly
    engine = _engine(_network(without_sigmoid))
    x, labels = _batch(8)
    x += labels[:, None, None, None]  # brightness tells the class
    losses = [_step(engine, x, labels).mean() for _ in range(20)]
    assert losses[0] == pytest.approx(np.log(CLASSES), rel=0.2)  # knows nothing yet
    assert losses[-1] < 0.5 * losses[0]


def test_three_steps_equal_pytorch() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 2),
        nn.MaxPool2d(2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(10, 6), nn.Sigmoid(), nn.Linear(6, 3),
    ).double()  # fmt: skip
    sgd = SgdSpec(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    engine = _engine(optimizer=sgd, dtype=np.float64)
    with torch.no_grad():
        for tensor, value in zip(model.parameters(), engine.parameters().values(), strict=True):
            tensor.copy_(torch.tensor(value))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for seed in range(3):
        x, labels = _batch(8 - seed, seed)
        optimizer.zero_grad()
        scores = model(torch.tensor(x, dtype=torch.double))
        mean = nn.functional.cross_entropy(scores, torch.tensor(labels, dtype=torch.long))
        mean.backward()
        optimizer.step()
        assert _step(engine, x, labels).mean() == pytest.approx(mean.item(), rel=1e-12)
    for tensor, value in zip(model.parameters(), engine.parameters().values(), strict=True):
        np.testing.assert_allclose(value, tensor.detach().numpy(), rtol=1e-11, atol=1e-13)


def test_losses_come_out_once_in_training_order() -> None:
    engine = _engine()
    engine.set_learning_rate(0)
    first, second = _batch(8, 1), _batch(3, 2)
    alone = [_step(engine, *batch) for batch in (first, second)]
    for batch in (first, second):
        engine.set_batch(*batch)
        engine.step()
    np.testing.assert_array_equal(engine.take_losses(), np.concatenate(alone))
    assert engine.take_losses().shape == (0,)


@pytest.mark.parametrize(("count", "batch_size"), [(65, 64), (3, 64)])
def test_last_partial_batch_is_trained_and_sees_nothing_stale(count: int, batch_size: int) -> None:
    x, labels = _batch(count)
    used = _engine(batch_size=batch_size)
    for start in range(0, count, batch_size):
        batch = x[start : start + batch_size], labels[start : start + batch_size]
        fresh = _engine(batch_size=len(batch[1]))
        fresh.load_parameters(used.parameters())
        used.load_parameters(fresh.parameters())  # which forgets the velocity, as fresh has none
        losses = _step(used, *batch)
        assert losses.shape == batch[1].shape
        np.testing.assert_array_equal(losses, _step(fresh, *batch))
        _assert_same(used.parameters(), fresh.parameters())


def test_learning_rate_zero_leaves_every_bit() -> None:
    engine = _engine()
    _step(engine, *_batch(8))
    before = engine.parameters()
    engine.set_learning_rate(0)
    _step(engine, *_batch(8, 1))
    _assert_same(engine.parameters(), before)
    engine.set_learning_rate(0.1)
    _step(engine, *_batch(8, 1))
    assert all((value != before[name]).any() for name, value in engine.parameters().items())


def test_loading_parameters_forgets_the_velocity() -> None:
    used, fresh = _engine(), _engine()
    _step(used, *_batch(8, 1))
    used.load_parameters(fresh.parameters())
    for engine in (used, fresh):
        _step(engine, *_batch(8, 2))
    _assert_same(used.parameters(), fresh.parameters())


def test_parameters_are_copies_both_ways() -> None:
    engine = _engine()
    given = engine.parameters()
    engine.load_parameters(given)
    for value in given.values():
        value.fill(np.nan)
    assert all(np.isfinite(value).all() for value in engine.parameters().values())


def test_evaluation_leaves_batch_and_parameters_alone() -> None:
    used, fresh = _engine(), _engine()
    x, labels = _batch(8)
    for engine in (used, fresh):
        engine.set_batch(x, labels)
    losses, predicted = used.evaluate(*_batch(5, 9))
    kept = losses.copy()
    for engine in (used, fresh):
        engine.step()
    _assert_same(used.parameters(), fresh.parameters())
    np.testing.assert_array_equal(used.take_losses(), fresh.take_losses())
    np.testing.assert_array_equal(losses, kept)
    assert predicted.shape == (5,)
    assert predicted.dtype == np.int32


def test_inputs_of_other_types_and_layouts_are_converted() -> None:
    x, labels = _batch(8)
    expected = _step(_engine(), x, labels)
    fortran = np.asfortranarray(x.astype(np.float64))
    sliced = np.repeat(x, 2, axis=3)[..., ::2]
    for other in (fortran, sliced):
        engine = _engine()
        losses = _step(engine, other, labels.astype(np.int64))
        np.testing.assert_array_equal(losses, expected)
        assert losses.dtype == np.float32
        np.testing.assert_array_equal(
            _engine().evaluate(other, labels)[0], _engine().evaluate(x, labels)[0]
        )


def test_a_diverging_run_shows_in_its_losses_without_a_warning() -> None:
    layers = [LAYERS[0], {"kind": "relu"}, {"kind": "flatten"}, LAYERS[-1]]
    engine = _engine(_network(layers))
    engine.set_learning_rate(1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [_step(engine, *_batch(8, seed)) for seed in range(4)]
        engine.evaluate(*_batch(8))
    assert not np.isfinite(losses[-1]).all()


# --- stages and clock ---


def test_every_layer_is_a_stage_and_what_needs_no_backward_has_none() -> None:
    layers: list[dict[str, Any]] = [{"kind": "tanh"}, *LAYERS]
    engine = _engine(_network(layers))
    assert [stage.name for stage in engine.stages] == [
        "tanh1", "conv2d1", "tanh2", "avgpool2d1", "conv2d2", "maxpool2d1", "relu1", "flatten1",
        "dense1", "sigmoid1", "dense2", "loss",
    ]  # fmt: skip
    assert all(stage.layers == (stage.name,) for stage in engine.stages)
    clock = HostClock()
    engine.set_batch(*_batch(8))
    engine.step(clock)
    timed = [(stage, phase) for stage, phase, _ in clock.drain()]
    planned = {(stage.name, phase) for stage in engine.stages for phase in stage.work(8)}
    assert set(timed) == planned
    assert len(timed) == len(planned)
    assert ("tanh1", "backward") not in planned
    assert ("conv2d1", "backward") in planned
    assert {stage for stage, phase in planned if phase == "update"} == {
        "conv2d1", "conv2d2", "dense1", "dense2",
    }  # fmt: skip


def test_work_is_what_the_specs_count() -> None:
    network = _network()
    stage = _engine(network).stages[0]
    spec, x = network.layers[0].spec, (8, 2, 8, 7)
    assert stage.work(8) == {
        "forward": Work(spec.forward_flops(x), spec.forward_bytes(x)),
        "backward": Work(spec.backward_flops(x, False), spec.backward_bytes(x, False)),
        "update": Work(SGD.update_flops(76), SGD.update_bytes(76)),
    }


def test_first_convolution_computes_no_input_gradient() -> None:
    engine = _engine()
    x, _ = _batch(4)
    grad_y = np.ones((4, 4, 8, 7), np.float32)
    results = engine.probe("conv2d1", Probe(x, grad_y))
    assert results.keys() == {"y", "grad_weight", "grad_bias", "weight", "bias"}
    engine = _engine(_network(LAYERS[:1], loss=None, needs_grad_x=True))
    assert "grad_x" in engine.probe("conv2d1", Probe(x, grad_y))


def test_no_clock_is_given_for_more_than_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine()
    with threads.one_blas_thread():
        assert engine.make_clock().kind == "host"
    two = [{"internal_api": "openblas", "version": "0.3", "num_threads": 2}]
    monkeypatch.setattr(threads, "threadpool_info", lambda: two)
    with pytest.raises(UnavailableError, match="2 threads"):
        engine.make_clock()


# --- probe ---


def test_probe_equals_scalar_loops_and_leaves_the_given_parameters() -> None:
    rng = np.random.default_rng(0)
    engine = _engine(dtype=np.float64)
    spec = engine.network.layers[3].spec
    assert isinstance(spec, Conv2dSpec)
    x: Any = rng.standard_normal((3, 4, 4, 3))
    grad_y: Any = rng.standard_normal((3, 5, 3, 2))
    given: dict[str, Any] = {
        "weight": rng.standard_normal((5, 4, 2, 2)),
        "bias": rng.standard_normal(5),
    }
    actual = engine.probe("conv2d2", Probe(x, grad_y, parameters=given))
    expected = conv2d(spec, x, given, grad_y)
    for name, value in given.items():
        # two updates with one gradient: v = g, then v = momentum g + g
        moved = SGD.learning_rate * (2 + SGD.momentum) * expected[f"grad_{name}"]
        expected[name] = value - moved
        np.testing.assert_array_equal(engine.parameters()[f"conv2d2.{name}"], value)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-12, atol=1e-12, err_msg=name)
        assert actual[name].flags.c_contiguous


def test_probe_of_the_loss_equals_scalar_loops() -> None:
    x: Any = np.random.default_rng(0).standard_normal((5, CLASSES))
    labels = _batch(5)[1]
    actual = _engine(dtype=np.float64).probe("loss", Probe(x, labels=labels))
    expected = softmax_cross_entropy(x, labels) | {"predictions": x.argmax(axis=1)}
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-13, atol=1e-14)


def test_probe_without_grad_y_runs_forward_alone() -> None:
    x, _ = _batch(4)
    assert _engine().probe("conv2d1", Probe(x)).keys() == {"y"}


@pytest.mark.parametrize("is_used", [False, True])
def test_what_a_stage_does_not_write_is_nan(is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _engine(_network(LAYERS[:1], loss=None, needs_grad_x=True))
    x, _ = _batch(8)
    grad_y = np.ones((8, 4, 8, 7), np.float32)
    if is_used:
        engine.probe("conv2d1", Probe(x, grad_y))

    def lazy_forward(self: Conv2d, x: Any) -> Any:
        n, k, p, q = self.layer.batch_y(len(x))
        return self.workspace.array("y", (p, k, q, n)).transpose(3, 1, 0, 2)

    monkeypatch.setattr(Conv2d, "forward", lazy_forward)
    monkeypatch.setattr(Conv2d, "backward", lambda self, grad_y: None)
    results = engine.probe("conv2d1", Probe(x, grad_y))
    assert all(np.isnan(results[name]).all() for name in ("y", "grad_weight", "grad_bias"))


@pytest.mark.parametrize("loss", [None, "softmax_cross_entropy"])
def test_a_network_without_layers_or_loss_can_be_built(loss: str | None) -> None:
    network = _network([], shape=(CLASSES,), loss=loss, needs_grad_x=True)
    engine = _engine(network)
    assert [stage.name for stage in engine.stages] == ([] if loss is None else ["loss"])
    if loss is not None:
        x, labels = _batch(4, shape=(CLASSES,))
        assert engine.probe("loss", Probe(x, labels=labels)).keys() == {
            "losses",
            "predictions",
            "grad_x",
        }


# --- memory ---


def test_memory_names_every_array_and_a_peak_no_smaller_than_their_sum() -> None:
    network = _network()
    rows = _engine(network).memory()
    assert len({(row.category, row.stage, row.tensor) for row in rows}) == len(rows)
    by_category: dict[str, int] = {}
    for row in rows:
        by_category[row.category] = by_category.get(row.category, 0) + row.byte_count
    parameter_bytes = 4 * network.parameter_count
    for category in ("parameters", "gradients", "optimizer"):
        assert by_category[category] == parameter_bytes
    assert by_category["input"] == 8 * 2 * 8 * 7 * 4 + 8 * 4
    peak = by_category.pop("peak")
    held = sum(by_category.values())
    assert held <= peak < 2 * held + 200_000  # Python's own objects beside these small arrays


def test_nothing_is_freed_before_the_engine_is() -> None:
    rows = _engine().memory()
    assert {(row.first_step, row.last_step, row.offset) for row in rows} == {(None, None, None)}
    assert [row.stage for row in rows if row.category == "peak"] == ["*"]


def test_activations_are_what_backward_reads() -> None:
    kept = {
        (row.stage, row.tensor): row.byte_count
        for row in _engine().memory()
        if row.category == "activations"
    }
    assert kept == {
        ("conv2d1", "unrolled"): 4 * 10 * 2 * 3 * 7 * 8,
        ("tanh1", "y"): 4 * 8 * 4 * 8 * 7,
        ("conv2d2", "unrolled"): 4 * 4 * 4 * 2 * 2 * 8,
        ("maxpool2d1", "position"): 4 * 8 * 5 * 2 * 1,
        ("relu1", "y"): 4 * 8 * 5 * 2 * 1,
        ("flatten1", "y"): 4 * 8 * 10,
        ("sigmoid1", "y"): 4 * 8 * 6,
        ("loss", "probability"): 4 * 8 * CLASSES,
    }


def test_no_array_is_added_by_training() -> None:
    engine = _engine()

    before = engine.memory()
    for count in (8, 3, 8):
        _step(engine, *_batch(count))
        engine.evaluate(*_batch(count))
    assert engine.memory() == before


# --- what it refuses ---


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    x, labels = _batch(4)
    labels[2] = label
    for use in (_engine().set_batch, _engine().evaluate):
        with pytest.raises(DataError, match=r"labels: found .* 3 outputs"):
            use(x, labels)


@pytest.mark.parametrize("count", [0, 9])
def test_an_empty_or_too_large_batch_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 8"):
        _engine().set_batch(*_batch(count))


def test_labels_of_another_number_are_refused() -> None:
    x, labels = _batch(4)
    with pytest.raises(ValueError, match="3 labels"):
        _engine().set_batch(x, labels[:3])


def test_a_network_without_a_loss_is_not_trained() -> None:
    engine = _engine(_network(LAYERS[:1], loss=None))
    x, labels = _batch(4)
    engine.set_batch(x, labels)
    with pytest.raises(ValueError, match="without a loss"):
        engine.step()
    with pytest.raises(ValueError, match="without a loss"):
        engine.evaluate(x, labels)


def test_closing_frees_every_array() -> None:
    tracemalloc.start()
    try:
        engine = _engine(batch_size=64)
        held, _ = tracemalloc.get_traced_memory()
        engine.close()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 0.2 * held
    finally:
        tracemalloc.stop()
