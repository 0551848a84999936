"""What every op has: how it computes one or more consecutive layers, and what the plan must know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.layers import Shape
from pcnn_bench.network import Layer
from pcnn_cuda.device import BoundLaunch, Compiler, DeviceArray, Kernel

Direction = Literal["push", "pull"]
"""Backward from above, each unit adding its error to those below, or from below, each unit gathering it."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The arrays of one stage, sized for the largest batch; an op takes the first n images of each.

    ``parameter`` is all ``parameters`` side by side, in their order, as ``gradient`` is all ``gradients``.
    ``y`` of a loss is its losses; ``history`` holds those of many steps, ``first`` (1,) the place of the next ones.
    ``grad_x`` is None where no input gradient is needed, ``grad_y`` where nothing comes back. Arrays that the op
    asked for with ``saved`` and ``workspace`` are under these names.
    """

    x: DeviceArray
    y: DeviceArray
    grad_x: DeviceArray | None = None
    grad_y: DeviceArray | None = None
    labels: DeviceArray | None = None
    predictions: DeviceArray | None = None
    history: DeviceArray | None = None
    first: DeviceArray | None = None
    parameter: DeviceArray | None = None
    gradient: DeviceArray | None = None
    parameters: Mapping[str, DeviceArray] = field(default_factory=dict)
    gradients: Mapping[str, DeviceArray] = field(default_factory=dict)
    saved: Mapping[str, DeviceArray] = field(default_factory=dict)
    workspace: Mapping[str, DeviceArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartialSums:
    """A gradient that backward leaves as the sums of ``split_count`` parts of the batch.

    ``partials`` (split_count, count); ``gradient`` (count): everything the stage owns, or a part that lies together.
    """

    partials: DeviceArray
    split_count: int
    gradient: DeviceArray


class Op(ABC):
    """An implementation of one or more consecutive layers.

    The constructor only looks at sizes; ``batch_size`` is what the op is made for, though any smaller batch will do.
    ``load`` compiles. The class attributes tell the plan how long tensors live
    and which may share memory.
    """

    stem: ClassVar[str]
    is_view: ClassVar[bool] = False
    """y is x under another shape, and grad_x is grad_y: nothing is launched."""
    in_place: ClassVar[bool] = False
    """y may overwrite x, and grad_x may overwrite grad_y."""
    backward_reads_x: ClassVar[bool] = False
    backward_reads_y: ClassVar[bool] = False

    has_aside: ClassVar[bool] = False
    """Backward has launches that may run beside those of the layers below: see ``backward_aside``."""

    sum_kernel: ClassVar[str] = ""
    """The kernel of ``add_up``, which is not launched where the update takes all ``partial_sums``."""

    forward_writes_grad_x: ClassVar[bool] = False
    """A loss that computes its gradient at once; backward launches nothing."""

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        self.layers = tuple(layers)
        self.wanted_direction = direction
        self.batch_size = batch_size
        self.kernels: Mapping[str, Kernel] = {}

    @classmethod
    def fits(cls, layers: Sequence[Layer]) -> bool:
        """Whether the op can cover these layers, which are of its kinds; sizes may be too much for a block."""
        return True

    @property
    def layer(self) -> Layer:
        """The one layer of an op that covers one."""
        (layer,) = self.layers
        return layer

    @property
    def direction(self) -> Literal["", "push", "pull"]:
        """How backward moves errors; empty for an op that has no choice."""
        return ""

    @property
    def source(self) -> str:
        """The ``.cu`` file that holds the op's kernels."""
        return f"{self.stem}.cu"

    @property
    def merges(self) -> dict[StagePhase, tuple[StagePhase, ...]]:
        """Phases that do the work of others too, as ``Stage.merges``."""
        return {"forward": ("backward",)} if self.forward_writes_grad_x else {}

    def constants(self) -> dict[str, int]:
        """The ``-D`` constants its source is compiled with."""
        return {}

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """Arrays that forward leaves for backward: name -> (shape for one image, dtype)."""
        return {}

    def workspace(self, batch_size: int) -> dict[str, tuple[Shape, str]]:
        """Arrays that live during backward alone: name -> (whole shape for the largest batch, dtype)."""
        return {}

    def load(self, compiler: Compiler) -> None:
        """Compile the kernels."""
        if not self.is_view:
            self.kernels = compiler.compile(self.source, **self.constants())

    @abstractmethod
    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """The launches that compute y from x for n images."""

    @abstractmethod
    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """The launches that compute grad_x (unless None) and the parameters' gradients for n images.

        Gradients may be left to ``backward_aside``; or as parts, to be summed by ``add_up`` or by the update.
        """

    def backward_aside(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """The launches that compute gradients alone: they may run beside the backward of the layers below."""
        return []

    def partial_sums(self, n: int, t: Tensors) -> list[PartialSums]:
        """The sums over splits that an update of all layers at once can do on its way."""
        return []

    def partial_count(self, n: int) -> int:
        """The elements of all ``partial_sums``."""
        return 0

    def add_up(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """The launches that complete the gradients where the update does not."""
        return []

    def work(self, n: int) -> dict[StagePhase, Work]:
        """What forward and backward execute for n images, ``add_up`` included; phases without a launch are left out.

        An op that does what the layer's spec counts, layer by layer, need not say more.
        """
        if self.is_view:
            return {}
        forward = [(layer.spec, layer.batch_x(n)) for layer in self.layers]
        work: dict[StagePhase, Work] = {
            "forward": Work(
                sum(spec.forward_flops(x) for spec, x in forward),
                sum(spec.forward_bytes(x) for spec, x in forward),
            )
        }
        backward = [
            (layer.spec, layer.batch_x(n), layer.needs_grad_x)
            for layer in self.layers
            if layer.needs_backward
        ]
        if backward:
            work["backward"] = Work(
                sum(spec.backward_flops(x, needed) for spec, x, needed in backward),
                sum(spec.backward_bytes(x, needed) for spec, x, needed in backward),
            )
        return work
