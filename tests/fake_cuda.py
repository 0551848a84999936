"""Stand-ins for what a machine without a GPU lacks: a driver library, an nvcc, and PyCUDA."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

LIBCUDA = """
#include <stdlib.h>
#include <string.h>
static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
int cuInit(unsigned flags) { return number("FAKE_INIT", 0); }
int cuDriverGetVersion(int *version) { *version = number("FAKE_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device)
{
    strncpy(name, "Fake H200", length);
    name[8] += device;
    return 0;
}
int cuDeviceGetUuid(unsigned char *octets, int device) { memset(octets, 0xab, 16); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
"""

NVCC = """#!/bin/sh
echo "$*" >>"{log}"
case "$1" in
--version)
    echo "nvcc: NVIDIA (R) Cuda compiler driver"
    echo "Cuda compilation tools, release {release}, V{release}.88"
    exit 0 ;;
--list-gpu-code)
    printf 'sm_75\\nsm_80\\nsm_90\\nsm_100\\n'
    exit 0 ;;
esac
if [ -f "{failure}" ]; then cat "{failure}" >&2; exit 1; fi
if [ -f "{warning}" ]; then cat "{warning}" >&2; fi
for word; do
    if [ "$previous" = -o ]; then echo "cubin $*" >"$word"; fi
    previous=$word
done
"""


class FakeNvcc:
    """A shell script that writes its own command line where a cubin should go, and can fail."""

    def __init__(self, folder: Path, release: str = "13.0") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "nvcc"
        self._log = folder / "calls.txt"
        self._failure = folder / "failure.txt"
        self._warning = folder / "warning.txt"
        self.path.write_text(
            NVCC.format(
                log=self._log, failure=self._failure, warning=self._warning, release=release
            )
        )
        self.path.chmod(0o755)

    def calls(self) -> list[str]:
        """The command lines so far."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    def fail(self, stderr: str) -> None:
        """Let every build fail with this text."""
        self._failure.write_text(stderr)

    def warn(self, stderr: str) -> None:
        """Let every build print this text and succeed."""
        self._warning.write_text(stderr)


class Error(Exception):
    """Like ``pycuda.driver.Error``."""


class LogicError(Error):
    """Like ``pycuda.driver.LogicError``."""


class MemoryError(Error):
    """Like ``pycuda.driver.MemoryError``."""


class FakePycuda:
    """The calls made, real memory behind made-up addresses, and what is to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stack = 0
        self.retained = 0
        self.memory: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.free_byte_count = 2**30
        self.event_count = 0
        self.clock_ms = 0.0
        self.launches: list[tuple[str, Any, Any, list[Any], int]] = []
        self.formats: dict[str, str] = {}
        self.shared: list[int] = []
        self.failures: dict[str, Exception] = {}
        self.refuse: Callable[[bytes], bool] = lambda cubin: False
        self.refusal: Exception = LogicError(
            "cuModuleLoadDataEx failed: device kernel image is invalid - "
        )
        self.loaded: list[bytes] = []

    def call(self, name: str) -> None:
        """Note a call; raise if it is to fail."""
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]

    def bytes_at(self, address: int, byte_count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The memory at an address, which must lie inside one allocation."""
        for base, content in self.memory.items():
            if base <= address and address + byte_count <= base + content.size:
                return content[address - base : address - base + byte_count]
        raise LogicError("invalid address")

    def module(self) -> ModuleType:
        """What is found as ``pycuda.driver``."""
        fake = self

        class Stream:
            handle = 7

            def __init__(self) -> None:
                fake.call("Stream")

            def synchronize(self) -> None:
                fake.call("synchronize")

        class Event:
            def __init__(self) -> None:
                fake.event_count += 1
                self.at_ms = float("nan")

            def record(self, stream: object = None) -> Event:
                assert isinstance(stream, Stream)
                fake.call("record")
                fake.clock_ms += 1.5
                self.at_ms = fake.clock_ms
                return self

            def time_since(self, start: Event) -> float:
                return self.at_ms - start.at_ms

        class Context:
            def push(self) -> None:
                fake.call("push")
                fake.stack += 1

            @staticmethod
            def pop() -> None:
                fake.call("pop")
                fake.stack -= 1

            def detach(self) -> None:
                fake.call("detach")
                fake.retained -= 1

        class Device:
            def __init__(self, ordinal: int) -> None:
                self.ordinal = ordinal

            def retain_primary_context(self) -> Context:
                fake.call("retain")
                fake.retained += 1
                return Context()

            def compute_capability(self) -> tuple[int, int]:
                fake.call("compute_capability")
                return 9, 0

            def name(self) -> str:
                return "Fake H200"

            def total_memory(self) -> int:
                return 2**30

            def get_attribute(self, attribute: str) -> int:
                if attribute == "memory clock":
                    raise LogicError("cuDeviceGetAttribute failed: invalid argument")
                return {"clock": 1_980_000, "multiprocessors": 132}[attribute]

        class Allocation:
            def __init__(self, address: int) -> None:
                self.address = address

            def __int__(self) -> int:
                return self.address

            def free(self) -> None:
                fake.call("free")
                fake.free_byte_count += fake.memory.pop(self.address).size

        class Function:
            def __init__(self, name: str) -> None:
                self.name = name

            def prepare(self, arg_types: str) -> Function:
                fake.formats[self.name] = arg_types
                return self

            def prepared_async_call(
                self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0
            ) -> None:
                assert isinstance(stream, Stream)
                assert isinstance(block, tuple)
                fake.call("launch")
                assert not any(isinstance(value, np.generic) for value in args)
                struct.pack(fake.formats[self.name], *args)
                fake.launches.append((self.name, grid, block, list(args), shared_size))

            def set_attribute(self, attribute: str, value: int) -> None:
                assert attribute == "dynamic shared"
                fake.call("set_attribute")
                fake.shared.append(value)

        def mem_alloc(byte_count: int) -> Allocation:
            fake.call("mem_alloc")
            if byte_count > fake.free_byte_count:
                raise MemoryError("cuMemAlloc failed: out of memory")
            address = 2**40 + 2**32 * (len(fake.calls))
            fake.memory[address] = np.zeros(byte_count, np.uint8)
            fake.free_byte_count -= byte_count
            return Allocation(address)

        def memcpy_htod_async(dest: int, src: Any, stream: Any = None) -> None:
            assert isinstance(stream, Stream)
            assert src.flags.c_contiguous
            fake.call("htod")
            fake.bytes_at(dest, src.nbytes)[:] = src.reshape(-1).view(np.uint8)

        def memcpy_dtoh_async(dest: Any, src: int, stream: Any = None) -> None:
            assert isinstance(stream, Stream)
            fake.call("dtoh")
            dest.reshape(-1).view(np.uint8)[:] = fake.bytes_at(src, dest.nbytes)

        def memset_d8_async(dest: int, data: int, size: int, stream: Any = None) -> None:
            assert isinstance(stream, Stream)
            fake.call("memset")
            fake.bytes_at(dest, size)[:] = data

        def module_from_buffer(cubin: bytes) -> SimpleNamespace:
            fake.call("module_from_buffer")
            if fake.refuse(cubin):
                raise fake.refusal
            fake.loaded.append(cubin)
            return SimpleNamespace(get_function=Function)

        driver = ModuleType("pycuda.driver")
        driver.__dict__.update(
            Error=Error, LogicError=LogicError, MemoryError=MemoryError,
            Device=Device, Stream=Stream, Event=Event,
            init=lambda: fake.call("init"),
            mem_alloc=mem_alloc, mem_get_info=lambda: (fake.free_byte_count, 2**30),
            memcpy_htod_async=memcpy_htod_async, memcpy_dtoh_async=memcpy_dtoh_async,
            memset_d8_async=memset_d8_async, module_from_buffer=module_from_buffer,
            device_attribute=SimpleNamespace(
                CLOCK_RATE="clock", MEMORY_CLOCK_RATE="memory clock",
                MULTIPROCESSOR_COUNT="multiprocessors",
            ),
            function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic shared"),
        )  # fmt: skip
        return driver

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let ``import pycuda.driver`` find it."""
        package = ModuleType("pycuda")
        driver = self.module()
        package.__dict__.update(VERSION_TEXT="2026.1", driver=driver)
        monkeypatch.setitem(sys.modules, "pycuda", package)
        monkeypatch.setitem(sys.modules, "pycuda.driver", driver)


def build_libcuda(folder: Path) -> Path:
    """Compile the fake driver; it reads FAKE_INIT, FAKE_VERSION and FAKE_COUNT at each call."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a fake driver with")
    source = folder / "fake.c"
    source.write_text(LIBCUDA)
    library = folder / "libfakecuda.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def isolate(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Take away what the machine under test may have: variables, toolkits, cached kernels."""
    for name in (
        "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "PCNN_BENCH_NVCC", "PCNN_BENCH_LIBCUDA",
        "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "FAKE_INIT", "FAKE_VERSION", "FAKE_COUNT",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCNN_BENCH_CACHE", str(cache))
