"""The CUDA tool chain: finding nvcc, building cubins, and the cache that spares a warm start nvcc."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata, resources
from pathlib import Path

from pcnn_bench.environment import cache_folder
from pcnn_bench.errors import DeviceError
from pcnn_cuda.launch import source_files

FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-warn-spills")
"""What every kernel is built with; a config's ``cuda.nvcc_flags`` come after them."""

_RELEASE = re.compile(r"release (\d+)\.(\d+)(?:, V([\d.]+))?")
_FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""nvcc itself reads these, so a cubin depends on them."""


def package_folder() -> Path:
    """Where the ``.cu`` and ``.cuh`` files lie."""
    return Path(str(resources.files("pcnn_cuda")))


def cubin_folder() -> Path:
    """Where cubins are kept: in ``$PCNN_BENCH_CACHE``, else in the user's cache folder."""
    return cache_folder("cubin")


def note(text: str) -> None:
    """Tell the person at the keyboard something that does not stop the work."""
    print(f"pcnn-bench: {text}", file=sys.stderr)


_note_once = cache(note)


@dataclass(frozen=True, slots=True)
class Built:
    """A cubin and where it came from."""

    cubin: bytes
    from_cache: bool
    file: Path | None
    """In the cache; None where that cannot be written."""
    log: str = ""
    """What nvcc printed; empty for a cubin from the cache."""


@dataclass(frozen=True)
class Toolkit:
    """One nvcc, and the cache of what it built. Its methods may be called from several threads."""

    path: Path
    cache: Path

    @cached_property
    def version(self) -> str:
        """As ``13.0.88``; remembered beside the cubins until nvcc's file changes.

        A wrapper script keeps its date when the toolkit behind it is exchanged: the old cubins
        are used then, and are still right.

        Raises:
            DeviceError: the file cannot be run, or is no nvcc.
        """
        memory = self.cache / "nvcc.json"
        try:
            real = self.path.resolve()
            status = real.stat()
        except OSError as error:
            raise DeviceError(f"nvcc: {self.path} cannot be read ({error.strerror})") from error
        key = f"{real}|{status.st_mtime_ns}|{status.st_size}"
        known = _read_versions(memory)
        if key not in known:
            known = {key: self._ask_version()}
            _write_whole(memory, json.dumps(known).encode())
        return known[key]

    @property
    def cuda(self) -> tuple[int, int]:
        """The CUDA version, as (13, 0)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def build(
        self,
        source: str,
        constants: Mapping[str, int],
        *,
        arch: str,
        flags: Sequence[str] = (),
        folder: Path | None = None,
        rebuild: bool = False,
    ) -> Built:
        """The cubin of ``folder/source`` (the package's, by default) for ``arch`` (``sm_90``).

        ``rebuild`` ignores and replaces what the cache holds.

        Raises:
            DeviceError: nvcc or its host compiler is missing, does not fit, or refuses the source.
        """
        folder = folder or package_folder()
        command = [*FLAGS, *flags, f"-arch={arch}"]
        command += [f"-D{name}={value}" for name, value in sorted(constants.items())]
        kept = self.cache / f"{Path(source).stem}-{self._key(source, folder, command)}.cubin"
        if not rebuild:
            try:
                return Built(kept.read_bytes(), True, kept)
            except OSError:
                pass  # not built yet, or unreadable: build it
        with tempfile.TemporaryDirectory(prefix="pcnn-bench-") as scratch:
            output = Path(scratch) / "out.cubin"
            log = self._run(
                ["-cubin", *command, "-I", str(folder), str(folder / source), "-o", str(output)],
                source,
                arch,
            )
            cubin = output.read_bytes()
        return Built(cubin, False, kept if _write_whole(kept, cubin) else None, log)

    def _key(self, source: str, folder: Path, command: Sequence[str]) -> str:
        """Names all that a cubin depends on; the host compiler does not count, it preprocesses."""
        variables = [os.environ.get(name, "") for name in _FLAG_VARIABLES]
        parts = [self.version, *variables, *command]
        try:
            texts = source_files(source, lambda name: (folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DeviceError(
                f"kernel source {folder / source} is not there; reinstall pcnn-bench"
            ) from error
        for name, text in texts.items():
            parts += [name, text]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _ask_version(self) -> str:
        done = _execute([str(self.path), "--version"])
        match = _RELEASE.search(done.stdout)
        if done.returncode or match is None:
            raise DeviceError(
                f"nvcc: {self.path} --version says {_first_line(done.stdout + done.stderr)!r}, "
                "not a CUDA release; name the real one with --nvcc or PCNN_BENCH_NVCC"
            )
        return match[3] or f"{match[1]}.{match[2]}"

    def _run(self, arguments: Sequence[str], source: str, arch: str) -> str:
        """Run nvcc and return what it printed; warnings go to the person at the keyboard.

        Raises:
            DeviceError: it failed.
        """
        done = _execute([str(self.path), *arguments])
        log = done.stdout + done.stderr
        if done.returncode:
            raise DeviceError(self._explain(log, source, arch))
        for line in log.splitlines():
            if "warning" in line.lower():
                note(f"nvcc on {source}: {line.strip()}")
        return log

    def _explain(self, log: str, source: str, arch: str) -> str:
        """One line for what nvcc said; the failures that people meet have a remedy of their own."""
        nvcc = f"nvcc {self.version} ({self.path})"
        too_new = re.search(r"unsupported (?:GNU|clang) version!?\s*([^!\n]*)", log, re.IGNORECASE)
        if too_new:
            return (
                f"{nvcc} refuses the host compiler: {too_new[1].strip() or 'unsupported version'}; "
                "install an older one and name it in the config, as in "
                'cuda.nvcc_flags: ["-ccbin", "g++-12"]'
            )
        if re.search(
            rf"unsupported gpu architecture|'{arch}' is not defined for option", log, re.IGNORECASE
        ):
            known = self.architectures()
            older = bool(known) and _arch_number(arch) < min(map(_arch_number, known))
            remedy = "use an older CUDA toolkit" if older else "install a newer CUDA toolkit"
            covered = f" (it knows {', '.join(known)})" if known else ""
            return (
                f"{nvcc} cannot compile for {arch}{covered}; {remedy}, or name its nvcc with --nvcc"
            )
        if "Failed to preprocess host compiler" in log or "Cannot find compiler" in log:
            return (
                f"{nvcc} finds no host compiler ({_first_line(log)}); install g++, or name one in the "
                'config, as in cuda.nvcc_flags: ["-ccbin", "g++-12"]'
            )
        return f"{nvcc} refuses {source}: {_first_error(log)}"

    def architectures(self) -> list[str]:
        """The GPU architectures that it compiles for, oldest first; empty if it does not say."""
        done = _execute([str(self.path), "--list-gpu-code"])
        names = re.findall(r"^sm_\d+[a-z]?$", done.stdout, re.MULTILINE)
        return [] if done.returncode else sorted(names, key=_arch_number)


def find() -> Toolkit:
    """The nvcc to use: ``$PCNN_BENCH_NVCC`` if set (as ``--nvcc`` does), else the first found.

    Looks at ``PATH``, ``CUDA_HOME``, ``CUDA_PATH``, ``/usr/local/cuda`` and NVIDIA's Python packages.

    Raises:
        DeviceError: none is there; names the places.
    """
    cubins = cubin_folder()
    named = os.environ.get("PCNN_BENCH_NVCC")
    if named:
        found = shutil.which(named)
        if found is None:
            raise DeviceError(
                f"--nvcc or PCNN_BENCH_NVCC: {named} is not there or cannot be run; "
                "name the file nvcc itself"
            )
        return Toolkit(Path(found), cubins)
    on_path = shutil.which("nvcc")
    if on_path:
        return Toolkit(Path(on_path), cubins)
    places = _usual_folders()
    for folder, _ in places:
        if folder and os.access(folder / "nvcc", os.X_OK):
            return Toolkit(folder / "nvcc", cubins)
    looked = ", ".join(["PATH", *(where for _, where in places)])
    raise DeviceError(
        f"nvcc not found: looked at {looked}; install the CUDA toolkit, or name its nvcc with "
        "--nvcc or PCNN_BENCH_NVCC"
    )


def _usual_folders() -> list[tuple[Path | None, str]]:
    """Where toolkits are installed, and the place in words; None where there is no such place."""
    homes = [(name, os.environ.get(name)) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [
        (Path(home) / "bin" if home else None, f"{name}={home}" if home else f"{name} (not set)")
        for name, home in homes
    ]
    wheel = _wheel_folder()
    return [
        *folders,
        (Path("/usr/local/cuda/bin"), "/usr/local/cuda/bin"),
        (
            wheel,
            f"the Python package nvidia-cuda-nvcc ({'incomplete' if wheel else 'not installed'})",
        ),
    ]


def _wheel_folder() -> Path | None:
    """Where the package nvidia-cuda-nvcc, if installed, puts its programs."""
    try:
        files = metadata.files("nvidia-cuda-nvcc") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).parent for file in files if file.name == "nvcc"), None)


def _execute(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end, in English so that the messages can be told apart.

    Raises:
        DeviceError: it cannot be started.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise DeviceError(
            f"nvcc: {command[0]} cannot be run ({error.strerror}); name another with --nvcc or "
            "PCNN_BENCH_NVCC"
        ) from error


def _read_versions(memory: Path) -> dict[str, str]:
    """What ``_write_whole`` left, or nothing if that cannot be read."""
    try:
        known = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    valid = isinstance(known, dict) and all(
        isinstance(version, str) and re.fullmatch(r"\d+(\.\d+)+", version)
        for version in known.values()
    )
    return known if valid else {}


def _write_whole(target: Path, data: bytes) -> bool:
    """Replace a cache file so that no reader sees half of it; False where that cannot be done."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".partial")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(partial, target)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        _note_once(
            f"{target.parent}: kernels are not cached ({error.strerror}); "
            "name another folder with PCNN_BENCH_CACHE"
        )
        return False
    return True


def _arch_number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def _first_error(log: str) -> str:
    """The line that says what is wrong, of a log that may begin with context or warnings."""
    telling = (
        line.strip() for line in log.splitlines() if re.search(r"error|fatal", line, re.IGNORECASE)
    )
    return next(telling, _first_line(log))
