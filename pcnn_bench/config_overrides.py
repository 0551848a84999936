"""``--set training.epochs=3``: one value of a config document, replaced from the command line."""

from __future__ import annotations

import re

from pcnn_bench.errors import ConfigError
from pcnn_bench.yaml_source import Document, KeyPath, format_path, read_yaml

_KEY = re.compile(r"[^.\[\]\s]+(\.[^.\[\]\s]+|\[\d+\])*")
_PART = re.compile(r"\[(?P<index>\d+)\]|(?P<name>[^.\[\]]+)")


def apply_override(document: Document, override: str) -> None:
    """Put the value of ``key=value`` into ``document``; sections that it lacks are made.

    The key is dotted and complete (``network.layers[0].kernel`` or
    ``network.layers.0.kernel``), the value YAML. Whether the key exists is for
    the validation to say.

    Raises:
        ConfigError: not of that form, or the key leads into a single value or past a list's end.
    """
    place = f"--set {' '.join(override.split())}"
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{place}: not of the form key=value; write for example --set training.epochs=3"
        )
    value = read_yaml(text, lambda line, column: place)
    path = _open_path(document, key, place)
    document.replace(path, value)


def _open_path(document: Document, key: str, place: str) -> KeyPath:
    """The path of ``key``, with every section on the way to it made where it is absent or null."""
    parts = [match.group("index") or match.group("name") for match in _PART.finditer(key)]
    path: KeyPath = ()
    value = document.root
    for depth, part in enumerate(parts):
        if isinstance(value, list):
            if not part.isascii() or not part.isdigit() or int(part) >= len(value):
                raise ConfigError(
                    f"{place}: {format_path(path)}: found no {part!r} in this list; "
                    f"give a position from 0 to {len(value) - 1}"
                )
            path = (*path, int(part))
        elif isinstance(value, dict):
            path = (*path, part)
            if depth < len(parts) - 1 and value.get(part) is None:
                document.replace(path, Document({}, {(): place}, {(): place}))
        else:
            raise ConfigError(
                f"{place}: {format_path(path)}: holds a single value, so nothing can be set in it; "
                f"set {format_path(path)} itself"
            )
        value = value[path[-1]] if depth < len(parts) - 1 else None
    return path
