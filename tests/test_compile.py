"""The real nvcc, where there is one: the strict check refuses what it must, and our tool chain works with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import nvcc_check
import pytest

from pcnn_bench.errors import DeviceError
from pcnn_cuda import nvcc
from pcnn_cuda.launch import kernel_sources, signatures

ROOT = Path(__file__).resolve().parent.parent
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 36 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Function properties for second
    776 bytes stack frame, 1116 bytes spill stores, 1164 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 400 bytes cmem[0]
"""
FINE = """#include "scale.cuh"
extern "C" __global__ void scale(const float* x, float* y, int M)
{
    __shared__ float staged[SIZE];
    const int i = threadIdx.x;
    staged[i] = i < M ? scaled(x[i]) : 0.0f;
    __syncthreads();
    y[i] = staged[SIZE - 1 - i];
}
"""
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) heavy(float* y, int M)
{
    float v[64];
    for (int i = 0; i < 64; ++i) v[i] = y[threadIdx.x + i * M];
    for (int k = 0; k < M; ++k) {
#pragma unroll
        for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + 7) % 64] + v[(i * 3) % 64];
    }
    for (int i = 0; i < 64; ++i) y[threadIdx.x + i * M] = v[i];
}
"""
WARNING = """extern "C" __global__ void loose(float* y)
{
    int unused = 3;
    y[0] = 1.0f;
}
"""


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvcc.Toolkit:
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(tmp_path / "cache"))
    try:
        found = nvcc.find()
    except DeviceError as error:
        pytest.skip(str(error))
    (tmp_path / "scale.cuh").write_text(
        "__device__ inline float scaled(float x) { return 2.0f * x; }\n"
    )
    return found


def test_usage_is_the_worst_of_the_kernels() -> None:
    assert nvcc_check.read_usage(LOG) == nvcc_check.Usage(2, 36, 1024, 2280)


def test_without_nvcc_the_extra_that_brings_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find() -> nvcc.Toolkit:
        raise DeviceError("nvcc not found")

    monkeypatch.setattr(nvcc, "find", find)
    assert nvcc_check.main([]) == 3
    assert capsys.readouterr().err == "nvcc not found; or: pip install -e '.[nvcc]'\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all("==" in each for each in project["optional-dependencies"]["nvcc"])


def test_every_kernel_source_is_checked() -> None:
    assert len(kernel_sources()) >= 10
    for source in kernel_sources():
        assert len(nvcc_check.example_constants(source)) >= 1


@pytest.mark.slow
def test_a_clean_kernel_passes_and_is_cached(toolkit: nvcc.Toolkit, tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(FINE)
    fine, line = nvcc_check.check(toolkit, "scale.cu", {"SIZE": 128}, "sm_90", tmp_path)
    assert fine
    assert line.startswith("scale.cu SIZE=128 sm_90: 1 kernels, at most ")
    assert "and 512 B static shared, 0 B spilled" in line
    first, again = (
        toolkit.build(
            "scale.cu", {"SIZE": 128}, arch="sm_90", flags=nvcc_check.STRICT, folder=tmp_path
        )
        for _ in range(2)
    )
    assert not first.from_cache
    assert again.from_cache
    assert again.cubin.startswith(b"\x7fELF")


@pytest.mark.slow
def test_a_kernel_that_is_launched_early_must_wait(
    toolkit: nvcc.Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scale.cu").write_text(FINE)
    (kernel,) = signatures(FINE)
    monkeypatch.setattr(nvcc_check, "followers", lambda: {kernel})
    fine, line = nvcc_check.check(toolkit, "scale.cu", {"SIZE": 128}, "sm_90", tmp_path)
    assert not fine
    assert f"no follow() in {kernel}" in line
    assert nvcc_check.check(toolkit, "scale.cu", {"SIZE": 128}, "sm_80", tmp_path)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "complaint"),
    [(SPILLING, "spilled"), (WARNING, "unused"), ('#error "compile with -DSIZE"\n', "-DSIZE")],
)
def test_an_unclean_kernel_fails(
    toolkit: nvcc.Toolkit, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "bad.cu").write_text(text)
    fine, line = nvcc_check.check(toolkit, "bad.cu", {}, "sm_90", tmp_path)
    assert not fine
    assert "FAILED" in line
    assert complaint in line
    assert "\n" not in line


@pytest.mark.slow
def test_an_architecture_that_the_toolkit_lacks_is_named(
    toolkit: nvcc.Toolkit, tmp_path: Path
) -> None:
    (tmp_path / "scale.cu").write_text(FINE)
    with pytest.raises(DeviceError, match=r"cannot compile for sm_190 .* install a newer CUDA"):
        toolkit.build("scale.cu", {"SIZE": 128}, arch="sm_190", folder=tmp_path)


@pytest.mark.slow
def test_a_host_compiler_that_is_missing_is_named(toolkit: nvcc.Toolkit, tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(FINE)
    flags = ["-ccbin", str(tmp_path / "no-such-g++")]
    with pytest.raises(DeviceError, match="finds no host compiler"):
        toolkit.build("scale.cu", {"SIZE": 128}, arch="sm_90", flags=flags, folder=tmp_path)
