"""The host compiler of the emulated device, and the cache of what it built."""

from __future__ import annotations

import atexit
import ctypes
import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from pcnn_bench.environment import cache_folder
from pcnn_bench.errors import DeviceError

_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-pipe")
_ERROR = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE
)
_HEADER = re.compile(r"(?:\./)?(?:emulated_cuda|runtime)\.h")
_USER = re.compile(r"^([^\s:]+\.cuh?:\d+):", re.MULTILINE)
_SCRATCH = "building-"
"""How the folders of compilations under way begin."""
_ABANDONED_S = 86_400.0
"""A day: no compilation takes as long."""
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls) -> Compiler:
        """``$CXX`` if set, else the first of g++, c++ and clang++ on ``$PATH``.

        Raises:
            DeviceError: there is none, or it does not run.
        """
        given = os.environ.get("CXX", "")
        try:
            chosen = shlex.split(given)
        except ValueError as error:
            raise DeviceError(
                f"no C++ compiler for the emulated device: CXX={given} cannot be read "
                f"({error}); close the quote, or unset CXX"
            ) from None
        command = chosen or [name for name in _COMPILERS if shutil.which(name)][:1]
        remedy = "install g++ or run with --engine baseline"
        if not command:
            raise DeviceError(f"no C++ compiler for the emulated device on PATH; {remedy}")
        try:
            answer = _execute([*command, "--version"])
            answer.check_returncode()
        except (OSError, subprocess.CalledProcessError) as error:
            named = f"CXX={shlex.join(command)}" if chosen else command[0]
            raise DeviceError(
                f"no C++ compiler for the emulated device: {named} does not run ({error}); {remedy}"
            ) from None
        return cls(tuple(command), answer.stdout.partition("\n")[0])


def emulation_text(name: str) -> str:
    """The text of a C++ file of this package."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def build(
    compiler: Compiler,
    name: str,
    files: Mapping[str, str],
    flags: Sequence[str],
    link: Sequence[str] = (),
) -> tuple[Path, ctypes.CDLL]:
    """Compile ``files[name]``, which may include the others, to a shared library or take it from the cache; load it.

    Safe to call from several threads and processes at once.

    Raises:
        DeviceError: the compiler refuses the source, or its result cannot be loaded.
    """
    try:
        return _build_in(_folder(), compiler, name, files, flags, link)
    except (
        OSError
    ):  # a full disk, one that may not be executed from, something else in the file's place
        pass
    try:
        return _build_in(_temporary_folder(), compiler, name, files, flags, link)
    except OSError as error:
        raise DeviceError(
            f"{name}: what {shlex.join(compiler.command)} built cannot be kept or loaded: {error}; "
            "name a folder that programs may run from with PCNN_BENCH_CACHE"
        ) from None


def _build_in(
    folder: Path,
    compiler: Compiler,
    name: str,
    files: Mapping[str, str],
    flags: Sequence[str],
    link: Sequence[str],
) -> tuple[Path, ctypes.CDLL]:
    """Build or find the library in ``folder``, and load it.

    Raises:
        DeviceError: the compiler refuses the source.
        OSError: the library cannot be written or loaded there.
    """
    identity = json.dumps(
        [
            str(
                folder
            ),  # libraries are linked by name: two of one name in a process would be mixed up
            name,
            sorted(files.items()),
            *_FLAGS,
            *flags,
            *(Path(library).name for library in link),
            *compiler.command,
            compiler.version,
            _cpu(),
        ]
    )
    stem = f"{Path(name).stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
    path = folder / f"{stem}.so"
    if not _is_whole(path):  # also after an interrupted write or a full disk
        _compile(compiler, name, files, flags, link, path)
    try:
        return path, ctypes.CDLL(str(path))
    except OSError:
        _compile(compiler, name, files, flags, link, path)
    return path, ctypes.CDLL(str(path))


def source_lines(library: Path, offsets: Sequence[int]) -> list[str]:
    """For each code offset into ``library``, the ``file:line`` of a kernel, not of our headers, that it stems from."""
    if not offsets:
        return []
    command = [
        "addr2line",
        "-a",
        "-i",
        "-s",
        "-e",
        str(library),
        *(hex(offset) for offset in offsets),
    ]
    try:
        done = _execute(command)
        done.check_returncode()
    except (OSError, subprocess.CalledProcessError):
        return [f"+{offset:#x}" for offset in offsets]
    found = []
    for frames in re.split(r"^0x[0-9a-f]+$", done.stdout, flags=re.MULTILINE)[1:]:
        ours = [
            frame for frame in frames.split() if not _HEADER.match(frame) and frame[-1].isdigit()
        ]
        found.append(ours[0] if ours else "?")
    return found


def _compile(
    compiler: Compiler,
    name: str,
    files: Mapping[str, str],
    flags: Sequence[str],
    link: Sequence[str],
    path: Path,
) -> None:
    """Build in a folder of our own beside ``path``, then move the result there in one step."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=path.parent) as scratch:
        for file, text in files.items():
            target = Path(scratch, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        # Two commands: linking with -fsanitize=thread would add libtsan, whose call-outs the checker answers itself.
        for step in (
            [*_FLAGS, *flags, "-I.", "-x", "c++", "-c", name, "-o", "built.o"],
            ["-shared", "-pthread", f"-Wl,-soname,{path.name}", "built.o", *link, "-o", "built.so"],
        ):
            done = _execute([*compiler.command, *step], cwd=scratch)
            if done.returncode:
                if os.strerror(errno.ENOSPC) in done.stderr:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
                raise DeviceError(
                    f"{name}: {_first_error(done.stderr)} ({shlex.join(compiler.command)})"
                )
        library = Path(scratch, "built.so")
        with library.open("ab") as file_end:  # the loader ignores what follows; _is_whole does not
            file_end.write(hashlib.sha256(library.read_bytes()).digest())
        os.replace(library, path)


def _is_whole(path: Path) -> bool:
    """Does the file end in the digest of the rest? Loading a truncated library could end the process."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def _execute(command: Sequence[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end, in English so that the messages can be told apart."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )


def _first_error(stderr: str) -> str:
    """``file:line: text``; of a template of our headers, the line of the kernel that uses it."""
    match = _ERROR.search(stderr)
    if match is None:
        return next(
            (line for line in stderr.splitlines() if line.strip()),
            "the compiler failed and said nothing",
        )
    user = _USER.search(stderr) if _HEADER.match(match["file"]) else None
    place = user[1] if user else f"{match['file']}:{match['line']}"
    return f"{place}: {match['text']}"


@cache
def _cpu() -> str:
    """What ``-march=native`` depends on: a cache on a shared disk serves several machines."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        lines = list(os.uname())
        return " ".join(lines)
    return "\n".join(line for line in lines if line.startswith(wanted))


def _folder() -> Path:
    """The cache folder, or one that lasts as long as the process if that cannot be written."""
    folder = cache_folder("emulated")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return _temporary_folder()
    _prune(folder)
    return folder


@cache
def _prune(folder: Path) -> None:
    """Remove what compilations that were killed have left there."""
    for left in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="pcnn-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
