"""From a plan to launches: where the tensors of its stages lie in an allocation, and what is launched on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_cuda.device import BoundLaunch, DeviceArray, HostArray
from pcnn_cuda.op import PartialSums, Tensors
from pcnn_cuda.plan import SIDE_BY_SIDE, Plan, PlannedStage, Tensor, View
from pcnn_cuda.sgd import Sgd, join_table
from pcnn_cuda.step import StageLaunches, Step


class Binding:
    """The arrays of a plan in an allocation, and the launches on them. The kernels must have been loaded."""

    def __init__(
        self, plan: Plan, memory: DeviceArray, sgd: Sgd, put: Callable[[HostArray], DeviceArray]
    ) -> None:
        """``put`` brings an array of int32 to the device, where it stays as long as the launches."""
        self.plan = plan
        self._memory = memory
        self._sgd = sgd
        self._put = put
        self.tensors = {stage.info.name: self._tensors(stage) for stage in plan.stages}
        self.spans: dict[str, DeviceArray] = {}
        """Where all layers are updated at once: their parameters, gradients and velocity, each as one."""
        if plan.update:
            self.spans = {name: self.array(plan.span(name)) for name in SIDE_BY_SIDE}

    def array(self, view: View | Tensor) -> DeviceArray:
        """The place of a view, or of a whole tensor."""
        if isinstance(view, Tensor):
            view = View(view, view.shape)
        tensor = view.tensor
        base = DeviceArray(self._memory.address + tensor.offset, tensor.shape, tensor.dtype)
        return base.view(view.shape, first=view.first)

    def bind(self, stages: Sequence[PlannedStage], n: int) -> Step:
        """The launches of some stages for n images, and those of the update of all layers."""
        bound = [self._bind_stage(stage, n) for stage in stages]
        if not self.spans:
            return Step(bound)
        sums = [
            each
            for stage in stages
            if stage.needs_backward
            for each in stage.op.partial_sums(n, self.tensors[stage.info.name])
        ]
        return Step(bound, self._update(self.spans, sums))

    def _tensors(self, stage: PlannedStage) -> Tensors:
        """The arrays of a stage."""

        def found(view: View | Tensor | None) -> DeviceArray | None:
            return None if view is None else self.array(view)

        def arrays(views: Mapping[str, View]) -> dict[str, DeviceArray]:
            return {name: self.array(view) for name, view in views.items()}

        plan = self.plan
        return Tensors(
            x=self.array(stage.x),
            y=self.array(stage.y),
            grad_x=found(stage.grad_x),
            grad_y=found(stage.grad_y),
            labels=self.array(plan.labels) if stage.is_loss else None,
            predictions=self.array(plan.predictions) if stage.is_loss else None,
            history=self.array(plan.losses),
            first=self.array(plan.first),
            parameter=found(stage.parameter),
            gradient=found(stage.gradient),
            parameters=arrays(stage.parameters),
            gradients=arrays(stage.gradients),
            saved=arrays(stage.saved),
            workspace=arrays(stage.workspace),
        )

    def _bind_stage(self, stage: PlannedStage, n: int) -> StageLaunches:
        """The launches of one stage for n images."""
        op, tensors = stage.op, self.tensors[stage.info.name]
        launches = StageLaunches(stage, op.forward(n, tensors), [], [], [])
        if stage.needs_backward:
            launches.backward = op.backward(n, tensors)
            launches.aside = op.backward_aside(n, tensors)
            if not self.spans or not op.partial_sums(n, tensors):
                launches.aside += op.add_up(n, tensors)
        if stage.parameter and stage.gradient and stage.velocity and not self.spans:
            owned = {
                "parameters": stage.parameter,
                "gradients": stage.gradient,
                "velocity": stage.velocity,
            }
            launches.update = self._update({name: self.array(each) for name, each in owned.items()})
        return launches

    def _update(
        self, arrays: Mapping[str, DeviceArray], sums: Sequence[PartialSums] = ()
    ) -> list[BoundLaunch]:
        """The launches that complete these sums and move parameters; arrays as in ``spans``."""
        grad = arrays["gradients"]
        given = {
            "parameter": arrays["parameters"],
            "grad": grad,
            "velocity": arrays["velocity"],
            "learning_rate": self.array(self.plan.learning_rate),
        }
        if not sums:
            return self._sgd.update(**given)
        memory = replace(self._memory, shape=(self._memory.size // FLOAT_BYTES,), dtype="float32")
        table = self._put(join_table(sums, memory=memory, grad=grad))
        return self._sgd.update_joined(memory=memory, table=table, sums=sums, **given)
