"""The command line: each command parses, calls one function and prints; nothing heavy is imported before that."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pcnn_bench import __version__, streams
from pcnn_bench.__main__ import INTERRUPTED
from pcnn_bench.errors import ConfigError, FindingError, PcnnError, ResultsError, UnavailableError
from pcnn_bench.suggest import advice

if TYPE_CHECKING:
    from pcnn_bench.config import Config
    from pcnn_bench.job import RunResult

REFUSALS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a place that you may read and write",
    errno.EPERM: "choose a place that you may read and write",
}
"""Errors of the file system that a person can cause and mend, each with its remedy."""
DEVICE = re.compile(r"auto|emulated|gpu(:\d+)?")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code (architecture.md, section 1)."""
    streams.prepare()
    sys.exit(exit_code_of(argv))


def exit_code_of(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the code of the work comes before that of what could not be printed."""
    code = _outcome(argv)
    try:
        sys.stdout.flush()  # so that a full disk shows here
    except OSError as error:
        streams.silence(sys.stdout)
        return code or _refused(error)
    return code


def _outcome(argv: Sequence[str] | None) -> int:
    """The one place where errors become a line on stderr and an exit code."""
    try:
        # not cli.main(), which has its own ideas of a closed pipe (exit 1) and of Ctrl-C
        with cli.make_context(
            "pcnn-bench", list(sys.argv[1:] if argv is None else argv)
        ) as context:
            cli.invoke(context)
        return 0
    except click.exceptions.Exit as ending:  # of --help and --version
        return ending.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "pcnn-bench"
        return _fail(f"{path}: {error.format_message()} See '{path} --help'.", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            click.echo(err=True)  # after the terminal's ^C
        return _fail("interrupted", INTERRUPTED)
    except PcnnError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        reason = str(error) or "the host is out of memory"
        return _fail(f"{reason}; lower training.batch_size or data.train_count", 3)
    except OSError as error:
        return _refused(error)


def _refused(error: OSError) -> int:
    """Tell what the file system refused; anything else is a bug."""
    if error.errno not in REFUSALS:
        raise error
    where = f"{error.filename}: " if error.filename else ""
    return _fail(f"{where}{error.strerror}; {REFUSALS[error.errno]}", UnavailableError.exit_code)


def _fail(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code


class SuggestingGroup(click.Group):
    """Names the nearest command where there is none of that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the suggestion.

        Raises:
            UsageError: there is no such command.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = advice(args[0], self.commands, f"choose from {', '.join(self.commands)}.")
            raise click.UsageError(f"No such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


def _device(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse what is no device, before anything is loaded."""
    if not DEVICE.fullmatch(value):
        hint = advice(value, ("auto", "gpu", "emulated"), "choose auto, gpu, gpu:N or emulated")
        raise ConfigError(f"--device: {value!r} is no device; {hint}")
    return value


def _nvcc(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Leave the choice where the CUDA engine and ``doctor`` look for it."""
    if value is not None:
        os.environ["PCNN_BENCH_NVCC"] = value


Command = Callable[..., Any]


def _options(*names: str) -> Callable[[Command], Command]:
    """The options of these names, the same everywhere."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = OPTIONS[name](command)
        return command

    return decorate


OPTIONS: dict[str, Callable[[Command], Command]] = {
    "device": click.option(
        "--device", default="auto", callback=_device, metavar="auto|gpu|gpu:N|emulated",
        show_default=True, help="Where engine cuda runs.",
    ),
    "nvcc": click.option(
        "--nvcc", metavar="FILE", expose_value=False, callback=_nvcc,
        help="The nvcc to use, instead of the first one found.",
    ),
    "engine": click.option(
        "--engine", "engines", multiple=True, metavar="NAME",
        help="Engine to run instead of the config's; repeatable.",
    ),
    "rung": click.option(
        "--rung", metavar="NAME", help="Rung of engine cuda, instead of the config's."
    ),
    "output": click.option(
        "--output", default="results", show_default=True, metavar="DIR",
        type=click.Path(path_type=Path), help="Folder in which the run folder is made.",
    ),
    "set": click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE",
        help="Replace a value of the config, as in training.epochs=3; repeatable.",
    ),
    "random": click.option(
        "--random", "random_count", type=click.IntRange(min=0), default=0, metavar="N",
        help="Verify N random networks too.",
    ),
    "seed": click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S",
        help="Of the first random network; the next has the next.",
    ),
    "quiet": click.option("--quiet", is_flag=True, help="Show no progress."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    "with_host": click.option(
        "--with-host", is_flag=True, help="Name this host in environment.json."
    ),
}  # fmt: skip


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Train one network sequentially and in parallel, and see what each optimisation bought."""


CONFIG = click.argument("config", metavar="CONFIG", type=click.Path(path_type=Path))


@cli.command()
@CONFIG
@_options("device", "nvcc", "engine", "rung", "output", "set", "quiet", "json", "with_host")
def run(
    config: Path,
    device: str,
    engines: tuple[str, ...],
    rung: str | None,
    output: Path,
    overrides: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    with_host: bool,
) -> None:
    """Train, check and time every engine; write a run folder."""
    from pcnn_bench.reporting import print_report, summarise
    from pcnn_bench.running import run as run_config

    try:
        result = run_config(
            _load(config, overrides),
            device=device,
            engines=engines or None,
            rung=rung,
            output=output,
            quiet=quiet,
            argv=["pcnn-bench", *sys.argv[1:]],
            with_host=with_host,
        )
    except FindingError as finding:
        if as_json and finding.folder:
            _print_json(summarise(finding.folder))
        raise
    summary = summarise(result.folder)
    if as_json:
        _print_json(summary)
    else:
        print_report(summary)
        click.echo(f"figures: pcnn-bench plot {result.folder}")


@cli.command()
@CONFIG
@click.option("--rungs", metavar="A,B", help="Rungs to run.  [default: all that are built]")
@click.option(
    "--sweep",
    metavar="KEY=V1,V2",
    help="A ladder for each value of a config key, as batch_size=1,16.",
)
@_options("device", "nvcc", "engine", "output", "set", "quiet", "json", "with_host")
def ladder(
    config: Path,
    rungs: str | None,
    sweep: str | None,
    overrides: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run every rung of engine cuda side by side: the ablation."""
    from pcnn_bench import ladder_report
    from pcnn_bench import sweep as sweeping
    from pcnn_bench.running import run as run_config

    def climb(config: Config) -> RunResult:
        return run_config(
            config,
            rungs=() if rungs is None else [name.strip() for name in rungs.split(",")],
            quiet=quiet,
            argv=["pcnn-bench", *sys.argv[1:]],
            **{**options, "engines": options["engines"] or None},
        )

    def load(more: Sequence[str] = ()) -> Config:
        return _load(config, [*overrides, *more])

    if sweep is not None:
        say = (lambda line: None) if quiet else lambda line: click.echo(line, err=True)
        swept, error = sweeping.sweep(sweep, load, climb, say)
        _print_json(swept) if as_json else ladder_report.print_sweep(swept)
        if error:
            raise error
        return
    try:
        result = climb(load())
    except FindingError as finding:
        if as_json and finding.folder:
            _print_json(ladder_report.summarise_ladder(finding.folder))
        raise
    summary = ladder_report.summarise_ladder(result.folder)
    if as_json:
        _print_json(summary)
    else:
        ladder_report.print_ladder(summary)
        click.echo(f"figures: pcnn-bench plot {result.folder}")


@cli.command()
@click.argument("results", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the figures.  [default: figures/ in each run folder]",
)
@_options("quiet", "json")
def plot(results: Path, output: Path | None, quiet: bool, as_json: bool) -> None:
    """Draw the figures of a run folder, or of a folder of them."""
    from pcnn_bench.plotting import plot as draw

    drawn = draw(results, output=output)
    if not quiet:
        for note in drawn.notes:
            click.echo(note, err=True)
    if as_json:
        _print_json({"files": [str(file) for file in drawn.files], "notes": drawn.notes})
    else:
        for file in drawn.files:
            click.echo(file)
    if drawn.failures:
        count = len(drawn.failures)
        raise ResultsError(f"plot: {count} figures could not be made, first {drawn.failures[0]}")


@cli.command()
@CONFIG
@_options("device", "nvcc", "rung", "random", "seed", "set", "quiet", "json")
def verify(
    config: Path,
    device: str,
    rung: str | None,
    random_count: int,
    seed: int,
    overrides: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare every kernel with the baseline; no timing.

    Takes the shapes of CONFIG, a list of awkward ones, and random networks if asked to.
    """
    from pcnn_bench import engines
    from pcnn_bench.progress import showing
    from pcnn_bench.verify import random_cases
    from pcnn_bench.verify import verify as verify_network
    from pcnn_bench.verify_report import print_verification, summarise_verification

    loaded = _load(config, overrides)
    chosen, *_ = engines.check_rungs(loaded, rung)
    rungs = engines.rungs() if rung is None else (chosen,)
    found, random = [], random_cases(random_count, seed)
    with showing(quiet) as progress:
        opened = engines.open_device(device, nvcc_flags=loaded.cuda.nvcc_flags, say=progress.say)
        try:
            for each in rungs:
                progress.activity(f"verifying rung {each}")
                network = loaded.build_network()
                verified = verify_network(network, device=opened, rung=each, random=random)
                found.append((each, verified))
        finally:
            opened.close()
    summary = summarise_verification(found, opened.kind)
    _print_json(summary) if as_json else print_verification(summary)
    if not summary["is_good"]:
        raise FindingError(
            "verify: a kernel differs from the baseline or was not reached; see the lines above"
        )


@cli.command()
@CONFIG
@_options("rung", "set", "json")
def show(config: Path, rung: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print layers with their FLOPs and bytes, and each rung's stages and memory.

    Opens no device and loads no data.
    """
    from pcnn_bench.reporting import plain_console
    from pcnn_bench.show import describe, render

    description = describe(_load(config, overrides), rung)
    if as_json:
        _print_json(description)
    else:
        plain_console().print(render(description))


@cli.command()
@_options("nvcc", "json")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """What this machine has and lacks, each lack with its remedy."""
    from pcnn_bench import doctor as examination

    findings = examination.diagnose()
    click.echo(examination.as_json(findings) if as_json else examination.render(findings))
    context.exit(examination.exit_code(findings))


@cli.group(cls=SuggestingGroup)
def data() -> None:
    """List, download and find data sets."""


@data.command("list")
@_options("json")
def list_sets(as_json: bool) -> None:
    """Every data set, and whether it is here."""
    from pcnn_bench.datasets import available

    sets = available()
    if as_json:
        _print_json([{**asdict(one), "folder": one.folder and str(one.folder)} for one in sets])
        return
    width = max(len(one.name) for one in sets)
    for one in sets:
        place = one.remedy or (str(one.folder) if one.folder else "made when asked for")
        click.echo(f"{one.name:<{width}}  {one.description}")
        click.echo(f"{'':<{width}}  {'missing: ' if one.remedy else ''}{place}")


@data.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Download a data set into the cache."""
    from pcnn_bench.datasets import fetch as fetch_set

    click.echo(fetch_set(name, report=lambda line: click.echo(line, err=True)))


@data.command()
@click.argument("name")
@_options("json")
def where(name: str, as_json: bool) -> None:
    """The folders searched for a data set, in order."""
    from pcnn_bench.datasets import where as folders_of

    folders = [(str(folder), is_there) for folder, is_there in folders_of(name)]
    if as_json:
        _print_json([{"folder": folder, "is_there": is_there} for folder, is_there in folders])
        return
    for folder, is_there in folders:
        click.echo(f"{folder}  {'found' if is_there else 'not here'}")
    if not folders:
        click.echo(f"{name} is made when it is used; no folder is searched")


def _load(config: Path, overrides: Sequence[str]) -> Config:
    from pcnn_bench.config import load_config

    return load_config(config, overrides)


def _print_json(content: object) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))
