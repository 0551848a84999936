"""The protocol every engine satisfies; training, timing and verification know nothing else of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from pcnn_bench.network import Floats, Labels, Network

Phase = Literal["forward", "backward", "update", "transfer", "step"]
StagePhase = Literal["forward", "backward", "update"]
STAGE_PHASES: tuple[StagePhase, ...] = ("forward", "backward", "update")
WHOLE_STEP = "*"
"""The stage name of rows that concern the whole step."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one phase of a stage executes for one batch."""

    flop_count: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The unit of timing: an op in its place, covering one or more consecutive layers.

    ``work`` gives, for a batch size, the phases in which the stage executes something; a phase that is absent is
    neither timed nor reported.
    """

    name: str
    layers: tuple[str, ...]
    op: str
    work: Callable[[int], Mapping[StagePhase, Work]]
    direction: Literal["", "push", "pull"] = ""
    merges: Mapping[StagePhase, tuple[StagePhase, ...]] = field(default_factory=dict)
    """For a phase that does the work of others too: which others."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One tensor an engine holds, or (``peak``) the most it held at one time, which concerns the whole step.

    Steps count the stage passes of a training step from 0; None where the tensor lives as long as the engine.
    """

    category: Literal[
        "dataset",
        "input",
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "workspace",
        "peak",
    ]
    stage: str
    tensor: str
    byte_count: int
    first_step: int | None = None
    last_step: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ResidentData:
    """A training set as an engine may keep it beside its kernels.

    ``images`` (I, C, H, W) are bytes; ``values`` (C, 256) float32 is what each byte is normalised to, so that every
    engine sees the same bits; ``labels`` (I,).
    """

    images: npt.NDArray[np.uint8]
    labels: Labels
    values: Floats


class DataKeeper(Protocol):
    """The part of an engine that takes batches from a training set kept beside its kernels."""

    def keep(self, data: ResidentData) -> None:
        """Bring the training set there; once."""
        ...

    def set_order(self, order: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """From now on each ``step`` takes the next batch by these indices, the last what is left; then it begins again.

        Raises:
            DataError: an index is none of the training set's.
        """
        ...

    def next_batch(self) -> tuple[Floats, Labels]:
        """Take the next batch as a step would, and bring it to the host: for checking."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """What a stage is given to be checked by itself: x, and the gradient of its output (or labels for the loss)."""

    x: Floats
    grad_y: Floats | None = None
    labels: Labels | None = None
    parameters: Mapping[str, Floats] = field(default_factory=dict)


class StageClock(Protocol):
    """Times the spans of one step; reads them only when drained, so timing adds no waits."""

    @property
    def kind(self) -> Literal["host", "device"]:
        """Whose time it reads."""
        ...

    @property
    def flags(self) -> str:
        """What is to be said of the times drained last; empty if nothing."""
        ...

    def span(self, stage: str, phase: Phase) -> AbstractContextManager[None]:
        """Bracket the work queued in the body."""
        ...

    def drain(self) -> list[tuple[str, Phase, float]]:
        """Wait once; (stage, phase, microseconds) of every span since the last call."""
        ...


class Engine(Protocol):
    """One implementation of the network, ready to train batches of up to ``batch_size`` images.

    Everything is allocated and compiled by the constructor. ``set_batch`` and ``step`` may only queue work;
    ``finish`` waits for it.
    """

    @property
    def name(self) -> Literal["baseline", "cuda"]:
        """Which implementation this is."""
        ...

    @property
    def device(self) -> Literal["cpu", "gpu", "emulated"]:
        """Where it runs."""
        ...

    @property
    def rung(self) -> str:
        """The rung of the ladder; empty for the baseline."""
        ...

    @property
    def network(self) -> Network:
        """What it trains."""
        ...

    @property
    def batch_size(self) -> int:
        """The most images in a batch."""
        ...

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages in forward order, the loss last."""
        ...

    @property
    def compile_s(self) -> float:
        """Host seconds spent compiling and loading kernels."""
        ...

    @property
    def transfer_s(self) -> float:
        """Host seconds spent in copies to and from the device since the engine was made."""
        ...

    def load_parameters(self, parameters: Mapping[str, Floats]) -> None:
        """Copy these in (full names, ``conv2d1.weight``) and zero the optimiser's state."""
        ...

    def parameters(self) -> dict[str, Floats]:
        """A copy of the parameters by full name; waits for queued steps."""
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Takes effect with the next step; 0 leaves the parameters as they are."""
        ...

    @property
    def resident(self) -> DataKeeper | None:
        """Where the engine keeps a training set, if it does; ``set_batch`` is then for other batches."""
        ...

    def set_batch(self, x: Floats, labels: Labels) -> None:
        """x (n, C, H, W), labels (n,), 1 <= n <= batch_size: bring the batch to where ``step`` reads it."""
        ...

    def step(self, clock: StageClock | None = None) -> None:
        """Forward, loss, backward and update on the batch set last."""
        ...

    def take_losses(self) -> Floats:
        """Wait; the loss of every image of every step since the last call, in training order."""
        ...

    def evaluate(self, x: Floats, labels: Labels) -> tuple[Floats, Labels]:
        """x (n, C, H, W), n <= batch_size -> losses (n,) and predicted classes (n,); parameters stay."""
        ...

    def finish(self) -> None:
        """Wait until everything queued is done."""
        ...

    def make_clock(self) -> StageClock:
        """A clock that measures this engine's spans."""
        ...

    def probe(self, stage: str, given: Probe) -> dict[str, npt.NDArray[np.floating]]:
        """Run one stage by itself on what is given; outputs hold NaN before it runs.

        Returns ``y`` (for a loss ``losses`` and ``predictions``), and where it has them ``grad_x`` and
        ``grad_<parameter>``; and the new ``<parameter>`` after two updates with these gradients that begin with zero
        velocity (two, so that momentum shows). Parameter names are the layer's own where one layer of the stage has
        any, else full names. Without ``grad_y`` (or labels) there is no backward. An engine with buffers for whole
        batches also returns ``beyond_batch``: how many elements past the images given were written. The engine's
        parameters are the given ones afterwards.
        """
        ...

    def memory(self) -> list[MemoryUse]:
        """Every tensor held while training, and one ``peak`` row."""
        ...

    def close(self) -> None:
        """Free everything; the engine is not used again."""
        ...
