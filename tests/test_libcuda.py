"""Whether a GPU is visible, and what is said where none is, against a stand-in for the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_cuda import FakePycuda, build_libcuda, isolate

from pcnn_bench.errors import DeviceError
from pcnn_cuda.pycuda_device import PycudaDevice, probe_gpu


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libcuda(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libcuda: Path) -> None:
    """One visible GPU."""
    isolate(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(libcuda))


@pytest.fixture
def pycuda(monkeypatch: pytest.MonkeyPatch) -> FakePycuda:
    fake = FakePycuda()
    fake.install(monkeypatch)
    return fake


def test_no_driver_is_a_reason_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", str(tmp_path / "libcuda.so.1"))
    status = probe_gpu()
    assert not status.visible
    assert status.reason == "no NVIDIA driver (libcuda.so.1) is installed"
    with pytest.raises(DeviceError, match=r"^gpu: no NVIDIA driver"):
        PycudaDevice()


def test_a_library_without_the_drivers_functions_is_a_broken_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PCNN_BENCH_LIBCUDA", "libc.so.6")
    with pytest.raises(DeviceError, match=r"^GPU: libcuda\.so\.1 has no cuInit.*: install"):
        probe_gpu()


@pytest.mark.parametrize("value", ["", "-1", "$0", "GPU-nonsense"])
@pytest.mark.parametrize(("init", "count"), [("100", "0"), ("101", "0"), ("0", "0")])
def test_no_visible_gpu_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, pycuda: FakePycuda, value: str, init: str, count: str
) -> None:
    monkeypatch.setenv("FAKE_INIT", init)
    monkeypatch.setenv("FAKE_COUNT", count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    status = probe_gpu()
    assert not status.visible
    assert f"CUDA_VISIBLE_DEVICES={value!r} is set" in status.reason
    with pytest.raises(DeviceError, match=re.escape(status.reason)):
        PycudaDevice()
    assert pycuda.calls == []


def test_a_stub_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_INIT", "34")
    assert "stub" in probe_gpu().reason


@pytest.mark.parametrize(
    ("init", "remedy"), [("803", "restart"), ("804", "update"), ("719", "CUresult")]
)
def test_a_broken_driver_is_an_error_even_for_auto(
    monkeypatch: pytest.MonkeyPatch, init: str, remedy: str
) -> None:
    monkeypatch.setenv("FAKE_INIT", init)
    with pytest.raises(DeviceError, match=rf"does not start \(error {init}\): .*{remedy}"):
        probe_gpu()


def test_a_visible_gpu_is_described_without_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_COUNT", "2")
    status = probe_gpu()
    assert (status.visible, status.driver_cuda) == (True, (13, 0))
    assert status.gpu_names == ("Fake H200", "Fake H201")
