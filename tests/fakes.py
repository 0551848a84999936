"""An engine that computes nothing: it logs what is asked of it, on a clock that only it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from pcnn_bench import timing, training
from pcnn_bench.engine import MemoryUse, Phase, Probe, Stage, StageClock, StagePhase, Work
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Floats, Labels, Layer, Network
from pcnn_bench.training import Images

CLASSES = 3
INPUT = (1, 4, 3)


def small_network() -> Network:
    """Flatten, dense and the loss."""
    specs = [FlattenSpec(), DenseSpec(out_features=CLASSES)]
    return Network(INPUT, specs, SoftmaxCrossEntropySpec())


def small_images(train_count: int, test_count: int = 7) -> Images:
    """Images whose every pixel is the image's own number, so that a batch shows what it holds."""

    def images(count: int) -> Floats:
        return np.broadcast_to(
            np.arange(count, dtype=np.float32)[:, None, None, None], (count, *INPUT)
        ).copy()

    def labels(count: int) -> Labels:
        return (np.arange(count) % CLASSES).astype(np.int32)

    return Images(
        images(train_count), labels(train_count), images(test_count), labels(test_count), True
    )


class FakeTime:
    """A clock that stands still until an engine works; processor time may run faster or slower."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.cpu_us = 0.0

    def work(self, time_us: float, cpu_share: float = 1.0) -> None:
        """Let time pass."""
        self.now_us += time_us
        self.cpu_us += time_us * cpu_share

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make training and timing read this clock."""
        monkeypatch.setattr(timing, "perf_counter_ns", lambda: round(self.now_us * 1e3))
        monkeypatch.setattr(timing, "process_time_ns", lambda: round(self.cpu_us * 1e3))
        monkeypatch.setattr(training, "perf_counter", lambda: self.now_us / 1e6)
        monkeypatch.setattr(training, "process_time", lambda: self.cpu_us / 1e6)


class FakeClock:
    """Spans last what the engine says a phase lasts."""

    def __init__(self, engine: FakeEngine) -> None:
        self.kind: Literal["host", "device"] = "device"
        self.flags = ""
        self._engine = engine
        self._spans: list[tuple[str, Phase, float]] = []

    @contextmanager
    def span(self, stage: str, phase: Phase) -> Iterator[None]:
        """Note the span."""
        yield
        self._spans.append((stage, phase, self._engine.stage_us))

    def drain(self) -> list[tuple[str, Phase, float]]:
        """Wait, and hand the spans over."""
        self._engine.note("drain")
        self._engine.wait()
        spans, self._spans = self._spans, []
        return spans


@dataclass(slots=True)
class Costs:
    """Microseconds of an engine's work; ``step_us`` gets the number of the step and gives its time."""

    step_us: Callable[[int], float] = lambda number: 1000.0
    transfer_us: float = 10.0
    cpu_share: float = 1.0
    is_asynchronous: bool = False
    """Whether steps return at once and ``finish`` waits for them."""


@dataclass(slots=True)
class Trouble:
    """An error that the engine raises when something is asked of it for the ``count``-th time."""

    event: str
    error: BaseException
    count: int = 1


@dataclass(eq=False)
class FakeEngine:
    """``loss`` gives the loss of every image of a step from the batch size and the parameters."""

    name: Literal["baseline", "cuda"] = "baseline"
    device: Literal["cpu", "gpu", "emulated"] = "cpu"
    rung: str = ""
    batch_size: int = 4
    log: list[str] = field(default_factory=list)
    time: FakeTime = field(default_factory=FakeTime)
    costs: Costs = field(default_factory=Costs)
    loss: Callable[[int], float] = lambda count: 0.5
    test_loss: float = 0.5
    trouble: Trouble | None = None
    stage_us: float = 7.0
    compile_s: float = 0.0
    network: Network = field(default_factory=small_network)

    def __post_init__(self) -> None:
        self.stages = [_stage(layer) for layer in self.network.all_layers]
        self.transfer_s = 0.0
        self.resident = None
        self.learning_rate = 1.0
        self.loaded: list[dict[str, Floats]] = []
        self.batches: list[tuple[Floats, Labels]] = []
        self._values = self.network.initial_parameters(seed=0)
        self._count = 0
        self._steps = 0
        self._queued_us = 0.0
        self._losses: list[Floats] = []
        self.note("make")

    def note(self, event: str) -> None:
        """Log an event, and raise what is due at it."""
        self.log.append(f"{self.name} {event}")
        if self.trouble and self.trouble.event == event:
            self.trouble.count -= 1
            if self.trouble.count == 0:
                raise self.trouble.error

    def wait(self) -> None:
        """Let the time of all queued work pass."""
        self.time.work(self._queued_us, self.costs.cpu_share)
        self._queued_us = 0.0

    def load_parameters(self, parameters: Mapping[str, Floats]) -> None:
        self.note("load_parameters")
        self._values = {name: value.copy() for name, value in parameters.items()}
        self.loaded.append({name: value.copy() for name, value in parameters.items()})

    def parameters(self) -> dict[str, Floats]:
        self.wait()
        return {name: value.copy() for name, value in self._values.items()}

    def set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def set_batch(self, x: Floats, labels: Labels) -> None:
        self.note("set_batch")
        self.batches.append((x.copy(), labels.copy()))
        self._count = len(x)
        self.time.work(self.costs.transfer_us, self.costs.cpu_share)
        self.transfer_s += self.costs.transfer_us / 1e6

    def step(self, clock: StageClock | None = None) -> None:
        self.note("step" if clock is None else "step with clock")
        self._queued_us += self.costs.step_us(self._steps)
        self._steps += 1
        if not self.costs.is_asynchronous:
            self.wait()
        for stage in self.stages if clock else []:
            for phase in stage.work(self._count):
                assert clock is not None
                with clock.span(stage.name, phase):
                    pass
        for value in self._values.values():
            value -= np.float32(self.learning_rate * 0.25)
        self._losses.append(np.full(self._count, self.loss(self._count), np.float32))

    def take_losses(self) -> Floats:
        self.note("take_losses")
        self.wait()
        losses, self._losses = self._losses, []
        return np.concatenate(losses) if losses else np.empty(0, np.float32)

    def evaluate(self, x: Floats, labels: Labels) -> tuple[Floats, Labels]:
        self.note("evaluate")
        self.time.work(300.0)
        return np.full(len(x), self.test_loss, np.float32), labels.copy()

    def finish(self) -> None:
        self.note("finish")
        self.wait()

    def make_clock(self) -> StageClock:
        return FakeClock(self)

    def probe(self, stage: str, given: Probe) -> dict[str, npt.NDArray[np.floating]]:
        self.note("probe")
        return {"y": given.x}

    def memory(self) -> list[MemoryUse]:
        return [MemoryUse("peak", "", "allocated", 1 << 20)]

    def close(self) -> None:
        self.note("close")


def _stage(layer: Layer) -> Stage:
    """A layer that costs a round number of operations and bytes an image."""

    def work(batch_size: int) -> dict[StagePhase, Work]:
        each = Work(1000 * batch_size, 4000 * batch_size)
        phases: dict[StagePhase, Work] = {"forward": each}
        if layer.needs_backward:
            phases["backward"] = each
        if layer.parameters:
            phases["update"] = each
        return phases

    return Stage(layer.name, (layer.name,), layer.kind, work)
