"""Insert the numbers of published runs into the documents, or check that they are there.

``python docs/insert_numbers.py`` writes; with ``--check`` it only says what it would write. A document names its runs
once, in a comment, and wraps every number in two comments, which a rendered page does not show::

    <!-- runs
    lenet64       = h200/<a folder below results/published>
    lenet64 ring  = pending                 one rung of it: from another folder, or not published yet
    -->
    a step takes <!--= step lenet64 graph -->71.0 µs<!--/-->
    <!--! step lenet64 graph < step lenet64 fused -->

The last form shows nothing: it is a claim that the prose around it makes, and it fails where the runs say otherwise.

=====================================  ============================================================================
expression                             value
=====================================  ============================================================================
``step RUN RUNG``                      median time of a whole step; RUNG may be ``baseline``
``time RUN RUNG LAYERS PHASES``        of the stages that cover exactly these, summed in each repeat; the median
``flops ...``, ``bytes ...``           what the plan counts for the same
``memory RUN RUNG CATEGORY``           as in memory.csv; ``peak``: what our allocator held, the data set apart
``accuracy RUN RUNG``                  on the test set, after the last epoch
``A / B``, ``A of B``                  a ratio (``x``) or a rate; a share in per cent
``A in UNIT``                          the bare number in this unit, for tables: ``µs``, ``kB``, ``MFLOP``
``verdict A vs B``                     ``faster``, ``as fast``, ``slower``; or ``smaller``, ``as large``, ``larger``
``verdict A than B``                   the same for a sentence: ``faster than``, ``as fast as``
``source RUN``                         links to the run's folders
=====================================  ============================================================================

LAYERS is a layer, ``first..last``, or ``*`` for all; PHASES are joined by ``+``, and ``* step`` and ``* transfer`` are
rows of their own. A † marks a ratio of times of two runs.

Exit codes: 0 done; 1 a document differs, or a claim fails; 2 an expression has no value.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from published_quantities import (
    UNKNOWN,
    ExpressionError,
    PendingError,
    Runs,
    order,
    quantity,
    show,
    verdict,
)

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "published"
DOCUMENTS = (ROOT / "docs" / "ladder.md", ROOT / "README.md")
PENDING = "pending"

HEADER = re.compile(r"<!-- runs\n(.*?)-->", re.DOTALL)
RUN_LINE = re.compile(r"(?P<alias>[\w-]+)(?: +(?P<rung>[\w-]+))? += +(?P<folder>\S+)")
NUMBER = re.compile(r"<!--=(?P<expression>.*?)-->(?P<shown>.*?)<!--/-->", re.DOTALL)
CLAIM = re.compile(r"<!--!(?P<expression>.*?)-->", re.DOTALL)
HALF = re.compile(r"<!--[=/]")
LINE_START = re.compile(r"[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t]+)*")


def evaluate(expression: str, runs: Runs, document: Path) -> str:
    """What is shown for an expression.

    Raises:
        ExpressionError: it has no value.
    """
    words = expression.split()
    try:
        if words[:1] == ["source"] and len(words) == 2:
            return runs.links(words[1], document)
        if words[:1] == ["verdict"]:
            is_sentence = "than" in words
            left, right = _split(words[1:], "than" if is_sentence else "vs")
            return verdict(quantity(left, runs), quantity(right, runs), is_sentence=is_sentence)
        if words[-2:-1] == ["in"]:
            return show(quantity(words[:-2], runs), words[-1])
        return show(quantity(words, runs))
    except PendingError:
        return UNKNOWN


def holds(claim: str, runs: Runs) -> bool:
    """Whether ``A < B`` or ``A > B`` is so; what is pending may be.

    Raises:
        ExpressionError: a side has no value.
    """
    words = claim.split()
    sign = "<" if "<" in words else ">"
    left, right = _split(words, sign)
    try:
        return order(quantity(left, runs), quantity(right, runs)) == (-1 if sign == "<" else 1)
    except PendingError:
        return True


def _split(words: list[str], separator: str) -> tuple[list[str], list[str]]:
    if separator not in words:
        raise ExpressionError(f"there is no {separator!r} in it")
    place = words.index(separator)
    return words[:place], words[place + 1 :]


@dataclass(slots=True)
class Rewritten:
    """A document as the published runs have it. Messages begin with ``file:line``."""

    text: str
    faults: list[str] = field(default_factory=list)
    broken_claims: list[str] = field(default_factory=list)


class _Rewriter:
    """One document on its way."""

    def __init__(self, document: Path, published: Path) -> None:
        self._document = document
        self._name = document.relative_to(ROOT) if document.is_relative_to(ROOT) else document
        self._text = document.read_text(encoding="utf-8")
        self._runs = Runs()
        self.result = Rewritten(self._text)
        if found := HEADER.search(self._text):
            place = found.start(1)
            for line in found[1].splitlines(keepends=True):
                if line.strip():
                    self._name_run(line.strip(), place, published)
                place += len(line)
        if not self.result.faults:
            self.result.text = NUMBER.sub(self._number, self._text)
            for claim in CLAIM.finditer(self._text):
                self._check(claim)
            for half in HALF.finditer(NUMBER.sub(lambda found: " " * len(found[0]), self._text)):
                self._fault(half.start(), f"{half[0]} has no other half")

    def _at(self, place: int, message: str) -> str:
        line = self._text.count("\n", 0, place) + 1
        return f"{self._name}:{line}: {message}"

    def _fault(self, place: int, message: str) -> None:
        self.result.faults.append(self._at(place, message))

    def _name_run(self, line: str, place: int, published: Path) -> None:
        """Take in one line of the header."""
        named = RUN_LINE.fullmatch(line)
        if not named:
            return self._fault(place, f"{line!r} is not `alias = folder` or `alias rung = folder`")
        folder = None if named["folder"] == PENDING else published / named["folder"]
        if folder and not folder.is_dir():
            return self._fault(place, f"there is no {named['folder']} in {published}")
        self._runs.folders[named["alias"], named["rung"] or ""] = folder

    def _number(self, found: re.Match[str]) -> str:
        """A number with its comments, made anew."""
        start = found.start()
        if LINE_START.fullmatch(self._text, self._text.rfind("\n", 0, start) + 1, start):
            self._fault(
                start,
                "a line that begins with a comment is HTML to Markdown; move a word before it",
            )
        try:
            value = evaluate(found["expression"], self._runs, self._document)
        except ExpressionError as error:
            self._fault(start, f"{found['expression'].strip()}: {error}")
            return found[0]
        return f"<!--={found['expression']}-->{value}<!--/-->"

    def _check(self, found: re.Match[str]) -> None:
        """A claim that must hold."""
        claim = found["expression"].strip()
        try:
            if not holds(claim, self._runs):
                self.result.broken_claims.append(self._at(found.start(), f"no longer so: {claim}"))
        except ExpressionError as error:
            self._fault(found.start(), f"{claim}: {error}")


def rewrite(document: Path, published: Path = PUBLISHED) -> Rewritten:
    """Evaluate every expression and every claim of a document; write nothing."""
    return _Rewriter(document.resolve(), published).result


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        description="Insert the numbers of published runs into the documents."
    )
    parser.add_argument("documents", nargs="*", type=Path, default=DOCUMENTS)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a document differs"
    )
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED, help="the folder that holds the runs"
    )
    options = parser.parse_args(arguments)
    code = 0
    for document in options.documents:
        old, result = document.read_text(encoding="utf-8"), rewrite(document, options.published)
        for message in (*result.faults, *result.broken_claims):
            print(message, file=sys.stderr)
        code = max(code, 2 if result.faults else 1 if result.broken_claims else 0)
        if result.faults or result.text == old:
            continue
        if not options.check:
            document.write_text(result.text, encoding="utf-8")
            continue
        lines = zip_longest(old.splitlines(), result.text.splitlines())
        changed = [number for number, (was, now) in enumerate(lines, 1) if was != now]
        remedy = "run python docs/insert_numbers.py"
        print(
            f"{document}:{changed[0]}: not what the runs say, here and on {len(changed) - 1} more lines; {remedy}",
            file=sys.stderr,
        )
        code = max(code, 1)
    return code


if __name__ == "__main__":
    sys.exit(main())
