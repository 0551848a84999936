"""The launches of a training step: in order, under a clock, or with their branches as they are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcnn_bench.engine import Phase, StageClock
from pcnn_cuda.device import Aside, BoundLaunch, Section
from pcnn_cuda.plan import UPDATE_NAME, PlannedStage


@dataclass(slots=True)
class StageLaunches:
    """The launches of one stage for one batch size."""

    stage: PlannedStage
    forward: list[BoundLaunch]
    backward: list[BoundLaunch]
    """What the backward of the stage below waits for."""
    aside: list[BoundLaunch]
    """The rest of backward, which only the update waits for."""
    update: list[BoundLaunch]


@dataclass(slots=True)
class Step:
    """The launches of every stage, and of the update of all layers at once where the plan has one."""

    stages: Sequence[StageLaunches]
    update: list[BoundLaunch] = field(default_factory=list)

    def launch(self, clock: StageClock | None = None) -> None:
        """Queue all, one after another."""
        for phase, stage, launches in self.parts():
            launch_timed(clock, stage, phase, launches)

    def parts(self) -> list[tuple[Phase, str, list[BoundLaunch]]]:
        """(phase, stage, its launches), in the order of a step that is not recorded."""
        parts: list[tuple[Phase, str, list[BoundLaunch]]] = []
        for each in self.stages:
            parts.append(("forward", each.stage.info.name, each.forward))
        for each in reversed(self.stages):
            parts.append(("backward", each.stage.info.name, each.backward + each.aside))
        for each in self.stages:
            parts.append(("update", each.stage.info.name, each.update))
        parts.append(("update", UPDATE_NAME, self.update))
        return parts

    def sections(
        self, advance: Sequence[BoundLaunch], gather_next: Sequence[BoundLaunch]
    ) -> list[Section]:
        """The step as it is recorded: what only the update waits for runs beside the errors' way down.

        ``advance`` moves the places that forward reads; ``gather_next`` brings the next batch, beside the update.
        """
        passes: list[BoundLaunch | Aside] = [
            launch for each in self.stages for launch in each.forward
        ]
        passes += _aside(advance)
        for each in reversed(self.stages):
            passes += each.backward
            passes += _aside(each.aside)  # which may join what backward left in parts
        updates = [launch for each in self.stages for launch in each.update]
        return [passes, [*_aside(gather_next), *updates, *self.update]]


def launch_timed(
    clock: StageClock | None, stage: str, phase: Phase, launches: Sequence[BoundLaunch]
) -> None:
    """Queue launches in order, inside a span if there is a clock; a phase without launches has none."""
    if clock is None:
        launch_all(launches)
    elif launches:
        with clock.span(stage, phase):
            launch_all(launches)


def launch_all(launches: Sequence[BoundLaunch]) -> None:
    """Queue them in order."""
    for launch in launches:
        launch()


def _aside(launches: Sequence[BoundLaunch]) -> list[Aside]:
    return [Aside(tuple(launches))] if launches else []
