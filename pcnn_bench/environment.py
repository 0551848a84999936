"""What ran where: versions, processor, limits and GPU for environment.json, without names of persons or hosts."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from pcnn_bench import __version__

ROOT = Path(__file__).resolve().parent.parent
"""The package's own checkout, if it runs from one."""
PACKAGES = (
    "numpy", "scipy", "threadpoolctl", "pycuda", "cuda-bindings", "nvidia-ml-py", "torch",
)  # fmt: skip
"""Packages whose version can change a number."""
VARIABLE_PREFIXES = (
    "OPENBLAS_", "OMP_", "MKL_", "BLIS_", "CUDA_", "NVCC_", "PYCUDA_", "PCNN_BENCH_",
)  # fmt: skip
"""Variables that can change a number: threads, kernels chosen, devices, compilers."""
GIT_TIMEOUT_S = 10
"""A network file system may hang; a run must not."""
MEBIBYTE = 1 << 20
THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clocks event reasons."""


def collect(
    device_description: Mapping[str, Any] | None,
    blas: Sequence[Mapping[str, Any]] | None,
    *,
    with_host: bool = False,
) -> dict[str, Any]:
    """The content of environment.json; absent is None.

    Host name, user name and absolute paths are left out unless ``with_host``.

    Args:
        device_description: What ``Device.describe`` says, None without a device.
        blas: What each BLAS says of itself.
        with_host: Whether the file may tell whose machine it was.
    """
    device = dict(device_description) if device_description is not None else None
    found: dict[str, Any] = {
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "package": {"version": __version__, "commit": commit(), "is_modified": is_modified()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: package_version(name) for name in PACKAGES},
        "cpu": _cpu(),
        "memory": {
            "total_byte_count": _memory_total(),
            "limit_byte_count": memory_limit(),
        },
        "variables": _variables(with_host),
        "blas": [dict(library) for library in blas] if blas is not None else None,
        "device": device,
        "gpu": gpu_state((device or {}).get("uuid")),
    }
    if not with_host:
        return {key: _without_folders(value) for key, value in found.items()}
    found["host"] = {
        "name": platform.node(),
        "user": _attempt(getpass.getuser),
        "package_folder": str(ROOT),
        "python": sys.executable,
    }
    return found


def commit() -> str | None:
    """The short commit of the package's own checkout, else what ``PCNN_BENCH_COMMIT`` says; else None.

    The variable is for copies without a history, as in a container.
    """
    return _git("rev-parse", "--short", "HEAD") or os.environ.get("PCNN_BENCH_COMMIT") or None


def is_modified() -> bool | None:
    """Whether that checkout holds changes that are not committed; None where there is none."""
    changes = _git("status", "--porcelain") if _git("rev-parse", "HEAD") else None
    return None if changes is None else bool(changes)


def peak_memory_bytes() -> int | None:
    """The most memory this process has held; None where the system does not count it.

    Linux's VmHWM, because its getrusage starts a new process with what its parent held.
    """
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024  # "kB" there means KiB
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS alone counts in bytes


def package_version(name: str) -> str | None:
    """The installed version of a Python package; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """As ``AMD EPYC 7B13``."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def cpu_limit(
    groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Processors that this process's control group may use at a time; None without a limit."""
    limits = []
    for folder in _group_folders(groups, own, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(
    groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes that this process's control group may hold; None without a limit."""
    limits = [_group_memory(folder)[0] for folder in _group_folders(groups, own, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_bytes(
    groups: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self/cgroup"),
    meminfo: Path = Path("/proc/meminfo"),
) -> tuple[int, int]:
    """(available, total): the machine's, or what its control groups leave of them.

    Both are ``sys.maxsize`` where the system does not say, so that nothing is refused there.
    """
    # better than the free pages: it counts the caches that the system would give up
    available = int(_fields(meminfo).get("MemAvailable:", sys.maxsize >> 10)) << 10
    total = _memory_total() or sys.maxsize
    for folder in _group_folders(groups, own, "memory"):
        limit, used = _group_memory(folder)
        if limit is not None:
            available, total = min(available, max(0, limit - used)), min(total, limit)
    return available, total


def cache_folder(kind: str) -> Path:
    """Where things of this kind are kept between runs: below ``$PCNN_BENCH_CACHE``, else the user's cache."""
    root = os.environ.get("PCNN_BENCH_CACHE")
    found = Path(root) if root else user_cache_path("pcnn-bench", appauthor=False)
    return Path(os.path.abspath(found)) / kind  # compilers are started in other folders


def gpu_state(uuid: str | None) -> dict[str, Any] | None:
    """Clocks, power, temperature and load of one GPU, from NVML; None without nvidia-ml-py.

    The GPU is found by its UUID, since CUDA and NVML count in different orders. What it does not report is None.
    """
    if uuid is None:
        return None
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # not installed, no driver, or one that does not fit: the run goes on without
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        return _nvml_state(nvml, handle)
    except Exception:  # the UUID of a part of a GPU, say
        return None
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()


def _nvml_state(nvml: Any, handle: Any) -> dict[str, Any]:
    """Each field by itself, since many GPUs refuse some."""

    def ask(function: str, *arguments: Any) -> Any:
        return _attempt(lambda: getattr(nvml, function)(handle, *arguments))

    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its name before driver 535
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    sm, memory, celsius = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
    return {
        "driver": _attempt(nvml.nvmlSystemGetDriverVersion),
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", sm),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", sm),
        "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", memory),
        "memory_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", memory),
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "temperature_c": ask("nvmlDeviceGetTemperature", celsius),
        "throttle_reasons": None if reasons is None else _throttle_names(reasons),
        "persistence_mode": ask("nvmlDeviceGetPersistenceMode"),
        "process_count": None if processes is None else len(processes),
    }


def _throttle_names(bits: int) -> list[str]:
    known = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return [*known, hex(unknown)] if unknown else known


def _cpu() -> dict[str, Any]:
    """The processor and how much of it this process gets."""
    governor = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    affinity = _attempt(lambda: len(os.sched_getaffinity(0)))  # Linux only
    return {
        "model": cpu_model(),
        "logical_count": os.cpu_count(),
        "usable_count": affinity,
        "limit": cpu_limit(),
        "governor": governor or None,
        "load_average": _attempt(lambda: [round(load, 2) for load in os.getloadavg()]),
    }


def _memory_total() -> int | None:
    pages = _attempt(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return pages if isinstance(pages, int) and pages > 0 else None


def _variables(with_host: bool) -> dict[str, str]:
    """The variables that can change a number; a path becomes ``set``, since it may name a person."""
    return {
        name: "set" if "/" in value and not with_host else value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLE_PREFIXES)
    }


def _group_folders(groups: Path, own: Path, controller: str) -> list[Path]:
    """The folders of this process's control group and of all above it, versions 1 and 2."""
    folders = [groups, groups / controller]
    for line in _read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = groups / controller if controllers else groups
        parts = Path(path.lstrip("/")).parts
        folders += [base.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
    return folders


def _group_memory(folder: Path) -> tuple[int | None, int]:
    """(limit, used) of one control group; None without a limit. Caches of files do not count as used."""
    version_2 = ("memory.max", "memory.current", "inactive_file")
    version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for limit, used, inactive in (version_2, version_1):
        text = _read(folder / limit)
        if text.isdigit() and int(text) < 1 << 60:  # version 1 says "no limit" with a huge number
            caches = int(_fields(folder / "memory.stat").get(inactive, 0))
            return int(text), int(_read(folder / used) or 0) - caches
    return None, 0


def _fields(file: Path) -> dict[str, str]:
    """First word -> second word of every line."""
    lines = (line.split() for line in _read(file).splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def _git(*arguments: str) -> str | None:
    """What git says of the package's own checkout; None where there is none, or no git.

    Only a ``.git`` beside the package counts: a package installed inside somebody's repository is not theirs.
    """
    if not (ROOT / ".git").exists():
        return None
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def _without_folders(value: Any) -> Any:
    """The same with every absolute path cut to its last part, at any depth."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and os.path.isabs(value):
        return os.path.basename(value)
    return value


def _attempt(question: Callable[[], Any]) -> Any:
    """The answer, or None where this system has none."""
    try:
        return question()
    except Exception:
        return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
