"""One run: set up, check, train, compare, time, and a run folder that is valid at every moment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

import pcnn_bench.engines as packages
from pcnn_bench import __version__, environment, verify
from pcnn_bench.config import dump_config
from pcnn_bench.contender import Contender
from pcnn_bench.datasets import load_dataset
from pcnn_bench.engine import Engine
from pcnn_bench.errors import ConfigError, FindingError, ResultsError
from pcnn_bench.network import Floats, Labels
from pcnn_bench.progress import Progress, showing
from pcnn_bench.results import (
    SCHEMA_VERSION,
    TABLES,
    CheckRow,
    EpochRow,
    LayerRow,
    MemoryRow,
    RunFolder,
    SampleRow,
)
from pcnn_bench.timing import TimingPass, launch_once, time_engines
from pcnn_bench.training import (
    DivergedError,
    Images,
    Schedule,
    diverged,
    first_losses,
    has_grown,
    loss_checks,
    train,
)

if TYPE_CHECKING:
    from pcnn_bench.config import Config
    from pcnn_bench.datasets import Dataset
    from pcnn_cuda.device import Device


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has written: its folder, ``run.json`` and the rows of the five tables."""

    folder: Path
    document: dict[str, Any]
    layers: list[LayerRow]
    samples: list[SampleRow]
    epochs: list[EpochRow]
    memory: list[MemoryRow]
    checks: list[CheckRow]


def run(
    config: Config,
    *,
    device: str = "auto",
    engines: Sequence[str] | None = None,
    rung: str | None = None,
    output: Path = Path("results"),
    quiet: bool = False,
    argv: Sequence[str] = (),
    with_host: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Train, check and time every engine of ``config``; write one run folder inside ``output``.

    Whatever ends the run early, the folder keeps what there was and says what it is.

    Args:
        config: What to run; ``engines`` and ``rung`` replace what it says.
        device: ``auto``, ``gpu``, ``gpu:N`` or ``emulated``; not looked at without engine ``cuda``.
        output: The parent of the run folder; made if missing.
        quiet: No progress on stderr.
        argv: The command line, for ``run.json``; paths in it are cut to their last part.
        with_host: Whether ``environment.json`` names the host.
        say: Takes lines that the person must see; they go to stderr otherwise.

    Raises:
        FindingError: a result or a loss differs from the baseline's, or a training diverged.
        ConfigError: an engine or a rung is unknown.
        UnavailableError: data, device, folder or disk are unusable.
    """
    config = _resolved(config, engines, rung)
    network = config.build_network()
    # float64 is what all results are compared with
    dtypes: list[packages.BaselineType] = [np.float32, np.float64]
    packages.require_memory(network, 1, dtypes)  # before parameters are drawn or data loaded
    with ExitStack() as stack:
        progress = stack.enter_context(showing(quiet))
        say = say or progress.say
        blas = stack.enter_context(packages.one_blas_thread())
        progress.activity("loading data")
        dataset = load_dataset(
            config.data.set,
            folder=Path(config.data.folder) if config.data.folder else None,
            train_count=config.data.train_count,
            test_count=config.data.test_count,
            transpose=config.data.transpose,
            input_shape=config.network.input,
            seed=config.training.seed,
            class_count=network.output_shape[0],
        )
        images = Images.of(dataset)
        most = images.largest_batch(config.training.batch_size)
        packages.require_memory(network, most, dtypes)
        opened: Device | None = None
        if "cuda" in config.engines:
            opened = packages.open_device(device, nvcc_flags=config.cuda.nvcc_flags, say=say)
            stack.callback(opened.close)
        description = opened.describe() if opened else None
        commit = environment.commit()
        started = datetime.now(UTC)
        name = f"{started:%Y%m%dT%H%M%SZ}-{config.name}-{commit or __version__}"
        folder = RunFolder.create(output, name)
        facts = {
            "argv": [without_folders(word) for word in argv],
            "started_utc": started.isoformat(timespec="seconds"),
            "package_version": __version__,
            "commit": commit,
            "device": opened and {"kind": opened.kind, "name": (description or {}).get("name")},
        }
        job = _Job(config, dataset, images, opened, folder, progress, facts)
        stack.callback(job.close)
        try:
            job.write()
            folder.write_text("config.yaml", dump_config(config))
            folder.write_json(
                "environment.json", environment.collect(description, blas, with_host=with_host)
            )
            job.execute()
        except BaseException as error:
            job.end_early(error)
            if isinstance(error, FindingError):
                error.folder = folder.path
            if folder.path.is_dir():
                say(f"what there was is kept in {folder.path}")
            raise
        if job.message:
            say(job.message)
        return job.result()


class _Job:
    """The state of one run, and its steps in order."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        images: Images,
        device: Device | None,
        folder: RunFolder,
        progress: Progress,
        facts: dict[str, Any],
    ) -> None:
        training = config.training
        self.config = config
        self.network = config.build_network()
        self.dataset = dataset
        self.device = device
        self.folder = folder
        self.progress = progress
        self.facts = facts
        self.images = images
        self.schedule = Schedule(
            training.epochs, training.batch_size, training.seed, training.optimizer.learning_rate
        )
        self.parameters = self.network.initial_parameters(training.seed)
        self.contenders: list[Contender] = []
        self.current: Contender | None = None
        self.checks: list[CheckRow] = []
        # what a process that is killed leaves behind
        self.status, self.message = "interrupted", "the run has not ended"
        self.peak_memory_bytes: int | None = None

    def execute(self) -> None:
        """Take all engines through one part before the next part begins, the baseline first."""
        x, labels = next(self.schedule.batches(self.images, 1))
        for name in sorted(self.config.engines, key=packages.ENGINES.index):
            self.set_up(name)
        for contender in self.each():
            self.check(contender, x, labels)
        for contender in self.each():
            self.launch(contender, x, labels)
        for contender in self.each():
            self.train(contender)
        for contender in self.each():
            if contender.engine.name != "baseline":
                self.compare_losses(contender)
        self.time(x, labels)
        doubts = [contender.doubt for contender in self.contenders if contender.doubt]
        self.status, self.message = "ok", "; ".join(doubts)
        self.write()

    def each(self) -> Iterator[Contender]:
        """Every contender in turn; the one in hand is the one that an error concerns."""
        for contender in self.contenders:
            self.current = contender
            yield contender
        self.current = None

    def set_up(self, name: str) -> None:
        """Make an engine; its kernels are compiled here."""
        self.progress.activity(f"{name}: setting up")
        contender = Contender(self.make_engine(name))
        self.contenders.append(contender)
        engine = contender.engine
        engine.load_parameters(self.parameters)
        engine.set_learning_rate(self.schedule.learning_rate)  # the check compares updates too
        if engine.resident and self.images.resident:
            engine.resident.keep(self.images.resident)
        names = (engine.name, engine.device, engine.rung)
        contender.memory = [MemoryRow(*names, *astuple(use)) for use in engine.memory()]

    def launch(self, contender: Contender, x: Floats, labels: Labels) -> None:
        """Step once with a whole batch, and once with the last, partial one."""
        count, batch_size = len(self.images.train), self.schedule.batch_size
        partial_count = count % batch_size if count > batch_size else 0
        rate = self.schedule.learning_rate
        contender.engine.load_parameters(self.parameters)
        launch_once(contender.engine, x, labels, partial_count, rate, contender.timing)

    def make_engine(self, name: str) -> Engine:
        """Engine ``name`` for this network and batch."""
        size = self.images.largest_batch(self.schedule.batch_size)
        optimizer = self.config.training.optimizer
        if name == "baseline" or self.device is None:
            return packages.make_baseline(self.network, batch_size=size, optimizer=optimizer)
        return packages.make_cuda(
            self.network,
            batch_size=size,
            optimizer=optimizer,
            device=self.device,
            rung=packages.check_rung(self.config.cuda.rung, "cuda.rung"),
            direction=self.config.cuda.backward,
            history_images=len(self.images.train),
        )

    def check(self, contender: Contender, x: Floats, labels: Labels) -> None:
        """Compare every stage with the float64 baseline.

        Raises:
            FindingError: one differs.
        """
        self.progress.activity(f"{contender.label}: checking")
        optimizer = self.config.training.optimizer
        self.accept(
            verify.check_engine(
                contender.engine, self.network, self.parameters, x, labels, optimizer
            )
        )

    def train(self, contender: Contender) -> None:
        """Train from the initial parameters."""
        self.progress.activity(f"{contender.label}: training", self.schedule.epochs)
        contender.engine.load_parameters(self.parameters)

        def on_epoch(row: EpochRow) -> None:
            self.progress.epoch(row)
            self.write_weights(contender)
            self.write()

        train(contender.engine, self.images, self.schedule, contender.training, on_epoch)
        contender.status = "ok"

    def compare_losses(self, contender: Contender) -> None:
        """Hold the first losses against the baseline's, which are computed if it was not trained.

        Raises:
            FindingError: one differs.
            DivergedError: one differs, and the baseline's own have grown.
        """
        self.progress.activity(f"{contender.label}: comparing losses")
        trained = [other for other in self.contenders if other.engine.name == "baseline"]
        expected = trained[0].training.step_losses if trained else self.baseline_losses()
        found, engine = contender.training.step_losses, contender.engine
        rows = loss_checks(engine, found, expected, lambda: self.baseline_losses(is_reversed=True))
        try:
            self.accept(rows)
        except FindingError as error:
            if not has_grown(expected):
                raise
            what = (
                f"training diverges: the baseline's own loss grows from {expected[0]:.4g} to "
                f"{max(expected):.4g} in {len(expected)} steps, and the engine's losses differ"
            )
            raise diverged(engine, what, self.schedule) from error

    def baseline_losses(self, *, is_reversed: bool = False) -> list[float]:
        """The first losses of a baseline that is not measured."""
        engine = self.make_engine("baseline")
        try:
            engine.load_parameters(self.parameters)
            return first_losses(engine, self.images, self.schedule, is_reversed=is_reversed)
        finally:
            engine.close()

    def accept(self, rows: Sequence[CheckRow]) -> None:
        """Record comparisons.

        Raises:
            FindingError: not all are ``ok``.
        """
        self.checks += rows
        self.write()
        wrong = [row for row in rows if row.status != "ok"]
        if wrong:
            first = wrong[0]
            precision = " in float64" if first.engine == "baseline" else ""
            raise FindingError(
                f"engine {first.engine} ({first.device}): {len(wrong)} of {len(rows)} results "
                f"differ from the baseline's{precision}, first {first.quantity} of stage {first.stage}: "
                f"off by {first.max_abs_error:.3g}, allowed {first.allowed_error:.3g}; "
                f"see {self.folder.path / 'checks.csv'}"
            )

    def time(self, x: Floats, labels: Labels) -> None:
        """The timing pass of all engines, on the parameters as trained."""
        self.progress.activity("timing")
        rate, timing = self.schedule.learning_rate, self.config.timing
        passes = [
            TimingPass(each.engine, x, labels, timing, rate, each.timing)
            for each in self.contenders
        ]
        time_engines(passes)
        self.write()

    def end_early(self, error: BaseException) -> None:
        """Flag what there is and write it, as far as the disk lets us."""
        if isinstance(error, KeyboardInterrupt):
            self.status, self.message = "interrupted", "interrupted from the keyboard"
        else:
            self.status = "diverged" if isinstance(error, DivergedError) else "failed"
            self.message = str(error) or type(error).__name__
        for contender in self.contenders:
            if contender is self.current or contender.timing.is_cut_short:
                contender.status = self.status
            elif contender.status == "interrupted":  # its turn has not come
                contender.status = "not run"
        with suppress(ResultsError):
            self.folder.force_json("run.json", self.document())  # it says what the tables are
            self.write()

    def write_weights(self, contender: Contender) -> None:
        """Store the parameters as they are now."""
        engine = contender.engine
        facts = {"config": self.config.name, "device": engine.device}
        facts |= {"engine": engine.name, "rung": engine.rung}
        # one entry, since safetensors writes several in a random order
        data = safetensors.numpy.save(engine.parameters(), {"pcnn_bench": json.dumps(facts)})
        self.folder.write_bytes(f"weights-{contender.label}.safetensors", data)

    def write(self) -> None:
        """Refresh the tables, then ``run.json``, which speaks of them."""
        self.peak_memory_bytes = environment.peak_memory_bytes()
        result = self.result()
        for name in TABLES:
            self.folder.write_table(name, getattr(result, name))
        self.folder.write_json("run.json", result.document)

    def result(self) -> RunResult:
        """Everything as it stands."""
        batch_size = min(self.schedule.batch_size, len(self.images.train))
        return RunResult(
            folder=self.folder.path,
            document=self.document(),
            layers=[row for one in self.contenders for row in one.layer_rows(batch_size)],
            samples=[row for one in self.contenders for row in one.timing.samples],
            epochs=[row for one in self.contenders for row in one.training.epochs],
            memory=[row for one in self.contenders for row in one.memory],
            checks=list(self.checks),
        )

    def document(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        dataset = self.dataset
        return {
            "schema": SCHEMA_VERSION,
            "status": self.status,
            "message": self.message,
            "name": self.config.name,
            **self.facts,
            "data": {
                "set": self.config.data.set,
                "sha256": dataset.sha256,
                "train_count": len(dataset.train_images),
                "test_count": len(dataset.test_images),
                "has_accuracy": dataset.has_accuracy,
            },
            "engines": [contender.entry() for contender in self.contenders],
            "agreement": self.agreement(),
            "peak_memory_bytes": self.peak_memory_bytes,
        }

    def agreement(self) -> dict[str, float | None]:
        """Predictions that both have in common, and accuracy of cuda less the baseline's."""
        trained = [one for one in self.contenders if one.training.predictions is not None]
        if len(trained) < 2:
            return {"predictions_equal": None, "accuracy_difference": None}
        baseline, cuda = trained
        is_equal = baseline.training.predictions == cuda.training.predictions
        found, expected = cuda.test_accuracy, baseline.test_accuracy
        return {
            "predictions_equal": float(np.mean(is_equal)),
            "accuracy_difference": None if found is None or expected is None else found - expected,
        }

    def close(self) -> None:
        """Free the engines."""
        for contender in self.contenders:
            contender.engine.close()


def _resolved(config: Config, names: Sequence[str] | None, rung: str | None) -> Config:
    """The config with the engines and the rung that will run: stored, it runs the same again."""
    if names is not None:
        packages.check_names(names, "--engine")
        config = config.model_copy(update={"engines": tuple(names)})
    if "cuda" in config.engines:
        chosen, *_ = packages.check_rungs(config, rung)
        cuda = config.cuda.model_copy(update={"rung": chosen})
        config = config.model_copy(update={"cuda": cuda})
    elif rung is not None:
        raise ConfigError("--rung: concerns engine cuda, which does not run; leave it out")
    return config


def without_folders(word: str) -> str:
    """A word of the command line without its folders: ``--output=/home/me/x`` -> ``--output=x``."""
    key, equals, value = word.rpartition("=")
    return key + equals + (re.split(r"[/\\]", value.rstrip("/\\"))[-1] or value)
