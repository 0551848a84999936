"""YAML text to plain values, each with the place where it was written, whatever they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from pcnn_bench.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the document."""

# A thousand layers of ten keys fit; aliases of aliases that stand for billions of values do not.
MAX_VALUES = 10_000
# The deepest value of a config is five levels down.
MAX_DEPTH = 32

_TOO_MANY = f"more than {MAX_VALUES} values, aliases included; a config has far fewer"
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep; a config has five"

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp", _TAG + "value"}
"""YAML 1.2 has no dates and no ``=``: they are text."""


def format_path(path: KeyPath) -> str:
    """("network", "layers", 1, "kernel") -> ``network.layers[1].kernel``, always on one line."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.removeprefix("."))


@dataclass(slots=True)
class Document:
    """Plain values (dict, list, str, int, float, bool, None) and where each of them stands.

    Places are texts such as ``lenet5.yaml:3:8`` or ``--set training.epochs=3``.
    """

    root: Any
    keys: dict[KeyPath, str] = field(default_factory=dict)
    values: dict[KeyPath, str] = field(default_factory=dict)
    replacements: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath, *, of_key: bool = False) -> str:
        """Where the value or key at ``path`` was written; for an absent one, its parent's key."""
        places = self.keys if of_key else self.values
        while path not in places:
            path, places = path[:-1], self.keys
        return places[path]

    def replace(self, path: KeyPath, other: Document) -> None:
        """Put ``other``'s root at ``path``, whose parent exists, and forget what stood there."""
        parent = self.root
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = other.root
        for places, others in ((self.keys, other.keys), (self.values, other.values)):
            for old in [known for known in places if known[: len(path)] == path]:
                del places[old]
            places.update({path + below: place for below, place in others.items()})
        self.replacements[path] = other.place(())

    def replaced(self, path: KeyPath) -> str | None:
        """The place of the last replacement that concerns ``path``: at, above or below it."""
        for known, place in reversed(self.replacements.items()):
            shared = min(len(known), len(path))
            if known[:shared] == path[:shared]:
                return place
        return None


def read_yaml(text: str, place_of: Callable[[int, int], str]) -> Document:
    """Read one document of YAML 1.2; ``place_of(line, column)`` (from 1) words a place in it.

    Raises:
        ConfigError: not YAML, or with what no config needs (tags, cycles, several documents).
    """
    # Comments are not needed to read, and this reader is twice as fast as the one that keeps them.
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # YAML allows an anchor to be set again
    try:
        node = yaml.compose(text)
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ConfigError(
            f"{place_of(line, column)}: found the character U+{ord(text[error.position]):04X}; "
            "a config is plain text, take it out"
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = place_of(mark.line + 1, mark.column + 1) if mark else place_of(1, 1)
        raise ConfigError(f"{place}: {_syntax_problem(error, text)}") from error
    except RecursionError as error:
        raise ConfigError(f"{place_of(1, 1)}: {_TOO_DEEP}") from error
    except ValueError as error:  # for example a %YAML directive of a version that does not exist
        raise ConfigError(
            f"{place_of(1, 1)}: not YAML ({error}); see configs/ for examples"
        ) from error
    if yaml.version not in (None, (1, 2)):
        raise ConfigError(
            f"{place_of(1, 1)}: found a %YAML directive; take it out, configs are YAML 1.2"
        )
    document = Document(None)
    if node is None:
        document.keys[()] = document.values[()] = place_of(1, 1)
    else:
        document.root = _Reader(document, place_of).read(node, ())
        document.keys[()] = document.values[()]
    return document


def _syntax_problem(error: MarkedYAMLError, text: str) -> str:
    """The parser's complaint, with a remedy for the common ones."""
    problem = str(error.problem)
    if "'\\t'" in problem and error.problem_mark:
        before = text[: error.problem_mark.index].rpartition("\n")[2].split()
        return f"tab {f'after {before[-1]!r}' if before else 'used for indentation'}; use spaces"
    if "another document" in problem:
        return "a second document begins; keep one in a file"
    if "undefined alias" in problem:
        return f"{problem}; define it before with &"
    if "mapping values are not allowed" in problem:
        return (
            "found a ':' where no key can stand; "
            "check the indentation, and put text that contains ': ' in quotes"
        )
    if "cannot start any token" in problem:
        return f"{problem}; put the text in quotes"
    began = error.context_mark
    context = f" ({error.context}, line {began.line + 1})" if error.context and began else ""
    return f"{problem}{context}; check brackets, quotes and indentation"


@dataclass(slots=True)
class _Reader:
    """Turns nodes into plain values; an alias is read anew wherever it stands."""

    document: Document
    place_of: Callable[[int, int], str]
    count: int = 0
    open_nodes: list[int] = field(default_factory=list)

    def read(self, node: Node, path: KeyPath) -> Any:
        """The value of ``node``; notes where it and everything in it stands."""
        self.count_one(node)
        self.document.values[path] = self.place(node)
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        with self.inside(node, path):
            if isinstance(node, SequenceNode):
                self.require_tag(node, "seq", path)
                return [
                    self.child(item, item, (*path, index)) for index, item in enumerate(node.value)
                ]
            self.require_tag(node, "map", path)
            assert isinstance(node, MappingNode)
            return {
                name: self.child(key, value, (*path, name))
                for name, (key, value) in self.entries(node, path).items()
            }

    def child(self, key: Node, value: Node, path: KeyPath) -> Any:
        """Read one entry of a list or mapping; an item of a list is its own key."""
        self.document.keys[path] = self.place(key)
        content = self.read(value, path)
        if value.start_mark.index == value.end_mark.index:
            # An absent value has the place of whatever comes next in the file.
            self.document.values[path] = self.document.keys[path]
        return content

    def count_one(self, node: Node) -> None:
        """Refuse aliases of aliases that stand for more than any config holds."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise self.error(node, (), _TOO_MANY)

    @contextmanager
    def inside(self, node: Node, path: KeyPath) -> Iterator[None]:
        """Refuse a node that contains itself or lies too deep, before going into it."""
        if id(node) in self.open_nodes:
            raise self.error(node, path, f"&{node.anchor} contains itself; write the values out")
        if len(self.open_nodes) >= MAX_DEPTH:
            raise self.error(node, (), _TOO_DEEP)
        self.open_nodes.append(id(node))
        yield
        self.open_nodes.pop()

    def entries(self, node: MappingNode, path: KeyPath) -> dict[str, tuple[Node, Node]]:
        """(key, value) by name; own keys beat merged ones (``<<``), earlier merges over later."""
        entries: dict[str, tuple[Node, Node]] = {}
        merges: list[Node] = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise self.error(key, path, "found a list or mapping as a key; a key is a word")
            if key.tag == _TAG + "merge":
                merges += value.value if isinstance(value, SequenceNode) else [value]
            elif key.value in entries:
                first = entries[key.value][0].start_mark.line + 1
                problem = f"written twice, first at line {first}; keep one of them"
                raise self.error(key, (*path, key.value), problem)
            else:
                entries[key.value] = (key, value)
        for merged in merges:
            if not isinstance(merged, MappingNode):
                raise self.error(merged, path, "'<<' merges a mapping; give it an alias of one")
            self.count_one(merged)
            with self.inside(merged, path):
                entries = self.entries(merged, path) | entries
        return entries

    def scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        """A number, true, false, null or text, as in YAML 1.2: ``no`` is text and 010 is ten."""
        text: str = node.value
        if node.tag in _TEXT_TAGS:
            return text
        if node.tag == _TAG + "null":
            return None
        if node.tag == _TAG + "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        digits = text.replace("_", "").lower()
        try:
            if node.tag == _TAG + "int":
                return int(digits, 0 if digits.lstrip("+-")[:2] in ("0x", "0o", "0b") else 10)
            if node.tag == _TAG + "float":
                return float(digits.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError as error:
            problem = f"found {text[:40]!r}, not a number; put text in quotes"
            if digits.lstrip("+-").isdecimal():  # more of them than Python converts
                problem = f"found a number of {len(digits)} digits; give a smaller one"
            raise self.error(node, path, problem) from error
        raise self.error(node, path, f"found the tag {node.tag}; write the value without it")

    def require_tag(self, node: Node, name: str, path: KeyPath) -> None:
        """Refuse a list or mapping with a tag of its own."""
        if node.tag != _TAG + name:
            raise self.error(node, path, f"found the tag {node.tag}; write the values without it")

    def place(self, node: Node) -> str:
        """Where ``node`` begins."""
        return self.place_of(node.start_mark.line + 1, node.start_mark.column + 1)

    def error(self, node: Node, path: KeyPath, problem: str) -> ConfigError:
        """The error to raise for ``node``."""
        at = f" {format_path(path)}:" if path else ""
        return ConfigError(f"{self.place(node)}:{at} {problem}")
