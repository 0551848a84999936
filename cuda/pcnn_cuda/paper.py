"""The launches of a plan on paper: which kernels, over which grids; nothing is compiled and no device is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pcnn_bench.engine import Phase
from pcnn_cuda.binding import Binding
from pcnn_cuda.device import Argument, DeviceArray, check_arguments
from pcnn_cuda.launch import Launch, Parameter, check_limits, kernel_text, signatures
from pcnn_cuda.plan import Plan
from pcnn_cuda.sgd import Sgd

Launches = dict[tuple[str, Phase], list["PaperLaunch"]]
"""(stage, phase) -> its launches, in order; phases without any are left out."""


@dataclass(frozen=True, slots=True)
class PaperLaunch:
    """A launch as a device would queue it."""

    kernel_name: str
    parameters: Mapping[str, Parameter]
    shape: Launch

    def __call__(self) -> None:
        """Nothing runs on paper."""

    def rebind(self, **arguments: Argument) -> None:
        """Check ``arguments`` as a device does."""
        check_arguments(self.kernel_name, self.parameters, arguments, partial=True)


@dataclass(frozen=True, slots=True)
class PaperKernel:
    """A kernel of which only the signature is known."""

    name: str
    parameters: Mapping[str, Parameter]

    def bind(self, launch: Launch, /, **arguments: Argument) -> PaperLaunch:
        """Check ``arguments`` and ``launch`` as a device does.

        Raises:
            TypeError: an argument is missing, unknown, or of the wrong kind or element type.
            DeviceError: a GPU would refuse this launch, or an int exceeds 32 bits.
        """
        check_arguments(self.name, self.parameters, arguments)
        check_limits(self.name, launch)
        return PaperLaunch(self.name, self.parameters, launch)


class Paper:
    """Satisfies ``pcnn_cuda.device.Compiler`` by reading signatures."""

    def compile(self, source: str, /, **constants: int) -> dict[str, PaperKernel]:
        """The kernels that ``pcnn_cuda/<source>`` defines."""
        found = signatures(kernel_text(source))
        return {name: PaperKernel(name, parameters) for name, parameters in found.items()}


def launches_of(plan: Plan, n: int) -> Launches:
    """What a training step of n images launches, stage by stage; bringing the batch there is not among it.

    Raises:
        DeviceError: a GPU would refuse a launch.
    """
    paper, sgd = Paper(), Sgd(plan.optimizer)
    for stage in plan.stages:
        stage.op.load(paper)
    sgd.load(paper)
    memory = DeviceArray(0, (plan.byte_count,), "uint8")
    binding = Binding(plan, memory, sgd, lambda rows: DeviceArray(0, rows.shape, "int32"))
    step = binding.bind(plan.stages, n)
    return {
        (stage, phase): [cast(PaperLaunch, launch) for launch in launches]
        for phase, stage, launches in step.parts()
        if launches
    }
