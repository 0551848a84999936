"""The device's ceilings: kernels whose results are known and compared, timed at the sizes asked for."""

from collections.abc import Iterator

import pytest

from pcnn_bench.environment import MEBIBYTE
from pcnn_bench.errors import FindingError
from pcnn_cuda import ceilings
from pcnn_cuda.ceilings import CHUNK_FLOATS, EFFORTS, SOURCE, measure
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.launch import BLOCK_THREADS, kernel_text, signatures

CHUNK_BYTES = 2 * 4 * CHUNK_FLOATS
"""Of source and target together."""


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.checker)])
def device(request: pytest.FixtureRequest) -> Iterator[EmulatedDevice]:
    device = EmulatedDevice(checker=request.param)
    yield device
    device.close()


def test_every_kernel_is_launched_and_every_size_has_its_rate(device: EmulatedDevice) -> None:
    sizes = {"tiny": 1, "odd": 5 * CHUNK_BYTES + 77, "again": 5 * CHUNK_BYTES, "huge": 10**12}
    found = measure(device, sizes)
    assert found["clock"] == "host"
    assert found["gflop_per_s"] > 0
    assert {name: copy["working_set_bytes"] for name, copy in found["copies"].items()} == {
        "tiny": CHUNK_BYTES,
        "odd": 5 * CHUNK_BYTES,
        "again": 5 * CHUNK_BYTES,
        "huge": MEBIBYTE,
    }
    assert all(copy["gbyte_per_s"] > 0 for copy in found["copies"].values())
    assert found["copies"]["odd"] == found["copies"]["again"]  # measured once
    assert set(device.launched) == set(signatures(kernel_text(SOURCE)))
    assert device.launched["ceilings_copy"] == 3 * (1 + EFFORTS["emulated"].sample_count)
    assert device.allocated_bytes == 0


def test_the_rates_are_those_of_the_best_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice()
    times = iter([40.0, 20.0, 30.0] * 2)
    monkeypatch.setattr(device, "elapsed_us", lambda start, stop: next(times))
    effort = EFFORTS["emulated"]
    found = measure(device, {"naive": MEBIBYTE})
    assert found["copies"]["naive"]["gbyte_per_s"] == effort.copied_bytes / 20.0 / 1e3
    threads = ceilings.BLOCKS_PER_MULTIPROCESSOR * BLOCK_THREADS
    operations = 2 * ceilings.CONSTANTS["CHAINS"] * effort.step_count * threads
    assert found["gflop_per_s"] == operations / 20.0 / 1e3


@pytest.mark.parametrize(
    ("kernel", "right", "wrong"),
    [
        ("ceilings_copy", "from = (chunk + pass) % CHUNKS", "from = chunk"),
        ("ceilings_copy", "pass < PASSES", "pass < PASSES - 1"),
        ("ceilings_copy", "i < VECTORS; ++i) write", "i < VECTORS - 1; ++i) write"),
        ("ceilings_fma", "step < STEPS", "step < STEPS - 1"),
        ("ceilings_fma", "c < CHAINS; ++c) sum", "c < CHAINS - 1; ++c) sum"),
        ("ceilings_fma", "fmaf(x[c], factor, addend)", "x[c] + 1.5f * addend"),
    ],
)
def test_a_kernel_that_does_less_is_no_measure(kernel: str, right: str, wrong: str) -> None:
    text = kernel_text(SOURCE)
    assert text.count(right) == 1
    device = EmulatedDevice(sources={SOURCE: text.replace(right, wrong)})
    with pytest.raises(FindingError, match=f"^{kernel}: .* differs from"):
        measure(device, {"naive": 4 * CHUNK_BYTES})
    assert device.allocated_bytes == 0
    device.close()
