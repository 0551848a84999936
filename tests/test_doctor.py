"""What doctor says of machines that have, lack, or only half have what is needed."""

from __future__ import annotations

import builtins
import json
from importlib import metadata
from pathlib import Path

import pytest
from fake_cuda import FakeNvcc, FakePycuda, build_libcuda, isolate

from pcnn_bench import doctor
from pcnn_bench.doctor import Finding
from pcnn_cuda import diagnosis, nvcc


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libcuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(tmp_path / "no libcuda"))
    monkeypatch.setattr(metadata, "version", installed)


def installed(name: str) -> str:
    versions = {"pycuda": "2026.1", "cuda-bindings": "13.0.3"}
    if name not in versions:
        raise metadata.PackageNotFoundError(name)
    return versions[name]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvcc:
    fake = FakeNvcc(tmp_path / "toolkit")
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(fake.path))
    return fake


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, libcuda: Path) -> FakePycuda:
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(libcuda))
    fake = FakePycuda()
    fake.install(monkeypatch)
    return fake


def findings() -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in diagnosis.diagnose()}


def test_a_complete_machine_lacks_nothing(gpu: FakePycuda, compiler: FakeNvcc) -> None:
    found = findings()
    assert [each["status"] for each in found.values()] == ["ok"] * len(found)
    assert found["gpu:0"]["found"] == "Fake H200, sm_90"
    assert found["nvcc"]["found"] == f"13.0.88 ({compiler.path})"
    assert found["nvcc and driver"]["found"] == "CUDA 13.0 of nvcc on CUDA 13.0 of the driver"
    assert found["PyCUDA"]["found"] == "2026.1"
    assert "-arch=sm_90" in compiler.calls()[-1]
    assert found["--device gpu"]["found"] == "can be used"


def test_without_a_gpu_nothing_of_it_is_a_lack(compiler: FakeNvcc) -> None:
    found = findings()
    assert "lack" not in {each["status"] for each in found.values()}
    assert found["NVIDIA driver"]["status"] == "note"
    assert "not tried without a GPU" in found["PyCUDA"]["found"]
    assert found["--device gpu"]["found"].startswith("not usable: no NVIDIA driver")
    assert found["--device emulated"]["status"] == "ok"


def test_hidden_gpus_name_the_variable(
    gpu: FakePycuda, compiler: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_INIT", "100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = findings()
    assert "CUDA_VISIBLE_DEVICES='-1' is set" in found["gpu:0"]["found"]
    assert "unset it" in found["gpu:0"]["remedy"]
    assert found["--device gpu"]["status"] == "note"


def test_a_broken_driver_is_a_lack_with_its_remedy(
    gpu: FakePycuda, compiler: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_INIT", "803")
    driver = findings()["NVIDIA driver"]
    assert driver["status"] == "lack"
    assert "error 803" in driver["found"]
    assert "restart the machine" in driver["remedy"]


@pytest.mark.parametrize(
    ("version", "status"), [("12090", "lack"), ("13000", "ok"), ("13020", "ok")]
)
def test_nvcc_must_not_be_newer_than_the_driver(
    gpu: FakePycuda,
    compiler: FakeNvcc,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    status: str,
) -> None:
    monkeypatch.setenv("FAKE_VERSION", version)
    assert findings()["nvcc and driver"]["status"] == status


def test_a_newer_minor_version_of_nvcc_is_a_note(
    gpu: FakePycuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(FakeNvcc(tmp_path / "newer", "13.2").path))
    fit = findings()["nvcc and driver"]
    assert (fit["status"], fit["found"]) == (
        "note", "CUDA 13.2 of nvcc on CUDA 13.0 of the driver: most kernels run",
    )  # fmt: skip


def test_a_missing_nvcc_is_a_lack_only_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libcuda: Path
) -> None:
    monkeypatch.setenv("PCNN_BENCH_NVCC", str(tmp_path / "nowhere"))
    assert findings()["nvcc"]["status"] == "note"
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(libcuda))
    found = findings()
    assert found["nvcc"]["status"] == "lack"
    assert "nowhere is not there" in found["nvcc"]["found"]
    assert "name the file nvcc itself" in found["nvcc"]["remedy"]
    assert "nvcc" in found["--device gpu"]["found"]


def test_a_host_compiler_that_is_too_new_is_found_by_trying(
    gpu: FakePycuda, compiler: FakeNvcc
) -> None:
    compiler.fail("error: #error -- unsupported GNU version! gcc versions later than 12 are not")
    trial = findings()["nvcc for sm_90"]
    assert trial["status"] == "lack"
    assert "gcc versions later than 12" in trial["found"]
    assert "-ccbin" in trial["remedy"]


def test_missing_packages_are_named(
    gpu: FakePycuda, compiler: FakeNvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("pycuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="pycuda")
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    original = builtins.__import__
    monkeypatch.setattr(metadata, "version", none_installed)
    monkeypatch.setattr(builtins, "__import__", refuse)
    found = findings()
    assert (found["PyCUDA"]["status"], found["cuda-bindings"]["status"]) == ("lack", "note")
    assert 'pip install "pcnn-bench[cuda]"' in found["PyCUDA"]["remedy"]


def test_an_unwritable_cache_is_noted(
    compiler: FakeNvcc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert findings()["kernel cache"]["status"] == "ok"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(tmp_path / "file"))
    cache = findings()["kernel cache"]
    assert cache["status"] == "note"
    assert "PCNN_BENCH_CACHE" in cache["remedy"]


def test_looking_leaves_nothing_but_the_version_of_nvcc(compiler: FakeNvcc, tmp_path: Path) -> None:
    diagnosis.diagnose()
    assert [file.name for file in nvcc.cubin_folder().iterdir()] == ["nvcc.json"]


# doctor as a whole


def test_a_machine_with_numpy_can_run(compiler: FakeNvcc) -> None:
    found = doctor.diagnose()
    assert doctor.exit_code(found) == 0
    names = [each.name for each in found]
    assert names[-1] == "--engine baseline"
    assert {"Python", "NumPy", "BLAS", "nvcc", "--device emulated", "disk"} <= set(names)
    assert {each.status for each in found} <= {"ok", "lack", "note"}
    assert all(each.found for each in found)


def test_the_table_fits_80_columns(compiler: FakeNvcc) -> None:
    table = doctor.render([*doctor.diagnose(), Finding("x", "lack", "/long" * 40, "remedy " * 30)])
    assert max(map(len, table.splitlines())) <= 80
    assert "-> remedy" in table


def test_json_is_a_list_of_findings(compiler: FakeNvcc) -> None:
    found = doctor.diagnose()
    read = json.loads(doctor.as_json(found))
    assert [Finding(**each) for each in read] == found


def test_without_numpy_nothing_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name == "numpy":
            raise ImportError("libopenblas.so: cannot open\nshared object file")
        return original(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    found = doctor.diagnose()
    assert doctor.exit_code(found) == 3
    assert found[-1].status == "lack"
    assert "NumPy does not work: libopenblas.so: cannot open shared" in found[-1].found


def test_a_blas_that_multiplies_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, compiler: FakeNvcc
) -> None:
    monkeypatch.setattr(doctor, "TRIAL_SIZE", 65.5, raising=True)
    import numpy as np

    ones = np.ones
    monkeypatch.setattr(np, "ones", lambda shape, dtype: ones((65, 65), dtype))
    found = doctor.diagnose()
    assert doctor.exit_code(found) == 3
    assert found[-1].found == "NumPy multiplies wrongly"


def test_a_forced_kernel_of_openblas_is_noted(
    monkeypatch: pytest.MonkeyPatch, compiler: FakeNvcc
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    (finding,) = [each for each in doctor.diagnose() if each.name == "OPENBLAS_CORETYPE"]
    assert finding.status == "note"
    assert "Prescott" in finding.found
