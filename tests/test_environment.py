"""environment.json: strict JSON, no names of persons or hosts, limits read right."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pcnn_bench import environment

DEVICE = {"name": "Fake H200", "uuid": "GPU-abab", "toolkit": "13.0.88", "driver": None}
BLAS = [{"internal_api": "openblas", "filepath": "/home/ada/lib/libopenblas.so", "num_threads": 1}]


def test_what_is_collected_is_strict_json() -> None:
    found = environment.collect(DEVICE, BLAS)
    read = json.loads(json.dumps(found, allow_nan=False))
    assert read["device"] == DEVICE
    assert read["python"].endswith(platform.python_version())
    assert read["packages"]["numpy"].count(".") >= 1
    assert read["cpu"]["logical_count"] >= 1
    assert read["memory"]["total_byte_count"] > 2**20
    offset = datetime.fromisoformat(read["time_utc"]).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0


def test_absent_is_none() -> None:
    found = environment.collect(None, None)
    assert (found["device"], found["blas"], found["gpu"]) == (None, None, None)


def test_nobody_is_named_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "ada-laptop")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setenv("CUDA_HOME", "/home/ada/cuda-13.0")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    found = environment.collect(DEVICE, BLAS)
    text = json.dumps(found)
    assert "ada" not in text
    assert str(environment.ROOT) not in text
    assert "host" not in found
    assert found["variables"]["CUDA_HOME"] == "set"
    assert found["variables"]["OMP_NUM_THREADS"] == "4"
    assert found["blas"][0]["filepath"] == "libopenblas.so"

    named = environment.collect(DEVICE, BLAS, with_host=True)
    assert (named["host"]["name"], named["host"]["user"]) == ("ada-laptop", "ada")
    assert named["variables"]["CUDA_HOME"] == "/home/ada/cuda-13.0"
    assert named["blas"] == BLAS


def make_repository(folder: Path) -> str:
    """A repository with one commit; its short name."""
    folder.mkdir(exist_ok=True)
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    done = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_is_the_checkouts_not_the_current_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, other = make_repository(tmp_path / "own"), make_repository(tmp_path / "other")
    monkeypatch.setattr(environment, "ROOT", tmp_path / "own")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.chdir(tmp_path / "other")
    assert environment.commit() == own
    assert len(other) >= 7
    assert environment.is_modified() is False
    (tmp_path / "own" / "new.cu").write_text("")
    assert environment.is_modified() is True


def test_a_package_installed_inside_a_repository_has_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_repository(tmp_path)
    inside = tmp_path / "site-packages"
    inside.mkdir()
    monkeypatch.setattr(environment, "ROOT", inside)
    assert environment.commit() is None
    assert environment.is_modified() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.commit() is None  # git does not know it as a repository
    monkeypatch.setenv("PATH", "")
    assert environment.commit() is None


def test_peak_memory_counts_what_was_held() -> None:
    code = (
        "from pcnn_bench.environment import peak_memory_bytes as peak\n"
        "before = peak(); block = b'x' * 50_000_000; print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=environment.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 45_000_000 < int(done.stdout) < 100_000_000


# Control groups


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_tightest_limit_of_version_2_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "0::/outer/inner\n")
    groups = tmp_path / "groups"
    write(groups / "outer" / "cpu.max", "150000 100000\n")
    write(groups / "outer" / "inner" / "cpu.max", "max 100000\n")
    write(groups / "outer" / "memory.max", "max\n")
    write(groups / "outer" / "inner" / "memory.max", "1073741824\n")
    assert environment.cpu_limit(groups, own) == 1.5
    assert environment.memory_limit(groups, own) == 2**30


def test_limits_of_version_1_are_read(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "5:cpu,cpuacct:/job\n4:memory:/job\n")
    groups = tmp_path / "groups"
    write(groups / "cpu" / "job" / "cpu.cfs_quota_us", "50000\n")
    write(groups / "cpu" / "job" / "cpu.cfs_period_us", "100000\n")
    write(groups / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    write(groups / "memory" / "job" / "memory.limit_in_bytes", "2097152\n")
    assert environment.cpu_limit(groups, own) == 0.5
    assert environment.memory_limit(groups, own) == 2097152


MEMINFO = "MemTotal:   9000000 kB\nMemAvailable:   4194304 kB\n"


@pytest.mark.parametrize(
    ("files", "available", "limit"),
    [
        ({}, 2**32, None),
        ({"memory.max": "max"}, 2**32, None),
        (
            # what the caches of files hold is given up when it is needed
            {
                "memory.max": str(2**30),
                "memory.current": str(2**29),
                "memory.stat": f"anon 1\ninactive_file {2**28}",
            },
            2**30 - 2**29 + 2**28,
            2**30,
        ),
        ({"memory.max": str(2**30), "memory.current": str(2**31)}, 0, 2**30),
        ({"memory.max": str(2**34), "memory.current": "0"}, 2**32, 2**34),
        (
            {
                "memory.limit_in_bytes": str(2**30),
                "memory.usage_in_bytes": str(2**29),
                "memory.stat": f"inactive_file 7\ntotal_inactive_file {2**28}",
            },
            2**30 - 2**29 + 2**28,
            2**30,
        ),
    ],
)
def test_available_memory_is_what_machine_and_control_group_leave(
    tmp_path: Path, files: dict[str, str], available: int, limit: int | None
) -> None:
    write(tmp_path / "own", "0::/job\n")
    write(tmp_path / "meminfo", MEMINFO)
    for name, text in files.items():
        write(tmp_path / "groups" / "job" / name, f"{text}\n")
    found = environment.memory_bytes(tmp_path / "groups", tmp_path / "own", tmp_path / "meminfo")
    machine = environment.collect(None, None)["memory"]["total_byte_count"]
    assert found == (available, min(machine, limit or machine))


def test_a_system_that_says_nothing_of_its_memory_is_not_refused_any(tmp_path: Path) -> None:
    available, _ = environment.memory_bytes(tmp_path, tmp_path / "own", tmp_path / "meminfo")
    assert available > 2**60


def test_no_limit_is_none(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "5:cpu:/\n4:memory:/\n")
    groups = tmp_path / "groups"
    write(groups / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(groups / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert environment.cpu_limit(groups, own) is None
    assert environment.memory_limit(groups, own) is None
    assert environment.cpu_limit(tmp_path / "none", tmp_path / "none") is None


# NVML


class FakeNvml(ModuleType):
    """Knows one GPU; what it does not have, it refuses as NVML does."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("pynvml")
        self.answers = answers
        self.open_count = 0

    def nvmlInit(self) -> None:
        self.open_count += 1

    def nvmlShutdown(self) -> None:
        self.open_count -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-abab":
            raise RuntimeError("Not Found")
        return "handle"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.03"

    def __getattr__(self, name: str) -> Any:
        def ask(handle: str, *arguments: int) -> Any:
            assert handle == "handle"
            if (name, *arguments) not in self.answers["known"]:
                raise RuntimeError("Not Supported")
            return self.answers["known"][name, *arguments]

        if not name.startswith("nvml"):
            raise AttributeError(name)
        return ask


def test_the_gpu_is_found_by_uuid_and_gaps_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(
        known={
            ("nvmlDeviceGetClockInfo", 1): 1980,
            ("nvmlDeviceGetMaxClockInfo", 1): 1980,
            ("nvmlDeviceGetPowerUsage",): 71500,
            ("nvmlDeviceGetTemperature", 0): 31,
            ("nvmlDeviceGetCurrentClocksThrottleReasons",): 0x1 | 0x20 | 0x1000,
            ("nvmlDeviceGetComputeRunningProcesses",): [object()],
        }
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert environment.gpu_state("GPU-abab") == {
        "driver": "580.159.03",
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": None,
        "memory_clock_max_mhz": None,
        "power_w": 71.5,
        "power_limit_w": None,
        "temperature_c": 31,
        "throttle_reasons": ["gpu_idle", "sw_thermal_slowdown", "0x1000"],
        "persistence_mode": None,
        "process_count": 1,
    }
    assert fake.open_count == 0
    assert environment.gpu_state("GPU-cdcd") is None
    assert fake.open_count == 0
    assert environment.gpu_state(None) is None


def test_no_nvml_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert environment.gpu_state("GPU-abab") is None
