"""``did you mean``: the known word nearest to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(found: str, known: Iterable[str]) -> str | None:
    """The word of ``known`` that looks most like ``found``; None if none looks like it."""
    return next(iter(get_close_matches(found, list(known), n=1)), None)


def advice(found: str, known: Iterable[str], otherwise: str = "") -> str:
    """The nearest word as a question; without one, ``otherwise``, or all that may be chosen."""
    known = list(known)
    near = nearest(found, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return otherwise or f"choose from {', '.join(known)}"
