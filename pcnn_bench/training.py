"""The one training loop: epochs, batches, evaluation; of an engine it knows only the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pcnn_bench.datasets import epoch_order
from pcnn_bench.engine import WHOLE_STEP, DataKeeper, Engine, ResidentData
from pcnn_bench.errors import FindingError, PcnnError
from pcnn_bench.network import Floats, Labels
from pcnn_bench.results import CheckRow, EpochRow

if TYPE_CHECKING:
    from pcnn_bench.datasets import Dataset

COMPARED_STEPS = 20
"""Steps whose losses are kept, to be compared between engines."""

FIRST_LOSS_BOUND = 1e-5
LOSS_BOUND = 1e-3
"""Relative difference from the baseline's loss allowed at step 1, and at each step compared."""
SPREAD_FACTOR = 4
"""Multiple of what permuted sums change in the baseline's own losses, allowed where that is more."""


DIVERGED_FACTOR = 1000
"""Multiple of the first step's loss beyond which no training comes back, even if it stays finite."""
GROWTH_FACTOR = 10
"""Growth of the baseline's own first losses beyond which rounding alone makes two trainings differ."""


class DivergedError(FindingError):
    """The loss stopped being a number, or grew beyond all measure; says where, and what would do."""


@dataclass(frozen=True, slots=True)
class Images:
    """A data set as the loop reads it, on the host.

    Images are float32 (N, C, H, W), normalised once for all engines so that each sees the same
    bits; labels are int32 (N,). ``resident`` is the training set once more, for engines that keep it.
    """

    train: Floats
    train_labels: Labels
    test: Floats
    test_labels: Labels
    has_accuracy: bool
    resident: ResidentData | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Images:
        """Normalise a loaded data set."""
        channels = dataset.train_images.shape[1]
        every_byte = np.broadcast_to(
            np.arange(256, dtype=np.uint8)[:, None, None, None], (256, channels, 1, 1)
        )
        values = np.ascontiguousarray(dataset.normalize(every_byte)[:, :, 0, 0].T)
        return cls(
            dataset.normalize(dataset.train_images),
            dataset.train_labels,
            dataset.normalize(dataset.test_images),
            dataset.test_labels,
            dataset.has_accuracy,
            ResidentData(dataset.train_images, dataset.train_labels, values),
        )

    def largest_batch(self, batch_size: int) -> int:
        """The most images that an engine is given at a time; buffers for more would never be used."""
        return min(batch_size, max(len(self.train), len(self.test)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the loop runs: epochs over the training set, in batches whose order ``seed`` draws."""

    epochs: int
    batch_size: int
    seed: int
    learning_rate: float

    def batches(self, images: Images, epoch: int) -> Iterator[tuple[Floats, Labels]]:
        """The batches of ``epoch`` (from 1), gathered one by one; the last holds what is left."""
        order = epoch_order(len(images.train), self.seed, epoch)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield images.train[chosen], images.train_labels[chosen]


@dataclass(slots=True)
class TrainingRecord:
    """What one engine's training has yielded so far; valid at any moment."""

    epochs: list[EpochRow] = field(default_factory=list)
    step_losses: list[float] = field(default_factory=list)
    """Mean loss of each of the first ``COMPARED_STEPS`` steps."""
    predictions: Labels | None = None
    """Classes predicted for the test set after the last epoch, (N,)."""
    train_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of this process during ``train_s``."""
    transfer_s: float = 0.0
    eval_s: float = 0.0
    image_count: int = 0

    @property
    def cpu_over_wall(self) -> float | None:
        """Processor time over wall time of the training; about 1 for a sequential engine."""
        return self.cpu_s / self.train_s if self.train_s > 0 else None


def train(
    engine: Engine,
    images: Images,
    schedule: Schedule,
    record: TrainingRecord,
    on_epoch: Callable[[EpochRow], None],
) -> None:
    """Train from the parameters held; ``record`` grows by each epoch, then ``on_epoch`` is called.

    The wall time of an epoch runs from its shuffle to its last update. Reading the losses,
    evaluation and ``on_epoch`` are outside it. Nothing is looked at inside an epoch, so a loss that
    is no number shows at its end.

    Raises:
        DivergedError: a loss is not finite, or a step's more than ``DIVERGED_FACTOR`` times the first
            step's; a row with status ``diverged`` has been recorded.
        KeyboardInterrupt: likewise, with status ``interrupted``.
        PcnnError, MemoryError: the engine failed; a row with status ``failed`` has been recorded, but
            ``on_epoch`` was not called, since it might ask the engine for more.
    """
    engine.set_learning_rate(schedule.learning_rate)
    for number in range(1, schedule.epochs + 1):
        epoch = _Epoch(engine, images, schedule, record, number)
        try:
            epoch.train()
            epoch.evaluate()
        except (DivergedError, KeyboardInterrupt) as ending:
            if epoch.image_count:
                epoch.end("diverged" if isinstance(ending, DivergedError) else "interrupted")
                on_epoch(record.epochs[-1])
            raise
        except (PcnnError, MemoryError):
            if epoch.image_count:
                epoch.end("failed")
            raise
        epoch.end("ok")
        on_epoch(record.epochs[-1])


@dataclass(slots=True)
class _Epoch:
    """One epoch of one engine, and what is known of it so far."""

    engine: Engine
    images: Images
    schedule: Schedule
    record: TrainingRecord
    number: int
    image_count: int = 0
    wall_s: float = 0.0
    train_loss: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None

    def train(self) -> None:
        """Run every batch; the loss is the mean over the images."""
        engine, record = self.engine, self.record
        transfer_s = engine.transfer_s
        cpu_start, start = process_time(), perf_counter()
        try:
            if engine.resident:
                self._step_resident(engine.resident)
            else:
                for x, labels in self.schedule.batches(self.images, self.number):
                    engine.set_batch(x, labels)
                    engine.step()
                    self.image_count += len(labels)
            engine.finish()
        finally:
            self.wall_s = perf_counter() - start
            record.cpu_s += process_time() - cpu_start
            record.train_s += self.wall_s
            record.transfer_s += engine.transfer_s - transfer_s
            record.image_count += self.image_count
        losses = engine.take_losses()
        _keep_step_losses(record, losses, self.schedule.batch_size)
        self._require_finite(losses)
        self.train_loss = mean(losses)
        self._require_bounded(losses)

    def _step_resident(self, keeper: DataKeeper) -> None:
        """The same batches from the training set that the engine keeps."""
        count, size = len(self.images.train), self.schedule.batch_size
        keeper.set_order(epoch_order(count, self.schedule.seed, self.number))
        for start in range(0, count, size):
            self.engine.step()
            self.image_count += min(size, count - start)

    def evaluate(self) -> None:
        """Run the test set; without one, or without labels that mean anything, the figures stay None."""
        images, record = self.images, self.record
        start = perf_counter()
        losses, predictions = evaluate(self.engine, images.test, images.test_labels)
        record.eval_s += perf_counter() - start
        if len(losses) == 0:
            return
        if not np.isfinite(losses).all():
            raise self._diverged(f"the test loss is not finite after epoch {self.number}")
        record.predictions = predictions
        self.test_loss = mean(losses)
        if images.has_accuracy:
            self.test_accuracy = float((predictions == images.test_labels).mean())

    def end(self, status: str) -> None:
        """Record the epoch's row."""
        images_per_s = self.image_count / self.wall_s if self.wall_s > 0 else 0.0
        self.record.epochs.append(
            EpochRow(
                self.engine.name,
                self.engine.device,
                self.engine.rung,
                self.number,
                self.train_loss,
                self.test_loss,
                self.test_accuracy,
                self.wall_s,
                images_per_s,
                status,
            )
        )

    def _require_finite(self, losses: Floats) -> None:
        """Raise DivergedError at the first loss that is no number."""
        wrong = np.flatnonzero(~np.isfinite(losses))
        if len(wrong):
            size = self.schedule.batch_size
            raise self._diverged(
                f"the loss became {losses[wrong[0]]} in epoch {self.number}, "
                f"batch {wrong[0] // size + 1} of {-(-len(losses) // size)}"
            )

    def _require_bounded(self, losses: Floats) -> None:
        """Raise DivergedError at the first step whose loss is out of all proportion."""
        size = self.schedule.batch_size
        first = self.record.step_losses[0]
        step_losses = [mean(losses[start : start + size]) for start in range(0, len(losses), size)]
        for step, loss in enumerate(step_losses, 1):
            if loss > DIVERGED_FACTOR * first:
                raise self._diverged(
                    f"the loss grew from {first:.4g} in the first step to {loss:.4g} in epoch "
                    f"{self.number}, batch {step} of {len(step_losses)}"
                )

    def _diverged(self, what: str) -> DivergedError:
        return diverged(self.engine, what, self.schedule)


def diverged(engine: Engine, what: str, schedule: Schedule) -> DivergedError:
    """The error, with the remedy."""
    name = f"{engine.name} {engine.rung}".rstrip()
    return DivergedError(
        f"engine {name} ({engine.device}): {what}; "
        f"lower training.optimizer.learning_rate (now {schedule.learning_rate:g})"
    )


def evaluate(engine: Engine, x: Floats, labels: Labels) -> tuple[Floats, Labels]:
    """x (N, C, H, W), any N -> losses (N,) and predicted classes (N,)."""
    losses = np.empty(len(x), np.float32)
    predictions = np.empty(len(x), np.int32)
    for start in range(0, len(x), engine.batch_size):
        part = slice(start, start + engine.batch_size)
        losses[part], predictions[part] = engine.evaluate(x[part], labels[part])
    return losses, predictions


def first_losses(
    engine: Engine, images: Images, schedule: Schedule, *, is_reversed: bool = False
) -> list[float]:
    """Mean losses of the first ``COMPARED_STEPS`` steps from the parameters held, untimed.

    With ``is_reversed`` the images of each batch come in reverse: the same sums in another order,
    so the difference shows what rounding alone does to the losses.
    """
    engine.set_learning_rate(schedule.learning_rate)
    losses: list[float] = []
    for epoch in range(1, schedule.epochs + 1):
        for x, labels in schedule.batches(images, epoch):
            if len(losses) == COMPARED_STEPS:
                return losses
            step = -1 if is_reversed else 1
            engine.set_batch(np.ascontiguousarray(x[::step]), np.ascontiguousarray(labels[::step]))
            engine.step()
            losses.append(mean(engine.take_losses()))
    return losses


def mean(losses: npt.NDArray[np.floating]) -> float:
    """The mean over images, summed in float64: a partial batch weighs what it should."""
    return float(np.mean(losses, dtype=np.float64))


def _keep_step_losses(record: TrainingRecord, losses: Floats, batch_size: int) -> None:
    """Add this epoch's steps to the first ones, as many as are wanted."""
    missing = COMPARED_STEPS - len(record.step_losses)
    starts = range(0, len(losses), batch_size)[: max(missing, 0)]
    record.step_losses += [mean(losses[start : start + batch_size]) for start in starts]


def loss_checks(
    engine: Engine,
    found: Sequence[float],
    expected: Sequence[float],
    permuted: Callable[[], Sequence[float]],
) -> list[CheckRow]:
    """Hold the losses of the first steps against the baseline's: a row for step 1 and one for all.

    The second row allows a relative ``LOSS_BOUND`` at every step or, where that does not hold, what
    permuting its sums does to the baseline's own losses (``permuted``, called only then). It
    reports the step that comes closest to its bound, or is furthest beyond it.
    """
    losses, reference = np.asarray(found), np.asarray(expected)
    errors = np.abs(losses - reference)
    allowed = LOSS_BOUND * np.abs(reference)
    if not (errors <= allowed).all():
        spread = np.maximum.accumulate(np.abs(np.asarray(permuted()) - reference))
        allowed = np.maximum(allowed, SPREAD_FACTOR * spread)
    tiny = np.finfo(np.float64).tiny
    worst = int(np.argmax(errors / np.maximum(allowed, tiny)))  # a NaN counts as the largest
    return [
        _loss_row(engine, 1, errors[0], FIRST_LOSS_BOUND * abs(reference[0])),
        _loss_row(engine, len(losses), errors[worst], allowed[worst]),
    ]


def has_grown(losses: Sequence[float]) -> bool:
    """Whether training diverges in these steps, so that two engines cannot agree; a NaN counts."""
    return not all(loss <= GROWTH_FACTOR * losses[0] for loss in losses)


def _loss_row(engine: Engine, step_count: int, error: float, allowed: float) -> CheckRow:
    """``shape`` is the number of steps compared."""
    names = (engine.name, engine.device, engine.rung, WHOLE_STEP, "loss", str(step_count))
    status = "ok" if error <= allowed else "mismatch"
    return CheckRow(*names, float(error), float(allowed), status)
