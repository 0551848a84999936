"""The update of all layers at once, which completes gradients that backward left as parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import DeviceArray
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.launch import kernel_text
from pcnn_cuda.op import PartialSums
from pcnn_cuda.sgd import GRAIN_FLOATS, MAX_SLICES, SPLITS_OF_A_SLICE, Sgd, join_table

COUNT = 1000
Array = npt.NDArray[np.floating]
SPEC = SgdSpec(learning_rate=0.1, momentum=0.9, weight_decay=0.01)


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def device(request: pytest.FixtureRequest) -> Iterator[EmulatedDevice]:
    device = EmulatedDevice(checker=request.param)
    yield device
    device.close()


MANY = [(10, 33, 100), (64, 1, MAX_SLICES * SPLITS_OF_A_SLICE + 3), (700, 300, 33)]
Ranges = list[tuple[int, int, int]]
"""(first parameter, parameters, parts) of each gradient that lies in parts."""


@pytest.mark.checker
@pytest.mark.parametrize(
    "ranges",
    [[(0, 7, 1)], [(3, 300, 5), (500, 41, 9), (900, 100, 17)], MANY],
    ids=["one part", "few parts", "many parts"],
)
def test_parts_are_summed_and_everything_moves(device: EmulatedDevice, ranges: Ranges) -> None:
    for name, (found, expected) in update(device, ranges).items():
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(
    ("find", "put"),
    [
        ("split = first + k * slices", "split = first + k * (slices + 1)"),
        ("offset >= width; offset /= 2) sum +=", "offset > width; offset /= 2) sum +="),
        ("sums[group * width + place] = sum", "sums[place] = sum"),
        ("int other = 1; other < UPDATE_THREADS / group_size", "int other = 2; other < UPDATE_THREADS / group_size"),
        ("is_plain = false;", "is_plain = true;"),
        ("const int i = join[FIRST] + element;", "const int i = element;"),
        ("    grad[i] = sum;\n", ""),
        ("old.learning_rate * moved", "moved"),
    ],
)  # fmt: skip
def test_a_fault_shows(find: str, put: str) -> None:
    text = kernel_text("sgd.cu")
    assert text.count(find) == 1
    device = EmulatedDevice(sources={"sgd.cu": text.replace(find, put)})
    try:
        pairs = update(device, MANY).values()
    finally:
        device.close()
    assert not all(np.allclose(found, expected, rtol=0, atol=2e-4) for found, expected in pairs)


def update(device: EmulatedDevice, ranges: Ranges) -> dict[str, tuple[Array, Array]]:
    """What a joined update makes of random numbers, and what it should; gradient, velocity and parameters."""
    rng = np.random.default_rng(1)
    draw = {
        name: rng.standard_normal(COUNT).astype(np.float32)
        for name in ("parameter", "grad", "velocity")
    }
    arrays = {name: device.empty((COUNT,)) for name in draw}
    rate = device.empty((1,))
    device.copy_in(rate, np.array([SPEC.learning_rate], np.float32))
    places, end = [], GRAIN_FLOATS
    for _, count, parts in ranges:
        places.append(end)
        end += -(-count * parts // GRAIN_FLOATS) * GRAIN_FLOATS
    memory = device.empty((end,))
    device.fill(memory, 0xFF)
    expected_grad = draw["grad"].astype(np.float64)
    sums = []
    for (first, count, parts), place in zip(ranges, places, strict=True):
        partials = rng.standard_normal((parts, count)).astype(np.float32)
        expected_grad[first : first + count] = partials.astype(np.float64).sum(axis=0)
        draw["grad"][first : first + count] = np.nan  # nothing may read what the parts make up
        view = memory.view((parts, count), first=place)
        device.copy_in(view, partials)
        sums.append(PartialSums(view, parts, arrays["grad"].view((count,), first=first)))
    for name, values in draw.items():
        device.copy_in(arrays[name], values)
    rows = join_table(sums, memory=memory, grad=arrays["grad"])
    table: DeviceArray = device.empty(rows.shape, "int32")
    device.copy_in(table, rows)

    sgd = Sgd(SPEC)
    sgd.load(device)
    (launch,) = sgd.update_joined(
        memory=memory, table=table, sums=sums, learning_rate=rate, **arrays
    )
    launch()

    slope = expected_grad + SPEC.weight_decay * draw["parameter"]
    velocity = SPEC.momentum * draw["velocity"] + slope
    expected = {
        "grad": expected_grad,
        "velocity": velocity,
        "parameter": draw["parameter"] - SPEC.learning_rate * velocity,
    }
    return {
        name: (np.asarray(device.copy_out(arrays[name]), np.float64), np.asarray(values))
        for name, values in expected.items()
    }
