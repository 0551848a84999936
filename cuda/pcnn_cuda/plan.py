"""Network + rung + batch size -> stages and where each of their tensors lies; arithmetic alone, no device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from pcnn_bench.engine import MemoryUse, Stage, StagePhase, Work
from pcnn_bench.errors import DeviceError
from pcnn_bench.layers import Shape
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.network import Network
from pcnn_bench.optimizers import OptimizerSpec
from pcnn_cuda.ladder import CAPTURED, UPDATED_AT_ONCE, cover
from pcnn_cuda.launch import MAX_INDEX
from pcnn_cuda.op import Direction, Op
from pcnn_cuda.sgd import Sgd

ALIGNMENT_BYTES = 256
"""What cudaMalloc gives, and enough for any vector load."""
HISTORY_BATCHES = 512
"""Batches, at least, whose losses the device keeps before the host must fetch them: a timed block of steps."""

SIDE_BY_SIDE = ("gradients", "parameters", "velocity")
"""Tensors that lie together, layer after layer, so that one launch can update them all."""
UPDATE_NAME = "update"
"""The stage of that launch."""

Category = Literal["input", "parameters", "gradients", "optimizer", "activations", "workspace"]


@dataclass(slots=True)
class Tensor:
    """One piece of the allocation. ``first_step`` and ``last_step`` are None for what lives as long as the engine."""

    stage: str
    name: str
    category: Category
    shape: Shape
    dtype: str = "float32"
    first_step: int | None = None
    last_step: int | None = None
    offset: int = -1

    @property
    def byte_count(self) -> int:
        """Size without the alignment's padding."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def reserved_bytes(self) -> int:
        """Size rounded up to the alignment."""
        return -(-self.byte_count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def use(self, step: int) -> None:
        """Extend the life to ``step``; what lives always is left alone."""
        if self.first_step is not None and self.last_step is not None:
            self.first_step = min(self.first_step, step)
            self.last_step = max(self.last_step, step)


@dataclass(frozen=True, slots=True)
class View:
    """A stage's sight of a tensor: the same memory under the stage's own shape."""

    tensor: Tensor
    shape: Shape
    first: int = 0
    """Elements skipped."""


@dataclass(slots=True)
class PlannedStage:
    """One op in its place, and the views it works on; names as in ``op.Tensors``."""

    info: Stage
    op: Op
    x: View
    y: View
    grad_x: View | None
    grad_y: View | None
    parameters: dict[str, View]
    gradients: dict[str, View]
    saved: dict[str, View]
    workspace: dict[str, View]
    parameter: Tensor | None
    gradient: Tensor | None
    velocity: Tensor | None

    @property
    def needs_backward(self) -> bool:
        """Whether backward computes anything here."""
        return self.grad_x is not None or self.gradient is not None

    @property
    def is_loss(self) -> bool:
        """Whether the stage compares with labels."""
        return self.op.layers[-1].y_shape == ()


class Plan:
    """The stages of a network under a rung, and one allocation that holds every tensor.

    Steps count the passes of a training step: stage i runs forward in step i and backward in step 2S - 1 - i, S stages;
    the update is step 2S. Tensors whose lives do not meet share memory; what a recorded step may read beside the passes
    that follow lives until the last of them. The losses of ``history_images`` images, an epoch's, are kept.

    Raises:
        ConfigError: a rung that is not built.
        DeviceError: a tensor that 32-bit indices cannot reach.
    """

    def __init__(
        self,
        network: Network,
        *,
        rung: str,
        batch_size: int,
        optimizer: OptimizerSpec,
        direction: Direction | None = None,
        history_images: int = 0,
    ) -> None:
        self.network = network
        self.rung = rung
        self.direction = direction
        self.history_images = history_images
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.static: list[Tensor] = []
        self.arena: list[Tensor] = []
        self.input = self._keep("", "x", "input", (batch_size, *network.input_shape))
        self.labels = self._keep("", "labels", "input", (batch_size,), "int32")
        self._check_sizes()  # before tiles are looked for on maps that nothing can hold
        self._ops = cover(network.all_layers, rung, direction, batch_size)
        self._overwritable = _overwritable(self._ops)
        self.learning_rate = self._keep("", "learning_rate", "optimizer", (1,))
        self.predictions = self._keep("loss", "predictions", "workspace", (batch_size,), "int32")
        history = max(history_images, HISTORY_BATCHES * batch_size)
        self.losses = self._keep("loss", "losses", "workspace", (history,))
        self.first = self._keep("loss", "first", "workspace", (1,), "int32")
        self.updates_at_once = rung in UPDATED_AT_ONCE
        self.stages: list[PlannedStage] = []
        self._plan_forward()
        self._plan_backward()
        self._check_sizes()
        self.byte_count = self._place()

    @property
    def update(self) -> Stage | None:
        """The stage that updates all layers at once, where the rung has one."""
        owners = [stage for stage in self.stages if stage.parameter]
        if not owners or not self.updates_at_once:
            return None
        layers = tuple(
            layer.name for stage in owners for layer in stage.op.layers if layer.parameters
        )

        def work(n: int) -> dict[StagePhase, Work]:
            partials = sum(stage.op.partial_count(n) for stage in owners)
            return {"update": self._update_work(self.network.parameter_count, partials)}

        return Stage(UPDATE_NAME, layers, Sgd.stem, work)

    def span(self, name: str) -> View:
        """All tensors of this name (``parameters``, ``gradients`` or ``velocity``) as one, padding included."""
        tensors = [tensor for tensor in self.static if tensor.name == name]
        first, last = tensors[0], tensors[-1]
        count = (last.offset + last.byte_count - first.offset) // FLOAT_BYTES
        return View(replace(first, shape=(count,)), (count,))

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the allocation."""
        yield from self.static
        yield from self.arena

    def memory(self) -> list[MemoryUse]:
        """One row a tensor."""
        return [
            MemoryUse(
                t.category, t.stage, t.name, t.byte_count, t.first_step, t.last_step, t.offset
            )
            for t in self.tensors()
        ]

    def _keep(
        self, stage: str, name: str, category: Category, shape: Shape, dtype: str = "float32"
    ) -> Tensor:
        """A tensor that lives as long as the engine."""
        self.static.append(Tensor(stage, name, category, shape, dtype))
        return self.static[-1]

    def _lend(
        self, stage: str, name: str, shape: Shape, dtype: str, step: int, category: Category
    ) -> Tensor:
        """A tensor that lives from ``step`` until its last use."""
        self.arena.append(Tensor(stage, name, category, shape, dtype, step, step))
        return self.arena[-1]

    def _plan_forward(self) -> None:
        """Give every stage its x, y, parameters and saved arrays."""
        n = self.batch_size
        source = View(self.input, self.input.shape)
        for step, op in enumerate(self._ops):
            name = "+".join(layer.name for layer in op.layers)
            x = View(source.tensor, (n, *op.layers[0].x_shape))
            y_shape = op.layers[-1].batch_y(n)
            x.tensor.use(step)
            if op.layers[-1].y_shape == ():
                y = View(self.losses, y_shape)
            elif op.is_view or step in self._overwritable:
                y = View(x.tensor, y_shape)
            else:
                y = View(self._lend(name, "y", y_shape, "float32", step, "workspace"), y_shape)
            saved = {
                key: View(self._lend(name, key, (n, *shape), dtype, step, "workspace"), (n, *shape))
                for key, (shape, dtype) in op.saved().items()
            }
            self.stages.append(self._stage(name, op, x, y, saved))
            source = y

    def _stage(self, name: str, op: Op, x: View, y: View, saved: dict[str, View]) -> PlannedStage:
        """A stage with its parameters, which lie side by side, so that one launch updates them all."""
        several = sum(bool(layer.parameters) for layer in op.layers) > 1
        shapes = {
            f"{layer.name}.{key}" if several else key: shape
            for layer in op.layers
            for key, shape in layer.parameters.items()
        }
        count = sum(prod(shape) for shape in shapes.values())
        parameter = gradient = velocity = None
        if count:
            parameter = self._keep(name, "parameters", "parameters", (count,))
            gradient = self._keep(name, "gradients", "gradients", (count,))
            velocity = self._keep(name, "velocity", "optimizer", (count,))

        def views(tensor: Tensor | None) -> dict[str, View]:
            found: dict[str, View] = {}
            first = 0
            for key, shape in shapes.items():
                assert tensor is not None
                found[key] = View(tensor, shape, first)
                first += prod(shape)
            return found

        def work(n: int) -> dict[StagePhase, Work]:
            done = op.work(n)
            if count and not self.updates_at_once:
                done["update"] = self._update_work(count)
            elif partials := op.partial_count(
                n
            ):  # which the update reads, and the gradient is its to write
                backward = done["backward"]
                moved = backward.byte_count - FLOAT_BYTES * (partials + count)
                done["backward"] = replace(backward, byte_count=moved)
            return done

        info = Stage(
            name, tuple(layer.name for layer in op.layers), op.stem, work, op.direction, op.merges
        )
        return PlannedStage(
            info, op, x, y, None, None, views(parameter), views(gradient), saved, {},
            parameter, gradient, velocity,
        )  # fmt: skip

    def _update_work(self, count: int, partial_count: int = 0) -> Work:
        """What updating ``count`` parameters executes, where gradients that lie in parts are written, not read."""
        return Work(
            self.optimizer.update_flops(count),
            self.optimizer.update_bytes(count) + FLOAT_BYTES * partial_count,
        )

    def _plan_backward(self) -> None:
        """Give every stage its gradients, and extend the lives of what backward reads."""
        last = 2 * len(self.stages) - 1
        grad: View | None = None
        if self.network.loss is None and self.stages:
            shape = self.stages[-1].y.shape
            grad = View(self._lend("", "grad_y", shape, "float32", last, "workspace"), shape)
        for step, stage in reversed(list(enumerate(self.stages))):
            backward = last - step
            op, first = stage.op, stage.op.layers[0]
            stage.grad_y = grad and View(grad.tensor, stage.y.shape)
            if first.needs_grad_x:
                if op.is_view or op.in_place:
                    assert grad is not None
                    tensor = grad.tensor
                else:
                    tensor = self._lend(
                        stage.info.name, "grad_x", stage.x.shape, "float32", backward, "workspace"
                    )
                stage.grad_x = View(tensor, stage.x.shape)
                if op.forward_writes_grad_x:
                    tensor.use(step)
            if not stage.needs_backward:
                break  # nothing below has parameters either
            for key, (shape, dtype) in op.workspace(self.batch_size).items():
                tensor = self._lend(stage.info.name, key, shape, dtype, backward, "workspace")
                stage.workspace[key] = View(tensor, shape)
            kept = [view for view in (stage.grad_x, stage.grad_y) if view is not None]
            kept_from_forward = list(stage.saved.values())
            kept_from_forward += [stage.x] if op.backward_reads_x else []
            kept_from_forward += [stage.y] if op.backward_reads_y else []
            for view in kept + kept_from_forward:
                view.tensor.use(backward)
            if op.has_aside and self.rung in CAPTURED:
                for view in (*kept, *kept_from_forward, *stage.workspace.values()):
                    view.tensor.use(last)
            if self.updates_at_once:
                for view in stage.workspace.values():
                    view.tensor.use(last + 1)
            for view in kept_from_forward:
                if view.tensor.category == "workspace":
                    view.tensor.category = "activations"
            grad = stage.grad_x

    def _check_sizes(self) -> None:
        """The kernels index with 32 bits.

        Raises:
            DeviceError: a tensor is larger; names its stage and the largest batch that would do.
        """
        for tensor in self.tensors():
            count = prod(tensor.shape)
            if count > MAX_INDEX:
                grows = tensor.shape[:1] == (self.batch_size,)
                fits = MAX_INDEX // (count // self.batch_size) if grows else 0
                remedy = f"use a batch_size of at most {fits}" if fits else "make the layer smaller"
                raise DeviceError(
                    f"layer {tensor.stage or 'input'}: {tensor.name} has {count} elements, more "
                    f"than 32-bit indices reach; {remedy}"
                )

    def _place(self) -> int:
        """Give every tensor its offset; the bytes of the whole allocation.

        What lives always comes first. Then the largest first, each at the lowest offset that is free during its
        life: greedy, and for chains of layers close to the least possible.
        """
        end = 0
        self.static.sort(key=lambda tensor: tensor.name if tensor.name in SIDE_BY_SIDE else "")
        for tensor in self.static:
            tensor.offset, end = end, end + tensor.reserved_bytes
        base = end
        placed: list[Tensor] = []
        for tensor in sorted(self.arena, key=lambda t: -t.reserved_bytes):
            offset = base
            for other in sorted(placed, key=lambda t: t.offset):
                if _meet(tensor, other) and offset + tensor.reserved_bytes > other.offset:
                    offset = max(offset, other.offset + other.reserved_bytes)
            tensor.offset = offset
            placed.append(tensor)
            end = max(end, offset + tensor.reserved_bytes)
        return end


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors live at the same time."""
    assert a.first_step is not None
    assert a.last_step is not None
    assert b.first_step is not None
    assert b.last_step is not None
    return a.first_step <= b.last_step and b.first_step <= a.last_step


def _overwritable(ops: Sequence[Op]) -> set[int]:
    """The positions of ops that may write y over x.

    Not over the network's input, which the next step reads again; and not over an output that the op before needs
    for its own backward.
    """
    found: set[int] = set()
    is_input, is_needed = True, False
    for position, op in enumerate(ops):
        if op.is_view:
            continue
        if op.in_place and not is_input and not is_needed:
            found.add(position)
        is_input, is_needed = False, op.backward_reads_y
    return found
