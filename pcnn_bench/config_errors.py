"""Validation errors in words: ``place: path: what was found; what would do``, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pcnn_bench.errors import ConfigError
from pcnn_bench.layers import SPECS
from pcnn_bench.suggest import advice, nearest
from pcnn_bench.yaml_source import Document, KeyPath, format_path, read_yaml

# More than this is one mistake repeated, or a file that is no config at all.
MAX_LINES = 10

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text, in quotes if it looks like something else",
    "string_too_short": "at least one character",
    "string_too_long": "at most {max_length} characters",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
}
"""What would do instead, by pydantic's type of error."""
_MAPPING_ERRORS = {"model_type", "model_attributes_type", "dict_type"}
_LIST_ERRORS = {"tuple_type", "too_short", "too_long", "missing"}
_LAYER_NAME = "a name without spaces and without + , * / \\"
_FOLDER_NAME = "letters, digits, '.', '_' and '-', a letter, digit or '_' first"


def describe_errors(error: ValidationError, document: Document, model: type[BaseModel]) -> str:
    """What is wrong with ``document`` as a ``model``: a line for each of the first errors."""
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    meant: set[KeyPath] = set()
    lines: dict[str, None] = {}  # ordered; both numbers of a pair may have the same fault
    for details in errors:
        line = _line(details, document, model, meant)
        if line:
            lines[line] = None
    shown = list(lines)[:MAX_LINES]
    if len(lines) > len(shown):
        shown.append(
            f"{document.place(())}: and {len(lines) - len(shown)} more errors; mend these first"
        )
    return "\n".join(shown)


def _line(
    details: ErrorDetails, document: Document, model: type[BaseModel], meant: set[KeyPath]
) -> str | None:
    """One error in words, or None where it only repeats another one.

    ``meant`` collects the keys that a misspelt key stands for: these are not missing.
    """
    kind, context = details["type"], details.get("ctx", {})
    path, value, rest = _locate(details["loc"], document.root)
    if kind == "extra_forbidden":
        known = list(_fields_at(path[:-1], document.root, model))
        near = nearest(str(path[-1]), known)
        if near:
            meant.add((*path[:-1], near))
        advice = _advice(str(path[-1]), known, list(_all_keys(model)))
        return f"{document.place(path, of_key=True)}: {format_path(path)}: unknown key; {advice}"
    if kind in ("missing", "union_tag_not_found") and isinstance(value, dict):
        name = str(rest[0]) if kind == "missing" else "kind"
        if (*path, name) in meant:
            return None
        place = document.place((*path, name))
        field = _fields_at(path, document.root, model).get(name)
        return f"{place}: {format_path((*path, name))}: missing; {_example(name, field)}"
    if rest and isinstance(value, dict):
        return None  # about a default that was taken from a wrong value, which has its own error
    if kind == "union_tag_invalid":
        path, value = (*path, "kind"), value["kind"]
    return (
        f"{document.place(path)}: {format_path(path)}: found {_found(value)}; "
        f"{_remedy(kind, context, path, value, document, model)}"
    )


def _locate(loc: Sequence[str | int], root: Any) -> tuple[KeyPath, Any, Sequence[str | int]]:
    """How far ``loc`` leads: the path in the document, the value there, what of ``loc`` is left.

    What is left is a missing key, or a part that validation made of a single value (5 -> (5, 5)).
    """
    path: KeyPath = ()
    value: Any = root
    for position, part in enumerate(loc):
        if position and isinstance(loc[position - 1], int) and isinstance(value, dict):
            continue  # after the position of a layer pydantic names its kind
        present = range(len(value)) if isinstance(value, list) else value
        if isinstance(value, (dict, list)) and part in present:
            value = value[part]  # type: ignore[index]  # a position in a list, a name in a dict
        else:
            return path, value, loc[position:]
        path = (*path, part)
    return path, value, ()


def _fields_at(path: KeyPath, root: Any, model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields that the mapping at ``path`` may have, by the names that YAML knows."""
    value = root
    for part in path:
        value = value[part]
        if isinstance(part, int):
            model = SPECS[value["kind"]] if value.get("kind") in SPECS else BaseModel
        else:
            model = _section(_by_yaml_name(model)[str(part)])
    return _by_yaml_name(model)


def _by_yaml_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _section(field: FieldInfo) -> type[BaseModel]:
    """The model that a field holds; ``BaseModel``, without fields, where it holds none."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return BaseModel


def _remedy(
    kind: str,
    context: Mapping[str, Any],
    path: KeyPath,
    value: Any,
    document: Document,
    model: type[BaseModel],
) -> str:
    """What to write instead."""
    if kind in _MAPPING_ERRORS:
        if path and isinstance(path[-1], int):
            return "give a mapping such as {kind: tanh}"
        return f"give a mapping of {', '.join(_fields_at(path, document.root, model))}"
    if kind in _LIST_ERRORS:
        return f"give {_wanted_list(path)}"
    if kind == "union_tag_invalid":
        return _advice(str(value), list(SPECS))
    if kind == "literal_error":
        choices = [
            part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")
        ]
        return _advice(str(value), choices)
    if kind == "string_pattern_mismatch":
        in_layer = len(path) > 2 and path[:2] == ("network", "layers")
        return f"give {_LAYER_NAME if in_layer else _FOLDER_NAME}"
    if kind == "value_error":
        return str(context["error"])
    bounds = {
        name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in context.items()
    }
    wanted = _WANTED.get(kind, f"another value ({kind})").format(**bounds)
    if isinstance(value, str) and kind != "string_type":
        wanted += _what_hides_a_number(value)
    return f"give {wanted}"


def _wanted_list(path: KeyPath) -> str:
    """The list that would do at ``path``."""
    if path == ("network", "input"):
        return "three whole numbers [C, H, W]"
    if path == ("network", "layers"):
        return "a list of at least one layer"
    if path == ("engines",):
        return "a list of engines such as [baseline, cuda]"
    if path[:2] == ("network", "layers"):
        return "a whole number, or two of them as [rows, columns]"
    return "a list, in [ ]"


def _advice(name: str, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    """The known name that was meant, the place where it belongs, or all that is known here."""
    places = [key for key in elsewhere if key.endswith(f".{name}")]
    otherwise = f"did you mean {places[0]!r}?" if places else f"known: {', '.join(known)}"
    return advice(name, known, otherwise)


def _all_keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The dotted name of every key outside lists."""
    for name, field in _by_yaml_name(model).items():
        yield f"{above}{name}"
        yield from _all_keys(_section(field), f"{above}{name}.")


def _example(name: str, field: FieldInfo | None) -> str:
    """What to add for a missing key."""
    if name == "kind":
        return f"add one of {', '.join(SPECS)}"
    examples = field.examples if field else None
    return f"add it, for example '{name}: {examples[0]}'" if examples else "add it"


def _what_hides_a_number(text: str) -> str:
    """What is to be changed in a text that would be a number: its quotes, or its digits; else empty."""
    try:
        plain = read_yaml(text, lambda line, column: "").root
    except ConfigError:
        return ""
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        return ", without quotes"  # for without them YAML reads it as one
    return " in the digits 0 to 9" if text.isdecimal() else ""


def _found(value: Any) -> str:
    """A value as the config has it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
