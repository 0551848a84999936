"""One result file to one data frame: every cell is held against the row's dataclass."""

from __future__ import annotations

import csv
import gzip
import math
import re
import stat
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pandas as pd

from pcnn_bench.results import TABLES, Row

POSITIVE = frozenset(
    {"median_us", "min_us", "p25_us", "p75_us", "first_us", "time_us", "wall_s", "images_per_s"}
)
"""Nothing takes no time: a row with a time that is not positive and finite is left out."""

_SERIES = ["engine", "device", "rung"]
_KEYS: dict[str, list[str]] = {
    "layers": [*_SERIES, "stage", "phase", "batch_size"],
    "samples": [*_SERIES, "stage", "phase", "batch_size", "repeat", "is_warmup"],
    "epochs": [*_SERIES, "epoch"],
}
"""What identifies a row; of two with one key, as in a file written twice over, the last counts."""

_SHOWN = 3
"""Warnings of one kind of fault printed per file; the rest are counted."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|infinity|nan)", re.I | re.A)
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_DTYPES = {str: "object", bool: "bool", int: "int64", float: "float64"}

Cell = str | bool | int | float | None


class TableError(Exception):
    """A whole file is unusable; the message says why."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column as the row's dataclass declares it."""

    name: str
    kind: type
    is_optional: bool

    @property
    def dtype(self) -> str:
        """Absent integers are <NA>, absent floats NaN."""
        return "Int64" if self.kind is int and self.is_optional else _DTYPES[self.kind]


def file_text(path: Path) -> str:
    """The text of a regular file without a byte order mark; unzipped if its first bytes say gzip.

    Raises:
        FileNotFoundError: there is none.
        TableError: it cannot be read, or is not UTF-8.
    """
    try:
        # A pipe would be waited for, so only what is a file is opened.
        if not stat.S_ISREG(path.stat().st_mode):
            raise TableError("is not a file")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        if path.is_symlink():
            raise TableError("is a link to nothing") from None
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TableError("is a damaged gzip file") from error
    except OSError as error:
        raise TableError(f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TableError(f"byte {error.start} is not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_table(name: str, text: str | None, warn: Callable[[str], None]) -> pd.DataFrame:
    """The rows of table ``name`` that hold what the schema says; None gives the empty table.

    Raises:
        TableError: there are no rows, or the header is not that of the table.
    """
    columns = _columns(TABLES[name])
    if text is None:
        return _frame(columns, [])
    faults = _Faults(warn)
    lines = text.split("\n")
    if lines.pop():
        # Every file we write ends in a newline: without it the last number may have lost digits.
        faults.add("the last line has no end, so the file was cut", len(lines) + 1)
    if not any(line.strip() for line in lines):
        raise TableError("is empty")
    header = _cells(lines[0]) or []
    places = _places(columns, header)
    rows: list[list[Cell]] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = _cells(line)
        if cells is None:
            faults.add("a quote is not closed", number)
        elif cells == header:
            faults.add("the header again", number)
        elif sum(cell in places for cell in cells) > len(cells) / 2:
            warn(f"line {number}: a different header begins; everything from there is left out")
            break
        elif len(cells) != len(header):
            faults.add("the number of cells is not that of the header", number, str(len(cells)))
        elif "\0" in line:
            faults.add("NUL bytes", number)
        else:
            row = _row(columns, places, cells, number, faults)
            if row is not None:
                rows.append(row)
    faults.report()
    if not rows:
        raise TableError("holds a header and no usable row" if header else "is empty")
    frame = _frame(columns, rows)
    if name in _KEYS:
        repeated = frame.duplicated(_KEYS[name], keep="last")
        if repeated.any():
            warn(f"{int(repeated.sum())} rows are there twice; the last of each counts")
            frame = frame[~repeated].reset_index(drop=True)
    return frame


class _Faults:
    """Faults of rows, by kind: the first few are shown and the rest counted."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._found: dict[tuple[str, str], list[tuple[int, str]]] = {}

    def add(self, what: str, line: int, found: str = "", remedy: str = "left out") -> None:
        """One row of which ``found`` is wrong."""
        self._found.setdefault((what, remedy), []).append((line, found))

    def report(self) -> None:
        """Warn of everything added."""
        for (what, remedy), places in self._found.items():
            for line, found in places[:_SHOWN]:
                self._warn(f"line {line}: {what}{f' ({found})' if found else ''}; {remedy}")
            if len(places) > _SHOWN:
                self._warn(f"{len(places) - _SHOWN} more lines: {what}; {remedy}")


def _columns(kind: type[Row]) -> list[_Column]:
    """The columns of a row's dataclass."""
    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        hint = hints[field.name]
        is_optional = isinstance(hint, types.UnionType)
        columns.append(_Column(field.name, get_args(hint)[0] if is_optional else hint, is_optional))
    return columns


def _cells(line: str) -> list[str] | None:
    """The cells of one line, which is one row; None if a quote is left open."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return None


def _places(columns: list[_Column], header: list[str]) -> dict[str, int]:
    """Column name -> position.

    Raises:
        TableError: a column is missing or named twice.
    """
    missing = [column.name for column in columns if column.name not in header]
    if missing:
        hint = "; save it with commas" if len(header) == 1 and ";" in header[0] else ""
        raise TableError(f"line 1: no column {', '.join(missing[:_SHOWN])}{hint}")
    twice = [column.name for column in columns if header.count(column.name) > 1]
    if twice:
        raise TableError(f"line 1: column {twice[0]} is there twice")
    return {column.name: header.index(column.name) for column in columns}


def _row(
    columns: list[_Column], places: dict[str, int], cells: list[str], line: int, faults: _Faults
) -> list[Cell] | None:
    """The cells in the order of ``columns``; None if one of them cannot be."""
    row: list[Cell] = []
    for column in columns:
        text = cells[places[column.name]]
        try:
            value = _value(column, text)
        except ValueError as error:
            faults.add(f"column {column.name}: {error}", line, repr(text))
            return None
        if isinstance(value, float) and not math.isfinite(value):
            faults.add(f"column {column.name}: not finite", line, text, "read as absent")
            value = math.nan
        row.append(value)
    return row


def _value(column: _Column, text: str) -> Cell:
    """The value of one cell.

    Raises:
        ValueError: it is not one that this column can hold; the message says what it should be.
    """
    if column.kind is str:
        return text
    if column.kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError("neither 0 nor 1")
        return _BOOLEANS[text.lower()]
    if not text and column.is_optional:
        return None
    if not _NUMBER.fullmatch(text):
        comma = "; write a decimal point" if "," in text else ""
        raise ValueError(f"not a number{comma}")
    number = float(text)
    if column.name in POSITIVE and not 0 < number < math.inf:
        raise ValueError("not a positive, finite number")
    if column.kind is float:
        return number
    if not (number.is_integer() and abs(number) < 2**53):
        raise ValueError("not a whole number")
    return int(number)


def _frame(columns: list[_Column], rows: list[list[Cell]]) -> pd.DataFrame:
    """Rows to a frame of the declared types; text stays text, so a layer may be named ``NA``."""
    return pd.DataFrame(
        {
            column.name: pd.Series([row[index] for row in rows], dtype=column.dtype)
            for index, column in enumerate(columns)
        }
    )
