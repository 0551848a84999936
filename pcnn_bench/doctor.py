"""What this machine has and lacks for pcnn-bench, each lack with its remedy."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast

from pcnn_bench import environment
from pcnn_bench.errors import PcnnError, UnavailableError

Status = Literal["ok", "lack", "note"]
BASELINE = "--engine baseline"
"""The finding on which everything rests: without NumPy nothing runs."""
WIDTH = 80
SMALL_DISK_BYTES = 200_000_000
"""A run folder with weights and figures is a few MB, a data set up to 170 MB."""
TRIAL_SIZE = 65
"""One over a BLAS block edge: sums of ones are exact, so a wrong BLAS shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: ``lack`` is missed here, ``note`` only where it is wanted."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def diagnose() -> list[Finding]:
    """Look at everything; what one look breaks is a finding, and the others go on."""
    baseline = _baseline()
    if baseline[-1].status != "ok":
        return baseline
    return [*baseline[:-1], *_machine(), *_data_sets(), *_cuda(), baseline[-1]]


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if this machine can run something, else 3."""
    works = any(each.name == BASELINE and each.status == "ok" for each in findings)
    return 0 if works else UnavailableError.exit_code


def render(findings: Sequence[Finding]) -> str:
    """A table of at most 80 columns, the remedies below what they would mend."""
    column = max(len(each.name) for each in findings) + len("note  ") + 2
    lines = []
    for each in findings:
        head = f"{each.status:<4}  {each.name}"
        lines += _wrapped(each.found, head.ljust(column), column)
        if each.remedy:
            lines += _wrapped(each.remedy, "-> ".rjust(column), column)
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> str:
    """The same for programs: a list of objects."""
    return json.dumps([asdict(each) for each in findings], indent=2)


def _wrapped(text: str, head: str, column: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * column, break_on_hyphens=False
    )


def _baseline() -> list[Finding]:
    """Python, NumPy and its BLAS; the last finding says whether the baseline can run."""
    python = Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    try:
        import numpy as np
        from threadpoolctl import threadpool_info

        ones = np.ones((TRIAL_SIZE, TRIAL_SIZE), np.float32)
        is_right = bool((ones @ ones == TRIAL_SIZE).all())
    except Exception as error:  # an import that fails can raise anything
        reason = " ".join(str(error).split())
        remedy = "pip install --force-reinstall numpy threadpoolctl"
        return [python, Finding(BASELINE, "lack", f"NumPy does not work: {reason}", remedy)]
    numpy = Finding("NumPy", "ok", np.__version__)
    libraries = [each for each in threadpool_info() if each.get("user_api") == "blas"]
    blas = [_blas(str(each["internal_api"]), each) for each in libraries] or [
        Finding("BLAS", "note", "its threads cannot be controlled, so times may not be sequential")
    ]
    core_type = os.environ.get("OPENBLAS_CORETYPE")
    if core_type:
        found = f"{core_type}: OpenBLAS does not choose for this processor, which may be slower"
        blas.append(Finding("OPENBLAS_CORETYPE", "note", found, "unset it unless it is needed"))
    if is_right:
        return [python, numpy, *blas, Finding(BASELINE, "ok", "can be used")]
    remedy = "set OPENBLAS_CORETYPE to an older processor, or install another NumPy"
    return [python, numpy, *blas, Finding(BASELINE, "lack", "NumPy multiplies wrongly", remedy)]


def _blas(name: str, library: dict[str, object]) -> Finding:
    words = [name, str(library.get("version") or ""), str(library.get("architecture") or "")]
    threads = f"{library['num_threads']} threads, the baseline takes 1"
    return Finding("BLAS", "ok", f"{' '.join(filter(None, words))}; {threads}")


def _machine() -> Iterator[Finding]:
    """Processor, disk, and the library that reads a GPU's clocks."""
    model = environment.cpu_model() or platform.machine()
    limit = environment.cpu_limit()
    share = f", of which {limit:g} may be used" if limit else ""
    yield Finding("processor", "ok", f"{model}, {os.cpu_count()} cores{share}")
    try:
        free = shutil.disk_usage(".").free
        small = free < SMALL_DISK_BYTES
        remedy = "free some, or choose another folder with --output" if small else ""
        yield Finding("disk", "note" if small else "ok", f"{free / 1e9:.1f} GB free here", remedy)
    except OSError as error:
        yield Finding("disk", "note", f"the current folder cannot be read ({error.strerror})")
    version = environment.package_version("nvidia-ml-py")
    if version:
        yield Finding("nvidia-ml-py", "ok", version)
    else:
        found = "not installed; a GPU's clocks and temperature are not recorded"
        yield Finding("nvidia-ml-py", "note", found, 'pip install "pcnn-bench[cuda]"')


def _data_sets() -> Iterator[Finding]:
    from pcnn_bench.datasets import available

    try:
        sets = available()
    except (PcnnError, OSError) as error:
        yield Finding("data sets", "lack", str(error))
        return
    for each in sets:
        if each.folder is not None and each.byte_count is not None:
            size = f"{each.byte_count / 1e6:.1f} MB"
            yield Finding(f"data: {each.name}", "ok", f"{size} in {each.folder}")
        elif not each.remedy:
            yield Finding(f"data: {each.name}", "ok", "made when it is used")
    missing = [each.name for each in sets if each.remedy]
    if missing:
        remedy = "pcnn-bench data list says how to get each"
        yield Finding("data not here", "note", ", ".join(missing), remedy)


def _cuda() -> list[Finding]:
    from pcnn_bench import engines

    return [
        Finding(each["name"], cast(Status, each["status"]), each["found"], each["remedy"])
        for each in engines.cuda_diagnosis()
    ]
