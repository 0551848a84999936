"""Finding nvcc, the cubin cache, and what users meet with either, against a stand-in for nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cuda import FakeNvcc, isolate

from pcnn_bench.errors import DeviceError
from pcnn_cuda import nvcc

SOURCE = "relu.cu"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path / "cache")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvcc:
    fake = FakeNvcc(tmp_path / "toolkit")
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(fake.path))
    return fake


def message_of_building() -> str:
    """The one line that a failing build ends with."""
    with pytest.raises(DeviceError) as caught:
        nvcc.find().build(SOURCE, {}, arch="sm_90")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_every_part_of_the_key_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: FakeNvcc
) -> None:
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include <cuda_fp16.h>\nint a;\n')
    (tmp_path / "b.cuh").write_text('# include "c.cuh"\nint b;\n')
    (tmp_path / "c.cuh").write_text("int c;\n")

    def is_built(arch: str = "sm_90", flag: str = "-lineinfo", **constants: int) -> bool:
        built = nvcc.find().build(
            "a.cu", constants, arch=arch, flags=[flag] if flag else [], folder=tmp_path
        )
        return not built.from_cache

    assert is_built(K=1)
    assert not is_built(K=1)
    assert is_built(K=2)
    assert is_built(K=1, arch="sm_80")
    assert is_built(K=1, flag="")
    (tmp_path / "c.cuh").write_text("int d;\n")
    assert is_built(K=1)
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n')
    assert is_built(K=1)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert is_built(K=1)
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(FakeNvcc(tmp_path / "newer", "13.1").path))
    assert is_built(K=1)
    assert not is_built(K=1)


def test_an_exchanged_nvcc_is_asked_again(tmp_path: Path, compiler: FakeNvcc) -> None:
    assert nvcc.find().version == "13.0.88"
    FakeNvcc(compiler.path.parent, "12.9")
    assert nvcc.find().version == "12.9.88"


def test_warnings_of_nvcc_are_shown(compiler: FakeNvcc, capsys: pytest.CaptureFixture[str]) -> None:
    compiler.warn("ptxas info : fine\nptxas warning : Registers are spilled to local memory\n")
    nvcc.find().build(SOURCE, {}, arch="sm_90")
    assert capsys.readouterr().err == (
        "pcnn-bench: nvcc on relu.cu: ptxas warning : Registers are spilled to local memory\n"
    )


def without_real_toolkits(original: object) -> object:
    """The same places in words, none of them there: the machine under test may have a toolkit."""

    def places() -> list[tuple[None, str]]:
        assert callable(original)
        return [(None, words) for _, words in original()]

    return places


def test_a_missing_nvcc_names_the_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(nvcc, "_usual_folders", without_real_toolkits(nvcc._usual_folders))
    said = message_of_building()
    for word in ("PATH", "CUDA_HOME=", "CUDA_PATH (not set)", "/usr/local/cuda/bin", "--nvcc"):
        assert word in said


def test_nvcc_is_found_in_its_usual_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("CUDA_PATH", "CUDA_HOME"):  # looked at in the other order
        fake = FakeNvcc(tmp_path / name / "bin")
        monkeypatch.setenv(name, str(tmp_path / name))
        assert nvcc.find().path == fake.path
    on_path = FakeNvcc(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(on_path.path.parent))
    assert nvcc.find().path == on_path.path
    named = FakeNvcc(tmp_path / "named")
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(named.path))
    assert nvcc.find().path == named.path


def test_a_named_nvcc_that_is_missing_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(tmp_path / "nvcc"))
    assert "--nvcc or PCNN_BENCH_NVCC: " in message_of_building()


def test_a_named_nvcc_that_is_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "nvcc"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(other))
    assert "says 'hello', not a CUDA release" in message_of_building()
    other.write_bytes(b"\x7fELF nonsense")
    assert "cannot be run (Exec format error)" in message_of_building()


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "In file included from cuda_runtime.h:82:\nhost_config.h:143:2: error: #error -- "
            "unsupported GNU version! gcc versions later than 12 are not supported! The nvcc flag",
            "gcc versions later than 12 are not supported; install an older one and name it in the "
            'config, as in cuda.nvcc_flags: ["-ccbin", "g++-12"]',
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_90'",
            "cannot compile for sm_90 (it knows sm_75, sm_80, sm_90, sm_100); install a newer CUDA",
        ),
        (
            "nvcc fatal   : Value 'sm_90' is not defined for option 'gpu-architecture'",
            "cannot compile for sm_90",
        ),
        (
            "gcc: No such file or directory\n"
            "nvcc fatal   : Failed to preprocess host compiler properties.",
            "finds no host compiler (gcc: No such file or directory); install g++",
        ),
        (
            'noise\nrelu.cu(3): error: identifier "SCALE" is undefined\n\n1 error detected',
            'refuses relu.cu: relu.cu(3): error: identifier "SCALE" is undefined',
        ),
        ("", "refuses relu.cu: no message"),
    ],
)
def test_what_nvcc_says_becomes_one_line(compiler: FakeNvcc, stderr: str, expected: str) -> None:
    compiler.fail(stderr)
    said = message_of_building()
    assert said.startswith(f"nvcc 13.0.88 ({compiler.path}) ")
    assert expected in said


def test_a_gpu_older_than_the_toolkit_wants_an_older_one(compiler: FakeNvcc) -> None:
    compiler.fail("nvcc fatal   : Unsupported gpu architecture 'sm_61'")
    with pytest.raises(DeviceError, match="use an older CUDA toolkit"):
        nvcc.find().build(SOURCE, {}, arch="sm_61")


def test_an_unwritable_cache_still_builds(
    compiler: FakeNvcc,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        built = nvcc.find().build(SOURCE, {}, arch="sm_90")
        assert built.cubin.startswith(b"cubin")
        assert built.file is None
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "kernels are not cached" in err
