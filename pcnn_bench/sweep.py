"""``--sweep batch_size=1,16,64``: a ladder for each value of a config key; one that fails does not stop the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcnn_bench.errors import ConfigError, FindingError, PcnnError, ResultsError, UnavailableError
from pcnn_bench.ladder_report import summarise_ladder
from pcnn_bench.suggest import advice

if TYPE_CHECKING:
    from pcnn_bench.config import Config
    from pcnn_bench.job import RunResult

_COMMA = re.compile(r",(?![^\[{]*[\]}])")
"""One that is in no brackets."""
_KINDS: dict[int, type[PcnnError]] = {1: FindingError, 2: ConfigError, 3: UnavailableError}


def parse_sweep(text: str, config: Config) -> tuple[str, list[str]]:
    """``batch_size=1,16`` -> the key in full (``training.batch_size``) and the values as they are written.

    Raises:
        ConfigError: not of that form, a value comes twice, or the key is unknown or several may be meant.
    """
    key, _, rest = text.partition("=")
    values = [value.strip() for value in _COMMA.split(rest)]
    if not key.strip() or not all(values):
        raise ConfigError(
            f"--sweep {text}: not of the form KEY=V1,V2; write for example --sweep batch_size=1,16,64"
        )
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(
                f"--sweep: {value} is named {values.count(value)} times; once will do"
            )
    return _full_key(key.strip(), config), values


def _full_key(key: str, config: Config) -> str:
    """The only key of the config whose last part this is; one in full is left as it is."""
    keys = list(_keys(config.model_dump(mode="json", by_alias=True)))
    if key in keys or "." in key:
        return key
    by_end: dict[str, list[str]] = {}
    for each in keys:
        by_end.setdefault(each.rpartition(".")[2], []).append(each)
    fitting = by_end.get(key)
    if fitting is None:
        raise ConfigError(f"--sweep: {key!r} is unknown; {advice(key, by_end)}")
    if len(fitting) > 1:
        raise ConfigError(f"--sweep: {key!r} may be {' or '.join(fitting)}; write one in full")
    return fitting[0]


def _keys(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Every dotted key that holds a value."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for index, part in enumerate(value):
                given = {key: found for key, found in part.items() if found is not None}
                yield from _keys(given, f"{above}{name}[{index}].")
        else:
            yield f"{above}{name}"


def sweep(
    text: str,
    load: Callable[[Sequence[str]], Config],
    run: Callable[[Config], RunResult],
    say: Callable[[str], None],
) -> tuple[dict[str, Any], PcnnError | KeyboardInterrupt | None]:
    """Run a config for each value; what came of them as JSON takes it, and the error to end with.

    That error has the exit code of the worst, and names it; or it is the interruption that ended the sweep. What failed
    early has no folder and no ``ladder``.

    Args:
        text: The option, as ``batch_size=1,16``.
        load: The config with some values replaced, each ``training.batch_size=16``.
        run: Runs one.
        say: Is told of each that begins.

    Raises:
        ConfigError: the option or one of its values is wrong; nothing has run.
    """
    key, values = parse_sweep(text, load(()))
    if key == "cuda.rung":
        raise ConfigError("--sweep: a ladder runs every rung in any case; choose some with --rungs")
    configs = {value: load([f"{key}={value}"]) for value in values}
    for value, config in configs.items():
        same = next(each for each, other in configs.items() if other == config)
        if same != value:
            raise ConfigError(f"--sweep: {value} is {same} again; once will do")
    outcomes: list[dict[str, Any]] = []
    worst: tuple[int, str, str] | None = None
    for value, config in configs.items():
        say(f"{key}={value}")
        code, message, folder = 0, "", None
        try:
            folder = run(config).folder
        except PcnnError as error:
            code, message, folder = error.exit_code, str(error), error.folder
        except MemoryError as error:
            code, message = UnavailableError.exit_code, str(error) or "the host is out of memory"
        except KeyboardInterrupt as interruption:  # what is done is shown before the program ends
            return {"key": key, "values": outcomes}, interruption
        ladder = _summary(folder)
        status = "failed" if code else "ok"
        outcomes.append(
            {
                "value": value,
                "status": (ladder or {}).get("status") or status,
                "exit_code": code,
                "message": message,
                "folder": folder and str(folder),
                "ladder": ladder,
            }
        )
        if code and (worst is None or code > worst[0]):
            worst = code, value, message
    summary = {"key": key, "values": outcomes}
    if worst is None:
        return summary, None
    code, value, message = worst
    failed = sum(1 for each in outcomes if each["exit_code"])
    line = f"sweep: {failed} of {len(outcomes)} values failed, worst {key}={value}: {message}"
    return summary, _KINDS[code](line)


def _summary(folder: Path | None) -> dict[str, Any] | None:
    """The figures in a run folder, as far as there are any."""
    try:
        return summarise_ladder(folder) if folder else None
    except ResultsError:
        return None
