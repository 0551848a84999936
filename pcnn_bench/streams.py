"""stdout and stderr of a command: what may go wrong with them never ends the work, nor changes its exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast


class Lenient(io.TextIOBase):
    """A text stream that falls silent when its reader has gone; with ``always``, whatever goes wrong.

    Without ``always`` other failures, such as a full disk, are raised. Silent is the descriptor, so
    that what a failed write left behind does not fail once more when Python ends.
    """

    def __init__(self, stream: TextIO, *, always: bool) -> None:
        self._stream = stream
        self._forgiven = OSError if always else BrokenPipeError

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there, which is read only
        """Of the stream beneath."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream beneath is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Of the stream beneath."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        try:
            return self._stream.write(text)
        except self._forgiven:
            silence(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush, or drop what is left."""
        try:
            self._stream.flush()
        except self._forgiven:
            silence(self._stream)


def lenient_stderr(stream: TextIO | None = None) -> TextIO:
    """``stream`` or stderr, made so that no write to it fails; silent where there is no stderr."""
    found: TextIO | None = stream or sys.stderr
    if found is None:
        found = _null()
    return found if isinstance(found, Lenient) else cast(TextIO, Lenient(found, always=True))


def prepare() -> None:
    """Make stdout and stderr of this process lenient, there, and able to show every character.

    A closed one (None in Python) is replaced by the null device. Where the encoding lacks a character its code is
    shown instead.
    """
    for name, always in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if stream is None:
            stream = _null()
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, Lenient(stream, always=always))


def silence(stream: TextIO) -> None:
    """Send to the null device what is still in the stream's buffer and all that follows."""
    try:
        target = stream.fileno()
    except (OSError, ValueError):  # no descriptor, so nothing is kept that could fail later
        return
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), target)


def _null() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
