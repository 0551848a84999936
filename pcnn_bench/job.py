"""The steps of one run in order: set up, check, launch, train, compare, time; what there is stays valid and on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.numpy

import pcnn_bench.engines as packages
from pcnn_bench import environment, verify
from pcnn_bench.contender import Contender
from pcnn_bench.engine import Engine
from pcnn_bench.errors import DeviceMemoryError, FindingError, ResultsError
from pcnn_bench.network import Floats, Labels
from pcnn_bench.progress import Progress
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


class Job:
    """The state of one run, and its steps in order."""

    def __init__(
        self,
        config: Config,
        rungs: Sequence[str],
        dataset: Dataset,
        images: Images,
        device: Device | None,
        folder: RunFolder,
        progress: Progress,
        facts: dict[str, Any],
        *,
        is_ladder: bool = False,
    ) -> None:
        """``rungs`` are those of engine cuda; ``facts`` go to ``run.json`` as they are.

        A ladder also says what each rung's plan has over the one before, and how fast the device is at best.
        """
        training = config.training
        self.config = config
        self.rungs = rungs
        self.is_ladder = is_ladder
        self.plans: Mapping[str, dict[str, Any]] = {}
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
        self._first_losses: dict[bool, list[float]] = {}

    def execute(self) -> None:
        """Take all engines through one part before the next part begins, the baseline first."""
        x, labels = next(self.schedule.batches(self.images, 1))
        if self.is_ladder:
            self.plans = packages.compare_plans(
                self.network,
                self.rungs,
                batch_size=self.images.largest_batch(self.schedule.batch_size),
                optimizer=self.config.training.optimizer,
                direction=self.config.cuda.backward,
            )
        for name in sorted(self.config.engines, key=packages.ENGINES.index):
            for rung in ("",) if name == "baseline" else self.rungs:
                self.set_up(name, rung)
        for contender in self.each():
            self.check(contender, x, labels)
        for contender in self.each():
            self.launch(contender, x, labels)
        for contender in self.each():
            self.train(contender)
        for contender in self.each():
            if contender.engine.name != "baseline":
                self.compare_losses(contender)
        if self.is_ladder:
            self.measure()
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

    def set_up(self, name: str, rung: str) -> None:
        """Make an engine; its kernels are compiled here."""
        self.progress.activity(f"{name} {rung}".rstrip() + ": setting up")
        contender = Contender(self.make_engine(name, rung), self.plans.get(rung, {}))
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

    def make_engine(self, name: str, rung: str = "") -> Engine:
        """Engine ``name`` for this network and batch.

        Raises:
            DeviceMemoryError: it does not fit beside those that are made already.
        """
        size = self.images.largest_batch(self.schedule.batch_size)
        optimizer = self.config.training.optimizer
        if name == "baseline" or self.device is None:
            return packages.make_baseline(self.network, batch_size=size, optimizer=optimizer)
        try:
            return packages.make_cuda(
                self.network,
                batch_size=size,
                optimizer=optimizer,
                device=self.device,
                rung=rung,
                direction=self.config.cuda.backward,
                history_images=len(self.images.train),
            )
        except DeviceMemoryError as error:
            others = ", ".join(each.engine.rung for each in self.contenders if each.engine.rung)
            if not others:
                raise
            raise DeviceMemoryError(f"rung {rung}, beside {others}: {error}") from error

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
        """The first losses of a baseline that is not measured; computed when they are first asked for."""
        if is_reversed not in self._first_losses:
            engine = self.make_engine("baseline")
            try:
                engine.load_parameters(self.parameters)
                self._first_losses[is_reversed] = first_losses(
                    engine, self.images, self.schedule, is_reversed=is_reversed
                )
            finally:
                engine.close()
        return self._first_losses[is_reversed]

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
            name = f"{first.engine} {first.rung}".rstrip()
            raise FindingError(
                f"engine {name} ({first.device}): {len(wrong)} of {len(rows)} results "
                f"differ from the baseline's{precision}, first {first.quantity} of stage {first.stage}: "
                f"off by {first.max_abs_error:.3g}, allowed {first.allowed_error:.3g}; "
                f"see {self.folder.path / 'checks.csv'}"
            )

    def measure(self) -> None:
        """How fast the device is at best, for the memory that each rung of a ladder works in.

        Raises:
            FindingError: what measures it does not compute what it should.
        """
        assert self.device is not None
        self.progress.activity("measuring the device's ceilings")
        sizes = {
            row.rung: row.byte_count
            for one in self.contenders
            for row in one.memory
            if one.engine.rung and (row.category, row.tensor) == ("peak", "allocated")
        }
        self.facts["ceilings"] = packages.measure_ceilings(self.device, sizes)
        self.write()

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
            "engines": [
                {**contender.entry(), "agreement": self.agreement(contender)}
                for contender in self.contenders
            ],
            "peak_memory_bytes": self.peak_memory_bytes,
        }

    def agreement(self, contender: Contender) -> dict[str, float | None] | None:
        """Predictions that both have in common, and accuracy less the baseline's; None for what is not known."""
        baseline = next((one for one in self.contenders if one.engine.name == "baseline"), None)
        if baseline is None or contender is baseline:
            return None
        found, expected = contender.training.predictions, baseline.training.predictions
        if found is None or expected is None:
            return None
        ours, theirs = contender.test_accuracy, baseline.test_accuracy
        return {
            "predictions_equal": float((found == expected).mean()),
            "accuracy_difference": None if ours is None or theirs is None else ours - theirs,
        }

    def close(self) -> None:
        """Free the engines."""
        for contender in self.contenders:
            contender.engine.close()
