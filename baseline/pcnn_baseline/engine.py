"""The sequential engine: the layers one after another, on one thread."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from pcnn_baseline.arrays import Array, Workspace, in_memory, of_batch
from pcnn_baseline.base import BaselineLayer, BaselineLoss, predictions
from pcnn_baseline.layers import LAYERS, LOSSES
from pcnn_baseline.sgd import Sgd
from pcnn_baseline.threads import require_one_thread
from pcnn_bench.clocks import HostClock
from pcnn_bench.engine import (
    WHOLE_STEP,
    MemoryUse,
    Probe,
    Stage,
    StageClock,
    StagePhase,
    Work,
)
from pcnn_bench.errors import DataError
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.network import Floats, Labels, Layer, Network
from pcnn_bench.optimizers import SgdSpec

_NO_CLOCK: AbstractContextManager[None] = nullcontext()


class BaselineEngine:
    """``pcnn_bench.engine.Engine`` in NumPy.

    Its results are right on any number of BLAS threads, its times only on one: the caller enters
    ``pcnn_baseline.threads.one_blas_thread()`` around training and timing, and ``make_clock`` refuses
    to measure otherwise.

    The parameters are zero until ``load_parameters``. ``dtype`` is float32 where something is measured
    and float64 where gradients are checked; inputs of other types and layouts are converted on entry.
    """

    name: Literal["baseline", "cuda"] = "baseline"
    device: Literal["cpu", "gpu", "emulated"] = "cpu"
    rung = ""
    compile_s = 0.0
    transfer_s = 0.0
    resident = None

    def __init__(
        self,
        network: Network,
        *,
        batch_size: int,
        optimizer: SgdSpec,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.network = network
        self.batch_size = batch_size
        self._optimizer = optimizer
        self._dtype = dtype
        self._learning_rate = optimizer.learning_rate
        self.stages: Sequence[Stage] = tuple(
            _stage(layer, optimizer) for layer in network.all_layers
        )
        self._losses: list[Array] = []
        self._peak_bytes = _traced_peak(self._build)

    def _build(self) -> None:
        """Make every layer, and take one step on zeros, so that every array exists before anything is timed."""
        network, dtype = self.network, self._dtype
        self._layers = [LAYERS[layer.kind](layer, dtype) for layer in network.layers]
        self._optimizers = [Sgd(self._optimizer, layer, dtype) for layer in self._layers]
        self._loss: BaselineLoss | None = None
        if network.loss is not None:
            self._loss = LOSSES[network.loss.kind](network.loss, dtype)
        self._input = Workspace(dtype)
        self._labels = np.zeros(self.batch_size, np.int32)
        self._x = self._input.batch("x", (self.batch_size, *network.input_shape))
        self._x.fill(0)
        if self._loss is None:
            return
        self.step()
        self._losses.clear()
        for _, parameter in self._full_names():
            parameter.fill(0)
        for optimizer in self._optimizers:
            optimizer.reset()

    def load_parameters(self, parameters: Mapping[str, Floats]) -> None:
        """Copy these in by full name and zero the velocity."""
        for name, own in self._full_names():
            own[...] = parameters[name]
        for optimizer in self._optimizers:
            optimizer.reset()

    def parameters(self) -> dict[str, Floats]:
        """A copy of the parameters by full name."""
        return {name: own.copy() for name, own in self._full_names()}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Takes effect with the next step."""
        self._learning_rate = learning_rate

    def set_batch(self, x: Floats, labels: Labels) -> None:
        """x (n, C, H, W), labels (n,): copy the batch to where ``step`` reads it.

        Raises:
            DataError: a label is not one of the network's classes.
            ValueError: the batch does not fit the network.
        """
        self._labels = self._checked_labels(x, labels)
        self._x = self._input.batch("x", x.shape)
        np.copyto(self._x, x, casting="same_kind")

    def step(self, clock: StageClock | None = None) -> None:
        """Forward, loss, backward and update on the batch set last.

        Raises:
            ValueError: the network has no loss, so there is nothing to train.
        """
        if self._loss is None:
            raise ValueError("a network without a loss cannot be trained; probe its stages")

        def span(layer: Layer, phase: StagePhase) -> AbstractContextManager[None]:
            return _NO_CLOCK if clock is None else clock.span(layer.name, phase)

        # the training loop sees a loss that is not finite and stops; NumPy need not warn as well
        with np.errstate(over="ignore", invalid="ignore"):
            x = self._x
            for layer in self._layers:
                with span(layer.layer, "forward"):
                    x = layer.forward(x)
            with span(self._loss.layer, "forward"):
                losses = self._loss.forward(x, self._labels)
            self._losses.append(losses.copy())

            if not self._loss.layer.needs_backward:
                return
            with span(self._loss.layer, "backward"):
                grad: Array | None = self._loss.backward()
            for layer in reversed(self._layers):
                if grad is None or not layer.layer.needs_backward:
                    break
                with span(layer.layer, "backward"):
                    grad = layer.backward(grad)
            for layer, optimizer in zip(self._layers, self._optimizers, strict=True):
                if layer.parameters:
                    with span(layer.layer, "update"):
                        optimizer.update(self._learning_rate)

    def take_losses(self) -> Floats:
        """The loss of every image of every step since the last call, in training order."""
        losses, self._losses = self._losses, []
        return np.concatenate(losses) if losses else np.empty(0, self._dtype)

    def evaluate(self, x: Floats, labels: Labels) -> tuple[Floats, Labels]:
        """x (n, C, H, W), labels (n,) -> losses (n,) and predicted classes (n,).

        Raises:
            DataError: a label is not one of the network's classes.
            ValueError: the batch does not fit the network, or the network has no loss.
        """
        if self._loss is None:
            raise ValueError("a network without a loss has no losses; probe its stages")
        labels = self._checked_labels(x, labels)
        y = self._converted(x)
        with np.errstate(over="ignore", invalid="ignore"):
            for layer in self._layers:
                y = layer.forward(y)
            return self._loss.forward(y, labels).copy(), predictions(y)

    def finish(self) -> None:
        """Nothing is ever queued."""

    def make_clock(self) -> StageClock:
        """A host clock.

        Raises:
            UnavailableError: the BLAS runs more than one thread, so nothing here is sequential.
        """
        require_one_thread()
        return HostClock()

    def probe(self, stage: str, given: Probe) -> dict[str, npt.NDArray[np.floating]]:
        """Run one stage by itself; see ``pcnn_bench.engine.Engine.probe``.

        Parameters that are not given are the engine's own. The velocity is zero afterwards.

        Raises:
            KeyError: there is no such stage.
        """
        x = self._converted(given.x)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._loss is not None and stage == self._loss.layer.name:
                return self._probe_loss(self._loss, x, given)
            index = {layer.layer.name: index for index, layer in enumerate(self._layers)}[stage]
            return self._probe_layer(self._layers[index], self._optimizers[index], x, given)

    def memory(self) -> list[MemoryUse]:
        """Every array the engine holds, and the peak of building it and taking one step.

        The peak is what tracemalloc saw: NumPy's arrays, temporary ones included, and Python's
        objects, but not the packing buffers inside the BLAS.
        """
        rows = [
            MemoryUse("input", "", name, count) for name, count in self._input.byte_counts().items()
        ]
        rows.append(MemoryUse("input", "", "labels", self._labels.nbytes))
        for layer, optimizer in zip(self._layers, self._optimizers, strict=True):
            stage = layer.layer.name
            for name, parameter in layer.parameters.items():
                rows.append(MemoryUse("parameters", stage, name, parameter.nbytes))
                rows.append(MemoryUse("gradients", stage, f"grad_{name}", parameter.nbytes))
                rows.append(MemoryUse("optimizer", stage, f"velocity_{name}", parameter.nbytes))
            for name, count in optimizer.workspace.byte_counts().items():
                rows.append(MemoryUse("workspace", stage, f"update_{name}", count))
        rows.extend(self._workspace_rows())
        rows.append(MemoryUse("peak", WHOLE_STEP, "traced", self._peak_bytes))
        return rows

    def close(self) -> None:
        """Drop every array."""
        self._layers, self._optimizers, self._loss = [], [], None
        self._input = Workspace(self._dtype)
        del self._x

    def _full_names(self) -> Iterator[tuple[str, Array]]:
        """Every parameter array by full name."""
        for layer in self._layers:
            for name, parameter in layer.parameters.items():
                yield f"{layer.layer.name}.{name}", parameter

    def _converted(self, x: Floats) -> Array:
        """x in the engine's type and memory layout; a copy unless it is already so."""
        return of_batch(in_memory(np.asarray(x, self._dtype)))

    def _checked_labels(self, x: Floats, labels: Labels) -> Labels:
        """A copy of the labels, once the batch is known to fit."""
        labels = np.array(labels, np.int32)
        if (
            x.shape != (len(labels), *self.network.input_shape)
            or not 1 <= len(labels) <= self.batch_size
        ):
            raise ValueError(
                f"a batch of x {x.shape} and {len(labels)} labels; "
                f"expected 1 to {self.batch_size} of {self.network.input_shape}"
            )
        classes = self.network.output_shape[-1]
        if self._loss is not None and not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(
                f"labels: found {labels.min()} to {labels.max()}, but the network has {classes} "
                f"outputs (classes 0 to {classes - 1}); change the last layer or the data set"
            )
        return labels

    def _probe_loss(
        self, loss: BaselineLoss, x: Array, given: Probe
    ) -> dict[str, npt.NDArray[np.floating]]:
        """``losses``, ``predictions`` and, where the loss has a backward pass, ``grad_x``."""
        if given.labels is None:
            raise ValueError("a loss is probed with labels")
        loss.workspace.spoil()
        results = {"losses": _owned(loss.forward(x, given.labels))}
        results["predictions"] = predictions(x).astype(self._dtype)
        if loss.layer.needs_backward:
            results["grad_x"] = _owned(loss.backward())
        return results

    def _probe_layer(
        self, layer: BaselineLayer, optimizer: Sgd, x: Array, given: Probe
    ) -> dict[str, npt.NDArray[np.floating]]:
        """``y``; with a ``grad_y``, also the gradients and the parameters after two updates."""
        for name, values in given.parameters.items():
            layer.parameters[name][...] = values
        before = {name: parameter.copy() for name, parameter in layer.parameters.items()}
        optimizer.reset()
        layer.workspace.spoil()
        for gradient in layer.gradients.values():
            gradient.fill(np.nan)

        results = {"y": _owned(layer.forward(x))}
        if given.grad_y is None or not layer.layer.needs_backward:
            return results
        grad_x = layer.backward(self._converted(given.grad_y))
        if grad_x is not None:
            results["grad_x"] = _owned(grad_x)
        for _ in range(2):  # the second shows the momentum
            optimizer.update(self._learning_rate)
        for name, parameter in layer.parameters.items():
            results[f"grad_{name}"] = _owned(layer.gradients[name])
            results[name] = _owned(parameter)
            parameter[...] = before[name]
        optimizer.reset()
        return results

    def _workspace_rows(self) -> Iterator[MemoryUse]:
        """What the layers write: activations where backward reads it, else workspace."""
        writers: list[BaselineLayer | BaselineLoss] = [*self._layers]
        if self._loss is not None:
            writers.append(self._loss)
        for writer, reader in zip(writers, [*writers[1:], None], strict=True):
            kept = set(writer.keeps) if writer.layer.needs_backward else set()
            if reader is not None and reader.layer.needs_backward and "x" in reader.keeps:
                kept.add("y")
            for name, count in writer.workspace.byte_counts().items():
                category: Literal["activations", "workspace"] = (
                    "activations" if name in kept else "workspace"
                )
                yield MemoryUse(category, writer.layer.name, name, count)


def _traced_peak(work: Callable[[], None]) -> int:
    """The most bytes that ``work`` held at one time."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        held_before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - held_before
    finally:
        if not was_tracing:
            tracemalloc.stop()


def required_bytes(network: Network, batch_size: int, dtype: npt.DTypeLike) -> dict[str, int]:
    """The most that an engine takes, by layer (``input``: the batch); from shapes alone.

    The batch counts as gathered (float32), as held, and once more for evaluation. Parameters count
    with gradient, velocity and one term of the update, and twice for the copies that are saved.
    """
    item_bytes = np.dtype(dtype).itemsize
    pixel_bytes = FLOAT_BYTES + 2 * item_bytes
    label_bytes = 2 * np.dtype(np.int32).itemsize
    found = {"input": batch_size * (prod(network.input_shape) * pixel_bytes + label_bytes)}
    for layer in network.layers:
        parameters = layer.parameter_count * (4 * item_bytes + 2 * FLOAT_BYTES)
        passes = LAYERS[layer.kind].pass_bytes(layer, batch_size, item_bytes)
        found[layer.name] = parameters + passes
    if network.loss is not None:
        loss = LOSSES[network.loss.kind]
        found[network.loss.name] = loss.pass_bytes(network.loss, batch_size, item_bytes)
    return found


def _stage(layer: Layer, optimizer: SgdSpec) -> Stage:
    """One layer as a stage, with the work its specs count."""

    def work(batch_size: int) -> dict[StagePhase, Work]:
        x, spec = layer.batch_x(batch_size), layer.spec
        phases: dict[StagePhase, Work] = {
            "forward": Work(spec.forward_flops(x), spec.forward_bytes(x))
        }
        if layer.needs_backward:
            phases["backward"] = Work(
                spec.backward_flops(x, layer.needs_grad_x),
                spec.backward_bytes(x, layer.needs_grad_x),
            )
        if layer.parameters:
            count = layer.parameter_count
            phases["update"] = Work(optimizer.update_flops(count), optimizer.update_bytes(count))
        return phases

    return Stage(layer.name, (layer.name,), layer.kind, work)


def _owned(batch: Array) -> Array:
    """A copy in the order of its axes, which the caller may keep."""
    return np.array(batch, order="C")
