"""The checker finds each kind of seeded fault at its line, and finds none where CUDA's rules are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import DeviceArray
from pcnn_cuda.emulated_device import EmulatedDevice, KernelFault
from pcnn_cuda.launch import Launch

pytestmark = pytest.mark.checker

FAULTS = (Path(__file__).parent / "emulation" / "faults.cu").read_text(encoding="utf-8")
LAUNCH = Launch((2, 1, 1), (64, 1, 1), shared_bytes=256)

SEEDED = [
    ("static_shared_overrun", "out-of-bounds write", "tile"),
    ("dynamic_shared_overrun", "out-of-bounds read", "dynamic __shared__ memory"),
    ("global_overrun", "out-of-bounds write", "y"),
    ("no_barrier_before_read", "race", "tile"),
    ("no_barrier_before_rewrite", "race", "tile"),
    ("barrier_in_a_branch", "divergent barrier", None),
    ("two_barriers", "different barriers", None),
    ("lane_gone_before_shuffle", "lost lane", None),
    ("blocks_add_to_one_cell", "race", "y"),
    ("unset_shared", "uninitialised read", "tile"),
]


def line_of(fault: str) -> int:
    """The line of faults.cu marked with this fault."""
    return next(
        number
        for number, line in enumerate(FAULTS.splitlines(), 1)
        if line.endswith(f"// FAULT {fault}")
    )


@pytest.fixture(scope="module", params=[0, 1, 2])
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    return EmulatedDevice(checker=True, seed=request.param, sources={"faults.cu": FAULTS})


def zeros(device: EmulatedDevice, *shape: int, dtype: str = "float32") -> DeviceArray:
    array = device.empty(shape, dtype)
    device.fill(array, 0)
    return array


@pytest.mark.parametrize(("name", "kind", "array"), SEEDED)
def test_a_seeded_fault_is_reported_with_kind_line_array_thread_and_block(
    device: EmulatedDevice, name: str, kind: str, array: str | None
) -> None:
    kernel = device.compile("faults.cu")[name]
    with pytest.raises(KernelFault, match=rf"^{name} \(faults\.cu:\d+\): ") as caught:
        kernel.bind(LAUNCH, y=zeros(device, 128))()
    found = [report for report in caught.value.reports if report.kind == kind]
    assert len(found) == 1, caught.value.reports
    report = found[0]
    # which of two racing accesses or barriers comes second depends on the schedule
    assert f"faults.cu:{line_of(name)}" in (report.place, report.other_place)
    assert (report.other_place is not None) == (kind in ("race", "different barriers"))
    assert report.array == array
    assert report.kernel == name
    assert report.block in [(0, 0, 0), (1, 0, 0)]
    assert 0 <= report.thread[0] < 64
    assert report.thread[1:] == (0, 0)


def test_every_kernel_of_the_fault_file_is_either_seeded_or_well_behaved(
    device: EmulatedDevice,
) -> None:
    assert set(device.compile("faults.cu")) == {name for name, _, _ in SEEDED} | {"well_behaved"}


def test_a_well_behaved_kernel_has_no_report_and_the_right_result(device: EmulatedDevice) -> None:
    y = zeros(device, 128)
    device.compile("faults.cu")["well_behaved"].bind(LAUNCH, y=y)()
    np.testing.assert_array_equal(device.copy_out(y), np.repeat([0, 1], 64))


def test_a_fault_leaves_the_device_usable(device: EmulatedDevice) -> None:
    kernels = device.compile("faults.cu")
    y = zeros(device, 128)
    for name, _, _ in SEEDED:
        with pytest.raises(KernelFault):
            kernels[name].bind(LAUNCH, y=y)()
        kernels["well_behaved"].bind(LAUNCH, y=y)()


def test_a_step_past_a_view_is_found_although_the_arena_goes_on(device: EmulatedDevice) -> None:
    arena = zeros(device, 400)
    with pytest.raises(
        KernelFault,
        match=r"out-of-bounds write of y by thread \(63, 0, 0\) of block \(1, 0, 0\) at byte 512",
    ):
        # in order, the last thread errs; shuffled, the same thread errs earlier or later
        device.compile("faults.cu")["global_overrun"].bind(LAUNCH, y=arena.view((128,), first=64))()


TWO_ARRAYS = """
extern "C" __global__ void shift(const float* x, float* y, int M) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M) y[i] = x[i + 1];
}
extern "C" __global__ void double_in_place(const float* x, float* y, int M) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M) y[i] = 2.0f * x[i];
}
extern "C" __global__ void far_away(float* y) { y[1 << 28] = 1.0f; }
"""


def test_neighbours_in_an_arena_do_not_hide_a_step_into_them_and_arrays_may_coincide() -> None:
    device = EmulatedDevice(checker=True, sources={"two.cu": TWO_ARRAYS})
    kernels = device.compile("two.cu")
    launch = Launch((1, 1, 1), (64, 1, 1))
    arena = zeros(device, 128)
    device.copy_in(arena, np.arange(128, dtype=np.float32))
    x, y = arena.view((64,)), arena.view((64,), first=64)
    with pytest.raises(
        KernelFault, match=r"shift \(two.cu:4\): out-of-bounds read of x .* at byte 256"
    ):
        kernels["shift"].bind(launch, x=x, y=y, M=64)()
    kernels["double_in_place"].bind(launch, x=x, y=x, M=64)()
    np.testing.assert_array_equal(
        device.copy_out(arena), np.r_[2 * np.arange(64), np.arange(64, 128)]
    )
    with pytest.raises(KernelFault, match=r"race of x/y .* \(two.cu:4\)$"):
        kernels["shift"].bind(launch, x=x, y=x, M=63)()
    with pytest.raises(KernelFault, match=r", far from every array$"):
        kernels["far_away"].bind(launch, y=x)()


def test_what_a_kernel_reads_of_an_array_is_counted() -> None:
    device = EmulatedDevice(checker=True, sources={"two.cu": TWO_ARRAYS})
    kernels = device.compile("two.cu")
    x, y = zeros(device, 64), zeros(device, 64)
    for count in (63, 5):
        kernels["shift"].bind(Launch((1, 1, 1), (64, 1, 1)), x=x, y=y, M=count)()
    kernels["double_in_place"].bind(Launch((1, 1, 1), (64, 1, 1)), x=x, y=x, M=64)()
    assert +device.loaded == {("shift", "x"): 4 * (63 + 5), ("double_in_place", "x/y"): 4 * 64}


def test_an_array_that_was_freed_is_refused(device: EmulatedDevice) -> None:
    y = zeros(device, 128)
    launch = device.compile("faults.cu")["well_behaved"].bind(LAUNCH, y=y)
    device.free(y)
    with pytest.raises(DeviceError, match=r"well_behaved: y \(128,\) is not in live device memory"):
        launch()
