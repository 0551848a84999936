"""The machine that the emulated device is: its memory and its processor."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> tuple[int, int]:
    """(available, total): the machine's, or what a control group leaves of them."""
    page = os.sysconf("SC_PAGE_SIZE")
    available = os.sysconf("SC_AVPHYS_PAGES") * page
    total = os.sysconf("SC_PHYS_PAGES") * page
    try:
        # better than free pages: it counts the caches that the kernel would give up
        available = int(_fields(Path("/proc/meminfo"))["MemAvailable:"]) * 1024
        limit = int(
            (_CONTROL_GROUP / "memory.max").read_text(encoding="ascii")
        )  # raises at "max", no limit
        used = int((_CONTROL_GROUP / "memory.current").read_text(encoding="ascii"))
        used -= int(_fields(_CONTROL_GROUP / "memory.stat")["inactive_file"])
    except (OSError, ValueError, KeyError):
        return available, total
    return min(available, max(0, limit - used)), min(total, limit)


def cpu_name() -> str:
    """The processor's model, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _fields(path: Path) -> dict[str, str]:
    """First word -> second word of every line."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}
