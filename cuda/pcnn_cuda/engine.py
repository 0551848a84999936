"""The CUDA engine: runs a plan on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from pcnn_bench.engine import WHOLE_STEP, MemoryUse, Probe, Stage, StageClock
from pcnn_bench.errors import DataError, DeviceMemoryError
from pcnn_bench.network import Floats, Labels, Network
from pcnn_bench.optimizers import OptimizerSpec
from pcnn_cuda.binding import Binding
from pcnn_cuda.capacity import refusal
from pcnn_cuda.device import Device, DeviceArray, HostArray, Replay
from pcnn_cuda.event_clock import EventClock
from pcnn_cuda.ladder import CAPTURED, HOST_DATA, resolve_rung
from pcnn_cuda.load_batch import LoadBatch
from pcnn_cuda.op import Direction
from pcnn_cuda.plan import UPDATE_NAME, Plan, PlannedStage, View
from pcnn_cuda.probe import probe
from pcnn_cuda.sgd import Sgd
from pcnn_cuda.step import StageLaunches, Step, launch_all, launch_timed


class CudaEngine:
    """Satisfies ``pcnn_bench.engine.Engine`` on either device.

    Raises:
        ConfigError: a rung that is not built.
        DeviceError: a kernel does not compile, or a tensor is too large to index.
        DeviceMemoryError: the plan does not fit; names the largest tensor and the largest batch that fits.
    """

    name: Literal["baseline", "cuda"] = "cuda"

    def __init__(
        self,
        network: Network,
        *,
        batch_size: int,
        optimizer: OptimizerSpec,
        device: Device,
        rung: str | None = None,
        direction: Direction | None = None,
        history_images: int = 0,
        keeps_data: bool | None = None,
    ) -> None:
        """``keeps_data`` decides whether the training set lies on the device; None leaves it to the rung."""
        self.network = network
        self.batch_size = batch_size
        self.rung = resolve_rung(rung)
        self.device: Literal["cpu", "gpu", "emulated"] = device.kind
        self.transfer_s = 0.0
        self._device = device
        self.plan = Plan(
            network,
            rung=self.rung,
            batch_size=batch_size,
            optimizer=optimizer,
            direction=direction,
            history_images=history_images,
        )
        self.stages: Sequence[Stage] = [stage.info for stage in self.plan.stages]
        if self.plan.update:
            self.stages = [*self.stages, self.plan.update]
        self._sgd = Sgd(optimizer)
        self._load()
        self._driver_free_before = device.free_bytes()[0]
        self._memory = self._allocate()
        self._tables: list[DeviceArray] = []
        self._binding = Binding(self.plan, self._memory, self._sgd, self._put_table)
        self._array = self._binding.array
        for span in self._binding.spans.values():
            device.fill(span, 0)  # the padding between layers is updated too, and must hold numbers
        self._replays: dict[tuple[int, int, int], Replay] = {}
        self._steps: dict[int, Step] = {}
        self._losses = self._array(self.plan.losses)
        self._predictions = self._array(self.plan.predictions)
        self._loss_count = 0
        self._fetched_losses: list[Floats] = []
        self._n = 0
        self.resident: LoadBatch | None = None
        if self.rung not in HOST_DATA if keeps_data is None else keeps_data:
            inputs, targets = self.plan.input, self.plan.labels
            self.resident = LoadBatch(
                device,
                self._array(inputs),
                self._array(targets),
                self._array(self.plan.first),
            )
        self.compile_s = device.take_compile_s()
        self._is_closed = False
        self._put_first(0)
        self.set_learning_rate(optimizer.learning_rate)
        self.load_parameters(network.initial_parameters(seed=0))
        self._bind(batch_size)

    # Setting up

    def _load(self) -> None:
        """Compile every kernel of the plan, those of different sources side by side."""
        self._device.prefetch(sources_of([self.plan]))
        for stage in self.plan.stages:
            stage.op.load(self._device)
        if any(stage.parameter for stage in self.plan.stages):
            self._sgd.load(self._device)
        self._device.stall(0.0)  # the clock's kernel is compiled here, not in a timed step

    def _allocate(self) -> DeviceArray:
        """One allocation for the whole plan.

        Raises:
            DeviceMemoryError: it does not fit, or the device refuses it all the same.
        """
        free, total = self._device.free_bytes()
        if self.plan.byte_count > free:
            raise DeviceMemoryError(refusal(self.plan, free, total))
        try:
            return self._device.empty((self.plan.byte_count,), "uint8")
        except DeviceMemoryError as error:
            raise DeviceMemoryError(f"{refusal(self.plan, free, total)} ({error})") from error

    def _put_table(self, rows: HostArray) -> DeviceArray:
        """A table of the update's on the device."""
        self._tables.append(self._device.empty(rows.shape, "int32"))
        self._device.copy_in(self._tables[-1], rows)
        return self._tables[-1]

    def _bind(self, n: int) -> Step:
        """The launches for batches of n images, bound once."""
        if n not in self._steps:
            self._steps[n] = self._binding.bind(self.plan.stages, n)
        return self._steps[n]

    # Parameters

    def load_parameters(self, parameters: Mapping[str, Floats]) -> None:
        """Copy these in (full names, ``conv2d1.weight``) and zero the optimiser's state."""
        for full_name, array in self._parameter_arrays().items():
            self._device.copy_in(array, parameters[full_name])
        for stage in self.plan.stages:
            if stage.velocity:
                self._device.fill(self._array(stage.velocity), 0)

    def parameters(self) -> dict[str, Floats]:
        """A copy of the parameters by full name; waits for queued steps."""
        return {
            name: np.asarray(self._device.copy_out(array), np.float32)
            for name, array in self._parameter_arrays().items()
        }

    def _parameter_arrays(self) -> dict[str, DeviceArray]:
        """Full name -> array."""
        found: dict[str, DeviceArray] = {}
        for stage in self.plan.stages:
            for name, array in self._binding.tensors[stage.info.name].parameters.items():
                owner = next(layer.name for layer in stage.op.layers if layer.parameters)
                found[name if "." in name else f"{owner}.{name}"] = array
        return found

    def set_learning_rate(self, learning_rate: float) -> None:
        """Takes effect with the next step; 0 leaves the parameters as they are."""
        rate = self._array(self.plan.learning_rate)
        self._device.copy_in(rate, np.array([learning_rate], np.float32))

    # Training

    def set_batch(self, x: Floats, labels: Labels) -> None:
        """x (n, C, H, W), labels (n,): queue their copies to the device.

        Raises:
            DataError: a label is not one of the network's classes; a kernel would read past its scores.
        """
        start = time.perf_counter()
        n, classes = len(x), self.network.output_shape[-1]
        if not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(
                f"labels: found {labels.min()} to {labels.max()}, but the network has {classes} "
                f"outputs (classes 0 to {classes - 1}); change the last layer or the data set"
            )
        inputs, targets = self.plan.input, self.plan.labels
        self._device.copy_in(self._array(View(inputs, (n, *inputs.shape[1:]))), x)
        self._device.copy_in(self._array(View(targets, (n,))), labels)
        self._n = n
        if self.resident:
            self.resident.is_source = self.resident.is_ahead = False
        self.transfer_s += time.perf_counter() - start

    def step(self, clock: StageClock | None = None) -> None:
        """Forward, loss, backward and update on the batch set last, or on the next of the training set kept."""
        source = self.resident if self.resident and self.resident.is_source else None
        if source:
            self._n = source.next_count()
        step = self._bind(self._n)
        self._next_losses(step.stages[-1])
        if clock is None and self.rung in CAPTURED and self.resident:
            self._replay(step)
            return
        if source:
            launch_timed(clock, WHOLE_STEP, "transfer", source.gather(self._n))
        step.launch(clock)
        if self.resident:
            launch_all(self.resident.advance(self._n))
            self.resident.is_ahead = False
        if source:
            source.take(self._n)

    def _replay(self, step: Step) -> None:
        """The whole step as one, and the next batch brought on its way; recorded when it first comes."""
        resident, n = self.resident, self._n
        assert resident is not None
        next_count = 0
        if resident.is_source:
            if not resident.is_ahead:
                launch_all(resident.gather(n))
            resident.take(n)
            next_count = resident.next_count()
        key = (n, next_count, resident.state)
        if key not in self._replays:
            gather_next = resident.gather(next_count) if next_count else []
            sections = step.sections(resident.advance(n), gather_next)
            self._replays[key] = self._device.capture(sections)
        self._replays[key]()
        resident.is_ahead = resident.is_source

    def _next_losses(self, loss: StageLaunches) -> None:
        """Point the loss at the next free places of the history; fetch the history when it is full."""
        if self._loss_count + self._n > self._losses.size:
            self._fetch_losses()
        if not loss.stage.op.forward_writes_grad_x:
            losses = self._losses.view((self._n,), first=self._loss_count)
            loss.forward[0].rebind(loss=losses)
        elif not self.resident:  # whose launches move the place that such a loss reads
            self._put_first(self._loss_count)
        self._loss_count += self._n

    def _put_first(self, place: int) -> None:
        """The next losses of a loss that finds their place by itself go to this one."""
        self._device.copy_in(self._array(self.plan.first), np.array([place], np.int32))

    def _fetch_losses(self) -> None:
        """Move the history to the host; waits."""
        if self._loss_count:
            self._device.synchronize()  # so that the copy's time is the copy's alone
            start = time.perf_counter()
            history = self._device.copy_out(self._losses.view((self._loss_count,)))
            self.transfer_s += time.perf_counter() - start
            self._fetched_losses.append(np.asarray(history, np.float32))
            self._loss_count = 0
            self._put_first(0)

    def take_losses(self) -> Floats:
        """Wait; the loss of every image of every step since the last call, in training order."""
        self._fetch_losses()
        fetched, self._fetched_losses = self._fetched_losses, []
        return np.concatenate(fetched) if fetched else np.zeros(0, np.float32)

    def evaluate(self, x: Floats, labels: Labels) -> tuple[Floats, Labels]:
        """x (n, C, H, W) -> losses (n,) and predicted classes (n,); parameters and history stay."""
        self.set_batch(x, labels)
        step = self._bind(self._n)
        self._next_losses(step.stages[-1])
        self._loss_count -= self._n  # the places are used for a moment, then given back
        for stage in step.stages:
            launch_all(stage.forward)
        losses = self._device.copy_out(self._losses.view((self._n,), first=self._loss_count))
        predictions = self._device.copy_out(self._predictions.view((self._n,)))
        return np.asarray(losses, np.float32), np.asarray(predictions, np.int32)

    def finish(self) -> None:
        """Wait until everything queued is done."""
        self._device.synchronize()

    def make_clock(self) -> EventClock:
        """A clock on the device's events."""
        return EventClock(self._device)

    # Checking

    def probe(self, stage: str, given: Probe) -> dict[str, npt.NDArray[np.floating]]:
        """Run one stage by itself; see ``Engine.probe``."""
        planned = next(each for each in self.plan.stages if each.info.name == stage)
        parameters = {**self.parameters(), **self._full_names(planned, given.parameters)}
        self.load_parameters(parameters)
        self._fetch_losses()  # the stage may write over them
        self._put_first(0)
        if self.resident:
            self.resident.is_ahead = False
        step = self._binding.bind([planned], len(given.x))
        (launches,) = step.stages
        launches.update = launches.update or step.update
        results = probe(self._device, launches, self._binding.tensors[stage], given)
        self.load_parameters(parameters)
        return results

    def _full_names(
        self, stage: PlannedStage, parameters: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """A stage's own parameter names -> full names."""
        owner = next((layer.name for layer in stage.op.layers if layer.parameters), "")
        return {
            name if "." in name else f"{owner}.{name}": value for name, value in parameters.items()
        }

    # Accounting

    def memory(self) -> list[MemoryUse]:
        """Every tensor of the plan; ``peak`` by our allocator and, on a GPU, by the driver's free memory."""
        rows = self.plan.memory()
        rows.append(MemoryUse("peak", WHOLE_STEP, "allocated", self._memory.byte_count))
        rows += self.resident.memory() if self.resident else []
        rows += [MemoryUse("workspace", UPDATE_NAME, "joins", t.byte_count) for t in self._tables]
        if self.device == "gpu":
            taken = self._driver_free_before - self._device.free_bytes()[0]
            rows.append(MemoryUse("peak", WHOLE_STEP, "driver", taken))
        return rows

    def close(self) -> None:
        """Free everything; the device stays open."""
        self._steps.clear()
        for replay in self._replays.values():
            replay.close()
        self._replays.clear()
        if self.resident:
            self.resident.close()
        if not self._is_closed:
            self._is_closed = True
            for array in (self._memory, *self._tables):
                self._device.free(array)


def sources_of(plans: Sequence[Plan]) -> list[tuple[str, dict[str, int]]]:
    """The (source, constants) that these plans compile, each once, the optimiser's included."""
    sources = {
        (stage.op.source, tuple(stage.op.constants().items()))
        for plan in plans
        for stage in plan.stages
        if not stage.op.is_view
    }
    return [(source, dict(constants)) for source, constants in sorted(sources)] + [(Sgd.source, {})]
