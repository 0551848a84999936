"""A training set kept on the device: the same batches, the same bits, in any order, the partial batch included."""

from collections.abc import Iterator

import numpy as np
import pytest

from pcnn_bench import engines
from pcnn_bench.engine import Probe, ResidentData
from pcnn_bench.errors import DataError
from pcnn_bench.layers import LayerSpec
from pcnn_bench.layers.avgpool2d import AvgPool2dSpec
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.layers.tanh import TanhSpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import DeviceArray
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.load_batch import LoadBatch

RNG = np.random.default_rng(11)
COUNT, BATCH, SHAPE = 13, 5, (3, 7, 4)
DATA = ResidentData(
    images=RNG.integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8),
    labels=RNG.integers(0, 4, COUNT).astype(np.int32),
    values=RNG.standard_normal((SHAPE[0], 256), dtype=np.float32),
)
ORDER = RNG.permutation(COUNT)


def _expected(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    channels = np.arange(SHAPE[0])[:, None, None]
    return DATA.values[channels, DATA.images[indices]], DATA.labels[indices]


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.checker)])
def device(request: pytest.FixtureRequest) -> Iterator[EmulatedDevice]:
    device = EmulatedDevice(checker=request.param)
    yield device
    device.close()


@pytest.fixture
def loader(device: EmulatedDevice) -> tuple[LoadBatch, DeviceArray, DeviceArray]:
    x, label = device.empty((BATCH, *SHAPE)), device.empty((BATCH,), "int32")
    first = device.empty((1,), "int32")
    device.fill(first, 0)
    loader = LoadBatch(device, x, label, first)
    loader.keep(DATA)
    return loader, x, label


def test_every_batch_of_every_round_is_what_the_order_says(
    device: EmulatedDevice, loader: tuple[LoadBatch, DeviceArray, DeviceArray]
) -> None:
    source, x, label = loader
    source.set_order(ORDER)
    for _ in range(2):  # after the last batch it begins again
        for first in range(0, COUNT, BATCH):
            device.fill(x, 0xFF)
            device.fill(label, 0xFF)
            n = source.next_count()
            for launch in [*source.gather(n), *source.advance(n)]:
                launch()
            source.take(n)
            images, labels = _expected(ORDER[first : first + BATCH])
            assert n == len(images)
            np.testing.assert_array_equal(device.copy_out(x)[:n], images)
            np.testing.assert_array_equal(device.copy_out(label)[:n], labels)
            assert np.isnan(device.copy_out(x)[n:]).all()
            assert (device.copy_out(label)[n:] == -1).all()


@pytest.mark.parametrize("order", [[], [COUNT], [-1, 0], [*range(COUNT), 0]])
def test_an_order_that_leaves_the_training_set_is_refused(
    loader: tuple[LoadBatch, DeviceArray, DeviceArray], order: list[int]
) -> None:
    with pytest.raises(DataError, match="order: 1 to 13 indices from 0 to 12"):
        loader[0].set_order(np.array(order, np.int64))


def test_training_from_the_device_equals_training_from_the_host_bit_for_bit() -> None:
    network = Network(SHAPE, [FlattenSpec(), DenseSpec(out_features=4)], SoftmaxCrossEntropySpec())
    runs = []
    for keeps_data in (False, True):
        device = EmulatedDevice()
        engine = CudaEngine(
            network, batch_size=BATCH, optimizer=SgdSpec(learning_rate=0.1, momentum=0.9),
            device=device, rung="naive", keeps_data=keeps_data,
        )  # fmt: skip
        if engine.resident:
            engine.resident.keep(DATA)
            engine.resident.set_order(ORDER)
        for first in range(0, COUNT, BATCH):
            if not engine.resident:
                engine.set_batch(*_expected(ORDER[first : first + BATCH]))
            engine.step()
        assert engine.resident is None or {row.category for row in engine.memory()} >= {"dataset"}
        runs.append((engine.take_losses(), engine.parameters()))
        engine.close()
        assert device.allocated_bytes == 0
        device.close()
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert len(runs[0][0]) == COUNT
    for name, value in runs[0][1].items():
        np.testing.assert_array_equal(value, runs[1][1][name])


def _network(*after: LayerSpec) -> Network:
    head = [FlattenSpec(), DenseSpec(out_features=5), TanhSpec(), DenseSpec(out_features=4)]
    specs = [Conv2dSpec(out_channels=3, kernel=(3, 2)), *after, *head]
    return Network(SHAPE, specs, SoftmaxCrossEntropySpec())


POOL = AvgPool2dSpec(size=(2, 2), stride=(2, 2))


@pytest.mark.parametrize("after", [(TanhSpec(), POOL), (POOL, TanhSpec())], ids=["tile", "folded"])
@pytest.mark.parametrize("rung", engines.rungs())
def test_every_rung_trains_alike_over_epochs_with_a_partial_batch(
    rung: str, after: tuple[LayerSpec, ...]
) -> None:
    network = _network(*after)
    optimizer = SgdSpec(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    baseline = engines.make_baseline(
        network, batch_size=BATCH, optimizer=optimizer, dtype=np.float64
    )
    device = EmulatedDevice()
    engine = engines.make_cuda(
        network, batch_size=BATCH, optimizer=optimizer, device=device, rung=rung
    )
    start = network.initial_parameters(seed=2)
    baseline.load_parameters(start)
    engine.load_parameters(start)
    if engine.resident:
        engine.resident.keep(DATA)
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(COUNT)
        if engine.resident:
            engine.resident.set_order(order)
        for first in range(0, COUNT, BATCH):
            batch = _expected(order[first : first + BATCH])
            baseline.set_batch(*batch)
            baseline.step()
            if not engine.resident:
                engine.set_batch(*batch)
            engine.step()
        losses, expected = engine.take_losses(), baseline.take_losses()
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        found, wanted = (each.evaluate(*_expected(order[:4])) for each in (engine, baseline))
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
        np.testing.assert_array_equal(found[1], wanted[1])
    for name, value in baseline.parameters().items():
        np.testing.assert_allclose(engine.parameters()[name], value, rtol=1e-3, atol=1e-5)
    engine.close()
    assert device.allocated_bytes == 0
    device.close()


@pytest.mark.parametrize("rung", ["tuned", "graph"])
def test_a_check_between_steps_leaves_their_losses_where_they_are(rung: str) -> None:
    network = _network(TanhSpec(), POOL)
    start = network.initial_parameters(seed=2)
    given = Probe(
        x=np.zeros((2, *SHAPE), np.float32),
        parameters={name: start[f"conv2d1.{name}"] for name in ("weight", "bias")},
    )
    device = EmulatedDevice()
    losses = []
    for is_checked in (False, True):
        engine = engines.make_cuda(
            network, batch_size=BATCH, optimizer=SgdSpec(learning_rate=0.1), device=device, rung=rung
        )  # fmt: skip
        assert engine.resident is not None
        engine.resident.keep(DATA)
        for order in (ORDER, ORDER[::-1]):
            engine.load_parameters(start)
            engine.resident.set_order(order)
            engine.step()
            if is_checked:
                engine.resident.next_batch()
                engine.probe(engine.stages[0].name, given)
        losses.append(engine.take_losses())
        engine.close()
    device.close()
    assert len(losses[0]) == 2 * BATCH
    np.testing.assert_array_equal(losses[0], losses[1])
