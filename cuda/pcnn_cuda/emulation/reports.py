"""What the runtime reports, in words and source lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pcnn_cuda.emulation.runtime import KINDS, SEVERAL, RawReport
from pcnn_cuda.emulation.toolchain import source_lines


@dataclass(frozen=True, slots=True)
class Report:
    """One violation of CUDA's rules: what, where in the source, on which array, by which thread."""

    kind: str
    kernel: str
    place: str
    """``file:line``."""
    other_place: str | None
    """Of two accesses that race, the earlier one; of two barriers, the other one."""
    array: str | None
    """A kernel parameter or a ``__shared__`` variable; joined by ``/`` if parameters overlap."""
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    detail: str

    def __str__(self) -> str:
        who = f"thread {self.thread} of block {self.block}"
        array = f" of {self.array}" if self.array else ""
        other = f" ({self.other_place})" if self.other_place else ""
        return f"{self.kernel} ({self.place}): {self.kind}{array} by {who}{self.detail}{other}"


def describe_reports(kernel: str, library: Path, raw: Sequence[RawReport]) -> list[Report]:
    """The runtime's reports in words, one for each kind, array and pair of source lines."""
    offsets = [offset for one in raw for offset in (one.code, one.other_code) if offset]
    lines = dict(zip(offsets, source_lines(library, offsets), strict=True))
    reports: dict[tuple[object, ...], Report] = {}
    for one in raw:
        source = Path(one.file.decode()).name
        place = lines[one.code] if one.code else f"{source}:{one.line}"
        other_place = None
        if one.other_code:
            other_place = lines[one.other_code]
        elif one.other_line:
            other_place = f"{source}:{one.other_line}"
        array = one.array.decode() if one.array else None
        report = Report(
            kind=KINDS[one.kind],
            kernel=kernel,
            place=place,
            other_place=other_place,
            array=array,
            block=tuple(one.block),
            thread=tuple(one.thread),
            detail=_detail(one),
        )
        reports.setdefault((report.kind, array, frozenset((place, other_place))), report)
    return list(reports.values())


def _detail(raw: RawReport) -> str:
    """What comes after the kind, the array and the thread."""
    kind = KINDS[raw.kind]
    function = raw.what.decode()
    if kind == "race":
        thread = "several threads" if raw.other_thread == SEVERAL else f"thread #{raw.other_thread}"
        block = "several blocks" if raw.other_block == SEVERAL else f"block #{raw.other_block}"
        return f" at byte {raw.offset}, against {thread} of {block}"
    if kind == "divergent barrier":
        return f": not every thread of the block reaches this {function}"
    if kind == "different barriers":
        return ": other threads wait at another barrier"
    if kind == "lost lane":
        return f": {function} waits for lanes of its mask that never come"
    if kind == "shared memory exceeded":
        return f": {raw.offset} bytes, or more than 64 variables; a block has 49152 bytes"
    return f" at byte {raw.offset}" if raw.array else ", far from every array"
