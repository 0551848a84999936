"""The GPU's device, its driver probe and its tool chain, against stand-ins for all three."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import Error, FakeNvcc, FakePycuda, LogicError, MemoryError, build_libcuda, isolate

from pcnn_bench.errors import DeviceError, DeviceMemoryError
from pcnn_cuda import nvcc
from pcnn_cuda.device import Device
from pcnn_cuda.launch import Launch, linear
from pcnn_cuda.pycuda_device import PycudaDevice

SOURCE = "relu.cu"


def as_device(device: PycudaDevice) -> Device:
    """For the type checker: the class satisfies the protocol."""
    return device


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libcuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libcuda: Path) -> None:
    """One visible GPU."""
    isolate(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(libcuda))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvcc:
    fake = FakeNvcc(tmp_path / "toolkit")
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(fake.path))
    return fake


@pytest.fixture
def pycuda(monkeypatch: pytest.MonkeyPatch) -> FakePycuda:
    fake = FakePycuda()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def device(pycuda: FakePycuda, compiler: FakeNvcc) -> Iterator[PycudaDevice]:
    opened = PycudaDevice()
    yield opened
    opened.close()


# The context


def test_closing_frees_all_and_leaves_no_context(pycuda: FakePycuda, device: PycudaDevice) -> None:
    device.empty((3, 5))
    device.compile(SOURCE)
    device.close()
    assert (pycuda.stack, pycuda.retained, pycuda.memory) == (0, 0, {})
    assert pycuda.calls.index("free") < pycuda.calls.index("pop") < pycuda.calls.index("detach")
    assert device.allocated_bytes == 0
    count = len(pycuda.calls)
    device.close()
    assert len(pycuda.calls) == count


@pytest.mark.parametrize("step", ["init", "retain", "push", "Stream", "compute_capability"])
def test_a_failure_while_opening_leaves_no_context(
    pycuda: FakePycuda, compiler: FakeNvcc, step: str
) -> None:
    pycuda.failures[step] = LogicError("all CUDA-capable devices are busy\nor unavailable")
    with pytest.raises(DeviceError, match=r"gpu:0: cannot be opened: .* busy or unavailable"):
        PycudaDevice()
    assert (pycuda.stack, pycuda.retained) == (0, 0)


def test_a_full_gpu_is_a_memory_error(pycuda: FakePycuda, compiler: FakeNvcc) -> None:
    pycuda.failures["retain"] = MemoryError("cuDevicePrimaryCtxRetain failed: out of memory")
    with pytest.raises(DeviceMemoryError, match="no memory left to open it"):
        PycudaDevice()


def test_closing_detaches_even_if_the_context_cannot_be_popped(
    pycuda: FakePycuda, device: PycudaDevice
) -> None:
    pycuda.failures["pop"] = LogicError("an illegal memory access was encountered")
    device.close()
    assert pycuda.retained == 0


# Memory


def test_copies_convert_and_come_back(pycuda: FakePycuda, device: PycudaDevice) -> None:
    array = device.empty((3, 5))
    values = np.arange(15, dtype=np.float64).reshape(5, 3).T  # wrong type, and not contiguous
    device.copy_in(array, values)
    back = device.copy_out(array)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, values)
    assert pycuda.calls[-2:] == ["dtoh", "synchronize"]


def test_a_view_reads_its_part(device: PycudaDevice) -> None:
    array = device.empty((4, 3), "int32")
    device.copy_in(array, np.arange(12, dtype=np.int32).reshape(4, 3))
    np.testing.assert_array_equal(
        device.copy_out(array.view((2, 3), first=6)), [[6, 7, 8], [9, 10, 11]]
    )


def test_a_copy_of_another_shape_is_refused(device: PycudaDevice) -> None:
    with pytest.raises(ValueError, match=r"\(5, 3\) into \(3, 5\)"):
        device.copy_in(device.empty((3, 5)), np.zeros((5, 3), np.float32))


def test_filling_with_ones_makes_nans(device: PycudaDevice) -> None:
    array = device.empty((7,))
    device.fill(array, 0xFF)
    assert np.isnan(device.copy_out(array).astype(float)).all()


def test_allocations_are_counted_and_freed_once(device: PycudaDevice) -> None:
    first, second = device.empty((10,)), device.empty((3,), "uint8")
    assert device.allocated_bytes == 43
    device.free(first)
    assert device.allocated_bytes == 3
    with pytest.raises(ValueError, match="freed before"):
        device.free(first)
    device.free(second)
    assert device.allocated_bytes == 0
    assert device.free_bytes() == (2**30, 2**30)


def test_too_large_an_array_names_the_memory(device: PycudaDevice) -> None:
    device.empty((2**20,), "uint8")
    with pytest.raises(DeviceMemoryError) as caught:
        device.empty((2**28, 2))
    assert "needs 2048.0 MiB; 1023.0 of 1024.0 MiB are free" in str(caught.value)
    assert device.allocated_bytes == 2**20


# Events


def test_elapsed_time_is_in_microseconds(device: PycudaDevice) -> None:
    start, stop = device.record(), device.record()
    assert device.elapsed_us(start, stop) == 1500.0


def test_driver_events_are_used_again(pycuda: FakePycuda, device: PycudaDevice) -> None:
    for _ in range(10):
        start, stop = device.record(), device.record()
        assert device.elapsed_us(start, stop) == 1500.0
        del start, stop
    assert pycuda.event_count == 2


def test_an_event_in_use_is_never_recorded_again(pycuda: FakePycuda, device: PycudaDevice) -> None:
    held = [device.record() for _ in range(3)]
    assert device.elapsed_us(held[0], held[2]) == 3000.0
    assert pycuda.event_count == 3


# Kernels


def test_a_launch_passes_its_arguments_in_the_order_of_the_source(
    pycuda: FakePycuda, device: PycudaDevice
) -> None:
    x, y = device.empty((300,)), device.empty((300,))
    kernel = device.compile(SOURCE)["relu_forward"]
    count: int = np.arange(300, 301)[0]  # a NumPy integer, which PyCUDA's packing would refuse
    launch = kernel.bind(linear(300), y=y, count=count, x=x)
    launch()
    launch()
    name, grid, block, values, shared = pycuda.launches[0]
    assert (name, grid, block, shared) == ("relu_forward", (2, 1, 1), (256, 1, 1), 0)
    assert pycuda.formats["relu_forward"] == "PPi"
    assert values == [x.address, y.address, 300]
    assert device.launched == {"relu_forward": 2}


def test_rebinding_replaces_what_it_names(pycuda: FakePycuda, device: PycudaDevice) -> None:
    x, y = device.empty((300,)), device.empty((300,))
    launch = device.compile(SOURCE)["relu_forward"].bind(linear(300), x=x, y=y, count=300)
    launch.rebind(y=x)
    launch()
    assert pycuda.launches[-1][3] == [x.address, x.address, 300]
    with pytest.raises(TypeError, match="unknown"):
        launch.rebind(z=x)
    with pytest.raises(DeviceError, match="count = 2147483648 does not fit a 32-bit int"):
        launch.rebind(count=2**31)
    launch()
    assert pycuda.launches[-1][3] == [x.address, x.address, 300]


def test_a_wrong_argument_is_refused_before_the_launch(device: PycudaDevice) -> None:
    x, labels = device.empty((300,)), device.empty((300,), "int32")
    kernel = device.compile(SOURCE)["relu_forward"]
    with pytest.raises(TypeError, match=r"missing \['count'\]"):
        kernel.bind(linear(300), x=x, y=x)
    with pytest.raises(TypeError, match="x must be float32"):
        kernel.bind(linear(300), x=labels, y=x, count=300)


def test_a_refused_launch_names_kernel_and_shape(pycuda: FakePycuda, device: PycudaDevice) -> None:
    x = device.empty((300,))
    launch = device.compile(SOURCE)["relu_forward"].bind(
        Launch((1, 1, 70000), (256, 1, 1)), x=x, y=x, count=300
    )
    pycuda.failures["launch"] = LogicError("cuLaunchKernel failed: invalid argument")
    with pytest.raises(
        DeviceError, match=r"relu_forward: launch of grid \(1, 1, 70000\)"
    ) as caught:
        launch()
    assert "65535" in str(caught.value)
    assert device.launched == {}


def test_a_failed_kernel_is_named_when_waiting(pycuda: FakePycuda, device: PycudaDevice) -> None:
    x = device.empty((300,))
    device.compile(SOURCE)["relu_forward"].bind(linear(300), x=x, y=x, count=300)()
    pycuda.failures["synchronize"] = Error("cuStreamSynchronize failed: illegal address")
    for wait in (device.synchronize, lambda: device.copy_out(x)):
        with pytest.raises(DeviceError, match=r"illegal address; .* relu_forward"):
            wait()


def test_much_shared_memory_is_asked_for_once(pycuda: FakePycuda, device: PycudaDevice) -> None:
    x = device.empty((300,))
    kernel = device.compile(SOURCE)["relu_forward"]
    for shared_bytes in (48 * 1024, 64 * 1024, 50 * 1024):
        kernel.bind(Launch((1, 1, 1), (256, 1, 1), shared_bytes), x=x, y=x, count=300)()
    assert pycuda.shared == [64 * 1024]
    assert [launch[4] for launch in pycuda.launches] == [48 * 1024, 64 * 1024, 50 * 1024]
    pycuda.failures["set_attribute"] = LogicError("cuFuncSetAttribute failed: invalid argument")
    with pytest.raises(
        DeviceError, match="relu_forward: the GPU does not give a block 999999 bytes"
    ):
        kernel.bind(Launch((1, 1, 1), (256, 1, 1), 999_999), x=x, y=x, count=300)


def test_the_description_has_no_gaps_but_what_the_driver_refuses(device: PycudaDevice) -> None:
    found = device.describe()
    assert found["name"] == "Fake H200"
    assert found["uuid"] == "GPU-abababab-abab-abab-abab-abababababab"
    assert (found["compute_capability"], found["driver_cuda"]) == ("9.0", "13.0")
    assert (found["toolkit"], found["pycuda"]) == ("13.0.88", "2026.1")
    assert (found["clock_khz"], found["memory_clock_khz"]) == (1_980_000, None)


# The cubin cache


def test_nvcc_is_given_arch_constants_flags_and_the_package(
    pycuda: FakePycuda, compiler: FakeNvcc
) -> None:
    device = PycudaDevice(nvcc_flags=["-lineinfo"])
    try:
        device.compile(SOURCE, TILE=16)
    finally:
        device.close()
    words = compiler.calls()[-1].split()
    assert words[0] == "-cubin"
    for word in ("-arch=sm_90", "-O3", "-std=c++17", "-DTILE=16", "-lineinfo"):
        assert word in words
    assert words[words.index("-I") + 1] == str(nvcc.package_folder())


def test_a_warm_cache_starts_no_nvcc(pycuda: FakePycuda, compiler: FakeNvcc) -> None:
    for _ in range(2):
        device = PycudaDevice()
        first = device.compile(SOURCE, TILE=16)
        assert device.compile(SOURCE, TILE=16) is first
        device.close()
    assert [call.split()[0] for call in compiler.calls()] == ["--version", "-cubin"]
    assert len(pycuda.loaded) == 2
    assert pycuda.loaded[0] == pycuda.loaded[1]


def test_a_stale_cubin_is_built_anew_and_said_so(
    pycuda: FakePycuda, compiler: FakeNvcc, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = PycudaDevice()
    device.compile(SOURCE)
    device.close()
    (kept,) = (tmp_path / "cache" / "cubin").glob("relu-*.cubin")
    kept.write_bytes(b"half of it")
    pycuda.refuse = lambda cubin: not cubin.startswith(b"cubin")

    device = PycudaDevice()
    device.compile(SOURCE)
    device.close()
    assert kept.read_bytes().startswith(b"cubin")
    assert sum(call.startswith("-cubin") for call in compiler.calls()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "is stale (cuModuleLoadDataEx failed: device kernel image is invalid" in err


def test_a_cubin_that_never_loads_is_built_twice_at_most(
    pycuda: FakePycuda, compiler: FakeNvcc
) -> None:
    pycuda.refuse = lambda cubin: True
    device = PycudaDevice()
    for _ in range(2):  # the first is built here, the second comes from the cache and is rebuilt
        with pytest.raises(DeviceError, match=r"relu\.cu: the driver refuses what nvcc 13\.0\.88"):
            device.compile(SOURCE)
    device.close()
    assert sum(call.startswith("-cubin") for call in compiler.calls()) == 2
    assert (pycuda.stack, pycuda.retained) == (0, 0)


def test_a_stale_cubin_is_built_anew_even_if_the_message_is_garbage(
    pycuda: FakePycuda, compiler: FakeNvcc, tmp_path: Path
) -> None:
    with closing(PycudaDevice()) as device:
        device.compile(SOURCE)
    (kept,) = (tmp_path / "cache" / "cubin").glob("relu-*.cubin")
    kept.write_bytes(b"half of it")
    pycuda.refuse = lambda cubin: not cubin.startswith(b"cubin")
    pycuda.refusal = UnicodeDecodeError("utf-8", b"\xb8", 0, 1, "invalid start byte")
    with closing(PycudaDevice()) as device:
        assert device.compile(SOURCE)
    assert kept.read_bytes().startswith(b"cubin")


def test_prefetched_builds_are_only_loaded(pycuda: FakePycuda, compiler: FakeNvcc) -> None:
    device = PycudaDevice()
    builds: list[tuple[str, dict[str, int]]] = [("relu.cu", {"K": i % 4}) for i in range(8)]
    device.prefetch(builds)
    assert sum(call.startswith("-cubin") for call in compiler.calls()) == 4
    assert pycuda.loaded == []
    before = device.compile_s
    compiler.fail("nvcc is not to be asked again")
    for source, constants in builds:
        assert "relu_forward" in device.compile(source, **constants)
    assert len(pycuda.loaded) == 4
    assert device.compile_s > before > 0
    device.close()


# What users meet: one line each, with its remedy


def message_of_opening() -> str:
    with pytest.raises(DeviceError) as caught:
        PycudaDevice()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    return str(caught.value)


def message_of_compiling(device: PycudaDevice) -> str:
    with pytest.raises(DeviceError) as caught:
        device.compile(SOURCE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_toolkit_newer_than_the_driver_names_both(
    pycuda: FakePycuda, compiler: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VERSION", "12040")
    pycuda.refuse = lambda cubin: True
    pycuda.refusal = LogicError(
        "cuModuleLoadDataEx failed: the provided PTX was compiled with an unsupported toolchain. - "
    )
    device = PycudaDevice()
    said = message_of_compiling(device)
    device.close()
    assert "nvcc 13.0.88" in said
    assert "the driver supports CUDA 12.4: update it, or name the nvcc of a toolkit up to" in said


def test_an_ordinal_that_is_not_there_lists_those_that_are(
    monkeypatch: pytest.MonkeyPatch, pycuda: FakePycuda
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(DeviceError) as caught:
        PycudaDevice(ordinal=3)
    assert str(caught.value) == (
        "gpu:3: no such GPU; visible: gpu:0 Fake H200 (CUDA_VISIBLE_DEVICES='3' is set)"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModuleNotFoundError("No module named 'pycuda'", name="pycuda"), "pcnn-bench[cuda]"),
        (ImportError("libcurand.so.10: cannot open\nshared object file"), "build it anew"),
        (RuntimeError("module compiled against ABI version 0x1000009"), "build it anew"),
    ],
)
def test_pycuda_that_cannot_be_imported_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, compiler: FakeNvcc, error: Exception, expected: str
) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("pycuda"):
            raise error
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert expected in message_of_opening()


def test_importing_the_device_imports_no_pycuda() -> None:
    code = "import sys, pcnn_cuda.pycuda_device; sys.exit('pycuda' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )
