"""The emulated device: CUDA's execution model, the Device protocol, and the cache of compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pcnn_bench.errors import DeviceError, DeviceMemoryError
from pcnn_cuda.device import Device, DeviceArray, HostArray
from pcnn_cuda.emulated_device import EmulatedDevice, KernelFault
from pcnn_cuda.emulation.toolchain import Compiler
from pcnn_cuda.launch import Launch, linear

FOLDER = Path(__file__).parent / "emulation"
SOURCES = {
    name: (FOLDER / name).read_text(encoding="utf-8")
    for name in ("features.cu", "features.cuh", "faults.cu")
}
SCALE = """
extern "C" __global__ void scale(float* y, float factor, int M) {
    if (threadIdx.x < M) y[threadIdx.x] *= factor;
}
"""
ONE_WARP = Launch((1, 1, 1), (32, 1, 1))
RNG = np.random.default_rng(20)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="threads"),
        pytest.param({"threads": 1, "seed": 7}, id="shuffled"),
        pytest.param({"checker": True}, id="checker", marks=pytest.mark.checker),
        pytest.param(
            {"checker": True, "seed": 3}, id="shuffled-checker", marks=pytest.mark.checker
        ),
    ],
)
def device(request: pytest.FixtureRequest) -> Iterator[EmulatedDevice]:
    device = EmulatedDevice(sources=SOURCES, **request.param)
    yield device
    device.close()


def launch(
    device: EmulatedDevice,
    name: str,
    shape: Launch,
    **arguments: HostArray | DeviceArray | int | float,
) -> None:
    """Run a kernel of features.cu."""
    device.compile("features.cu", SCALE=3)[name].bind(shape, **arguments)()  # type: ignore[arg-type]


def put(device: EmulatedDevice, values: HostArray) -> DeviceArray:
    array = device.empty(values.shape, values.dtype.name)
    device.copy_in(array, values)
    return array


@pytest.mark.parametrize("elements", [1, 31, 256, 257, 5000])
def test_a_kernel_sees_its_constants_and_leaves_what_lies_beyond_its_guard(
    device: EmulatedDevice, elements: int
) -> None:
    x = RNG.standard_normal(elements).astype(np.float32)
    y = device.empty((elements,))
    launch(device, "axpy", linear(elements), x=put(device, x), y=y, a=0.5, M=elements)
    np.testing.assert_allclose(
        device.copy_out(y).astype(np.float32),
        1.5 * x + np.arange(elements) % 4,
        rtol=1e-6,
        atol=1e-6,
    )


def test_every_thread_of_a_three_dimensional_launch_runs_once_and_knows_where_it_is(
    device: EmulatedDevice,
) -> None:
    y = device.empty((12, 30), "int32")
    launch(device, "number_threads", Launch((3, 2, 2), (5, 3, 2)), y=y)
    np.testing.assert_array_equal(device.copy_out(y), 1000 * np.arange(12)[:, None] + np.arange(30))


def test_blocks_reduce_through_shared_memory_of_an_included_header(device: EmulatedDevice) -> None:
    x = RNG.integers(-8, 8, (20, 128)).astype(np.float32)  # sums of small integers are exact
    y = device.empty((20,))
    launch(device, "sum_rows", Launch((20, 1, 1), (128, 1, 1)), x=put(device, x), y=y)
    np.testing.assert_array_equal(device.copy_out(y), 3 * x.sum(1))


def test_the_last_block_may_read_what_the_others_fenced(device: EmulatedDevice) -> None:
    x = RNG.integers(-8, 8, 1000).astype(np.float32)
    finished = put(device, np.zeros(1, np.int32))
    partial, y = device.empty((8,)), device.empty((1,))
    shape = Launch((8, 1, 1), (128, 1, 1))
    launch(
        device,
        "sum_in_last_block",
        shape,
        x=put(device, x),
        partial=partial,
        finished=finished,
        y=y,
        M=1000,
    )
    assert device.copy_out(y)[0] == x.sum()


def test_tiles_are_transposed_through_two_dimensional_shared_memory(device: EmulatedDevice) -> None:
    x = RNG.standard_normal((48, 48)).astype(np.float32)
    y = device.empty((48, 48))
    launch(device, "transpose", Launch((3, 3, 1), (16, 16, 1)), x=put(device, x), y=y, M=48)
    np.testing.assert_array_equal(device.copy_out(y), x.T)


def test_a_histogram_counts_in_dynamic_shared_memory_and_over_blocks(
    device: EmulatedDevice,
) -> None:
    x = RNG.integers(0, 256, 3000).astype(np.uint8)
    counts = put(device, np.zeros(256, np.int32))
    launch(
        device,
        "histogram",
        Launch((5, 1, 1), (96, 1, 1), 1024),
        x=put(device, x),
        counts=counts,
        M=3000,
    )
    np.testing.assert_array_equal(device.copy_out(counts), np.bincount(x, minlength=256))


def test_atomics_return_the_old_value_and_lose_nothing(device: EmulatedDevice) -> None:
    x = RNG.integers(-50, 50, 3000).astype(np.int32)
    y, total = put(device, np.zeros(6, np.int32)), put(device, np.zeros(1, np.float32))
    launch(device, "atomics", linear(3000), x=put(device, x), y=y, sum=total, M=3000)
    np.testing.assert_array_equal(device.copy_out(y), [x.max(), x.min(), x.sum(), -x.sum(), 1, 77])
    assert device.copy_out(total)[0] == x.sum()


def test_lanes_exchange_as_cuda_says(device: EmulatedDevice) -> None:
    y = device.empty((9, 32), "int32")
    launch(device, "warp_exchange", ONE_WARP, y=y)
    lane = np.arange(32)
    votes = sum(1 << i for i in range(0, 32, 3))
    low, high = lane[:16], lane[16:]
    expected = [
        np.full(32, 5),
        lane // 8 * 8 + 3,
        np.where(lane < 2, lane, lane - 2),
        np.where(lane % 16 + 3 > 15, lane, lane + 3),
        lane ^ 9,
        np.full(32, votes),
        np.full(32, 2),
        np.r_[(low ^ 1) + 100 * (low ^ 2), np.full_like(high, 0xAAAA0000 - 2**32)],
        31 - lane,
    ]
    np.testing.assert_array_equal(device.copy_out(y), expected)


def test_vector_types_load_and_store(device: EmulatedDevice) -> None:
    x = np.array([0.25, 1.5, 2.75, -3.25] * 5, np.float32)
    y = device.empty((20,))
    launch(device, "vectors", linear(5), x=put(device, x), y=y, M=20)
    np.testing.assert_array_equal(
        device.copy_out(y), np.array([0.25, 3.5, 5.75, -6.25] * 5, np.float32)
    )


def test_functions_agree_with_numpy_and_pass_nan_on(device: EmulatedDevice) -> None:
    x = np.append(RNG.standard_normal(36), np.nan).astype(np.float32)
    y = device.empty((12, 37))
    launch(device, "functions", linear(37), x=put(device, x), y=y, M=37)
    size = np.abs(x)
    index = np.arange(37)
    expected = [
        *(np.tanh(x), np.exp(x), np.log(size), np.exp(x), size**-0.5, x * x + 1),
        *(
            np.fmax(x, 0.5),
            np.fmin(x, 0.5),
            np.maximum(index, 3),
            np.minimum(index, 3),
            np.sqrt(size),
            np.isnan(x),
        ),
    ]
    # a few roundings of float32 apart: the C library's functions and NumPy's
    np.testing.assert_allclose(
        device.copy_out(y).astype(np.float32), expected, rtol=1e-6, atol=1e-6
    )


# ---- the protocol ----


@pytest.fixture
def plain() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice(sources={**SOURCES, "scale.cu": SCALE})
    yield device
    device.close()


def test_the_emulated_device_satisfies_the_protocol(plain: EmulatedDevice) -> None:
    device: Device = plain  # mypy checks the signatures
    assert device.kind == "emulated"
    description = device.describe()
    assert str(description["name"]).startswith("emulated on ")
    assert description["threads"] == len(os.sched_getaffinity(0))
    assert device.take_compile_s() > 0
    assert device.take_compile_s() == 0


def test_memory_is_aligned_counted_and_nan_until_written(plain: EmulatedDevice) -> None:
    arrays = [plain.empty((3, 5)), plain.empty((7,), "uint8"), plain.empty((0,))]
    assert all(array.address % 256 == 0 for array in arrays)
    assert plain.allocated_bytes == 60 + 7
    assert np.isnan(plain.copy_out(arrays[0])).all()
    plain.fill(arrays[0], 0)
    assert not plain.copy_out(arrays[0]).any()
    plain.free(arrays[0])
    assert plain.allocated_bytes == 7
    with pytest.raises(ValueError, match="no live allocation"):
        plain.free(arrays[0])


def test_copies_convert_and_refuse_another_shape(plain: EmulatedDevice) -> None:
    target = plain.empty((2, 3))
    plain.copy_in(target, np.arange(6.0).reshape(3, 2).T)  # float64 and not contiguous
    np.testing.assert_array_equal(plain.copy_out(target), [[0, 2, 4], [1, 3, 5]])
    with pytest.raises(ValueError, match=r"\(3,\) does not fit a device array \(2, 3\)"):
        plain.copy_in(target, np.zeros(3))


def test_more_memory_than_the_machine_has_is_refused_in_one_line(plain: EmulatedDevice) -> None:
    free, total = plain.free_bytes()
    assert 0 < free <= total
    with pytest.raises(
        DeviceMemoryError,
        match=rf"{4 * total} bytes: \d+ free of {total}; use a smaller batch_size",
    ):
        plain.empty((total,))
    assert plain.allocated_bytes == 0


def test_launches_are_counted_and_arguments_rebound(plain: EmulatedDevice) -> None:
    y = put(plain, np.ones(8, np.float32))
    scale = plain.compile("scale.cu")["scale"].bind(ONE_WARP, y=y, factor=3.0, M=8)
    scale()
    scale.rebind(factor=5.0, M=4)
    scale()
    np.testing.assert_array_equal(plain.copy_out(y), [15] * 4 + [3] * 4)
    assert plain.launched == {"scale": 2}
    with pytest.raises(TypeError, match="scale: factor must be a float"):
        scale.rebind(factor=y)
    with pytest.raises(DeviceError, match="M = 4294967296 does not fit a 32-bit int"):
        scale.rebind(M=2**32)


def test_events_measure_wall_time(plain: EmulatedDevice) -> None:
    start = plain.record()
    plain.synchronize()
    stop = plain.record()
    assert 0 <= plain.elapsed_us(start, stop) < 1e6


@pytest.mark.parametrize(
    "shape",
    [
        Launch((1, 1, 1), (1025, 1, 1)),
        Launch((1, 1, 1), (32, 33, 1)),
        Launch((1, 1, 1), (1, 1, 65)),
        Launch((1, 65536, 1), (32, 1, 1)),
        Launch((1, 1, 65536), (32, 1, 1)),
        Launch((0, 1, 1), (32, 1, 1)),
        Launch((1, 1, 1), (32, 1, 1), 227 * 1024 + 1),
    ],
)
def test_a_launch_that_a_gpu_refuses_is_refused_by_name(
    plain: EmulatedDevice, shape: Launch
) -> None:
    kernel = plain.compile("scale.cu")["scale"]
    with pytest.raises(
        DeviceError, match=r"scale: launch refused: grid .* block .* smaller layer or batch_size"
    ):
        kernel.bind(shape, y=plain.empty((8,)), factor=1.0, M=8)


def test_more_static_shared_memory_than_a_block_has_is_refused() -> None:
    source = """
extern "C" __global__ void greedy(float* y) {
    __shared__ float tile[12000], more[289];
    y[0] = tile[0] + more[0];
}
"""
    device = EmulatedDevice(sources={"greedy.cu": source})
    with pytest.raises(
        DeviceError, match=r"greedy \(greedy.cu:3\): shared memory exceeded of more .* 49156 bytes"
    ):
        device.compile("greedy.cu")["greedy"].bind(ONE_WARP, y=device.empty((1,)))()


def test_a_lost_lane_ends_the_launch_instead_of_hanging_it(plain: EmulatedDevice) -> None:
    kernels = plain.compile("faults.cu")
    shape = Launch((2, 1, 1), (64, 1, 1), 256)
    y = plain.empty((128,))
    with pytest.raises(KernelFault, match=r"lane_gone_before_shuffle \(faults.cu:\d+\): lost lane"):
        kernels["lane_gone_before_shuffle"].bind(shape, y=y)()
    kernels["barrier_in_a_branch"].bind(shape, y=y)()  # the hardware lets exited threads off
    assert (plain.copy_out(y) == 1).all()


# ---- compiling ----


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(tmp_path))
    return tmp_path / "emulated"


def run_scale() -> None:
    """Compile and run the kernel ``scale`` on a new device."""
    device = EmulatedDevice(sources={"scale.cu": SCALE})
    y = put(device, np.ones(8, np.float32))
    device.compile("scale.cu")["scale"].bind(ONE_WARP, y=y, factor=3.0, M=8)()
    assert (device.copy_out(y) == 3).all()


def test_a_second_device_takes_libraries_from_the_cache_and_a_broken_one_is_built_again(
    cache: Path,
) -> None:
    run_scale()
    (library,) = cache.glob("scale-*.so")
    built = library.stat().st_mtime_ns
    run_scale()
    assert library.stat().st_mtime_ns == built
    whole = library.read_bytes()
    for broken in (whole[:5000], b"", b"no library"):
        library.unlink()  # the old one may still be loaded
        library.write_bytes(broken)
        run_scale()
        assert len(library.read_bytes()) == len(whole)
    assert [path.suffix for path in cache.iterdir()] == [".so", ".so"]  # and nothing temporary


def test_another_text_constant_or_include_is_another_library(cache: Path) -> None:
    text = '#include "width.cuh"\nextern "C" __global__ void width(int* y) { y[0] = 10 * WIDTH + TENS; }\n'

    def run(header: str, **constants: int) -> int:
        device = EmulatedDevice(sources={"width.cu": text, "width.cuh": header})
        y = device.empty((1,), "int32")
        kernel = device.compile("width.cu", **constants)["width"]
        assert device.compile("width.cu", **constants)["width"] is kernel
        kernel.bind(ONE_WARP, y=y)()
        return int(device.copy_out(y)[0])

    assert run("#define WIDTH 4\n", TENS=1) == 41
    assert run("#define WIDTH 4\n", TENS=2) == 42
    assert run("#define WIDTH 5\n", TENS=2) == 52
    assert len(list(cache.glob("width-*.so"))) == 3


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(occupied))
    run_scale()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_in_the_place_of_a_library_is_left_alone(
    cache: Path, make: Callable[[Path], None]
) -> None:
    run_scale()
    (library,) = cache.glob("scale-*.so")
    library.unlink()
    make(library)
    run_scale()
    assert library.is_file() or library.is_dir()  # a pipe is replaced, a folder is not


def test_a_cache_without_room_is_done_without(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cache.parent / "no-room"
    compiler.write_text(
        f'#!/bin/sh\ncase "$PWD" in {cache}*) echo "No space left on device" >&2; exit 1;; esac\n'
        'exec g++ "$@"\n',
        encoding="utf-8",
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    run_scale()
    assert list(cache.glob("*.so")) == []


def test_a_relative_cache_folder_is_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PCNN_BENCH_CACHE", "kept")
    run_scale()
    assert list((tmp_path / "kept" / "emulated").glob("scale-*.so"))


def test_what_killed_compilations_left_is_removed_after_a_day(cache: Path) -> None:
    for name, age_s in (("building-old", 100_000), ("building-new", 0)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age_s,) * 2)
    run_scale()
    assert [path.name for path in cache.glob("building-*")] == ["building-new"]


def test_an_interruption_while_compiling_leaves_the_rest_uncompiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = EmulatedDevice()
    begun: list[str] = []

    def interrupted(source: str, **constants: int) -> None:
        begun.append(source)
        time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.prefetch([(f"{i}.cu", {}) for i in range(1000)])
    assert len(begun) < 100


def test_threads_and_processes_compile_at_once(cache: Path) -> None:
    sources = {f"scale{i}.cu": SCALE.replace("scale", f"scale{i}") for i in range(3)}
    device = EmulatedDevice(sources=sources)
    with ThreadPoolExecutor(6) as pool:
        compiled = list(pool.map(device.compile, [*sources, *sources]))
    assert [list(kernels) for kernels in compiled[:3]] == [["scale0"], ["scale1"], ["scale2"]]
    assert all(first is second for first, second in zip(compiled[:3], compiled[3:], strict=True))
    assert device.compile_s > 0

    command = [sys.executable, "-c", "from test_emulated_device import run_scale; run_scale()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), *sys.path])}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(list(cache.glob("scale-*.so"))) == 1


def test_a_missing_compiler_is_one_line_with_the_remedy(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache.parent))
    with pytest.raises(
        DeviceError, match=r"no C\+\+ compiler .*; install g\+\+ or run with --engine baseline$"
    ):
        EmulatedDevice()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(
        DeviceError, match=r"CXX='?no-such-compiler -O2'? does not run .*; install g\+\+"
    ):
        EmulatedDevice()
    monkeypatch.setenv("CXX", '"g++')
    with pytest.raises(DeviceError, match=r'CXX="g\+\+ cannot be read .*; close the quote'):
        EmulatedDevice()


def test_a_compiler_may_name_itself_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "latin"
    compiler.write_bytes(b'#!/bin/sh\nprintf "compilateur \\351tranger\\n"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert Compiler.find().version == "compilateur \N{REPLACEMENT CHARACTER}tranger"


def test_the_compiler_named_by_cxx_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = cache.parent / "log"
    wrapper = cache.parent / "my-compiler"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec g++ "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    run_scale()
    assert "scale.cu" in log.read_text(encoding="utf-8")


def test_a_compile_error_is_one_line_that_names_file_and_line() -> None:
    device = EmulatedDevice(
        sources={
            "broken.cu": 'extern "C" __global__ void broken(float* y)\n{\n    y[0] = nowhere;\n}\n'
        }
    )
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(DeviceError, match=r"^broken.cu: broken.cu:3: .*nowhere.*$") as caught:
            device.compile("broken.cu")
    assert "\n" not in str(caught.value)


def test_a_kernel_whose_locals_overflow_a_fibers_stack_is_refused_when_compiled() -> None:
    source = """
extern "C" __global__ void hoard(float* y, int M) {
    volatile float hoarded[5000];
    for (int i = 0; i < 5000; ++i) hoarded[i] = y[i % M];
    y[0] = hoarded[M];
}
"""
    device = EmulatedDevice(sources={"hoard.cu": source})
    with pytest.raises(
        DeviceError, match=r"hoard.cu: .*frame size of \d+ bytes is larger than 16384"
    ):
        device.compile("hoard.cu")


def test_a_missing_constant_is_named_by_the_sources_own_error() -> None:
    device = EmulatedDevice(sources=SOURCES)
    with pytest.raises(DeviceError, match=r"features.cu:\d+: #error .*compile with -DSCALE"):
        device.compile("features.cu")


@pytest.mark.parametrize(
    "declaration",
    [
        "__shared__ float s[4], t[(N + 1) * 2][3];",
        "__shared__ unsigned s[4]; __shared__ unsigned char t[2 * N];",
        "__shared__ __align__(16) float4 s[4];\n    __shared__ int t;",
        "__shared__ const float* s[4], *t;",
    ],
)
def test_shared_declarations_are_understood_or_refused_never_guessed(declaration: str) -> None:
    text = f"""#define N 5
extern "C" __global__ void kernel(int* y) {{
    {declaration}
    y[0] = sizeof(s);
    y[1] = sizeof(t);
}}
"""
    device = EmulatedDevice(sources={"shared.cu": text})
    y = device.empty((2,), "int32")
    if "*t" in declaration:
        with pytest.raises(
            DeviceError,
            match=r"shared.cu:3: .*the emulation takes __shared__ TYPE name",
        ):
            device.compile("shared.cu")
        return
    device.compile("shared.cu")["kernel"].bind(ONE_WARP, y=y)()
    sizes = {"N + 1": [16, 144], "unsigned": [16, 10], "align": [64, 4]}
    assert list(device.copy_out(y)) == next(
        value for key, value in sizes.items() if key in declaration
    )
