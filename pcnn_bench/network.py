"""The resolved network: layers with their shapes, and the initial parameters every engine starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from pcnn_bench.layers import LayerSpec, LossSpec, Shape, SpecError
from pcnn_bench.layers.base import require_vectors

Floats = npt.NDArray[np.float32]
"""float32 on the measured path; engines that check themselves also run in float64."""
Labels = npt.NDArray[np.int32]

LOSS_NAME = "loss"


class NetworkError(SpecError):
    """A layer of the network does not fit; ``layer_index`` is its position, or None for the loss."""

    def __init__(self, message: str, layer_index: int | None) -> None:
        super().__init__(message)
        self.layer_index = layer_index


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer in its place.

    Shapes are those of one image, without N: (C, H, W) or (F,). ``parameters`` maps ``weight`` and ``bias`` to
    their shapes. ``needs_grad_x`` is false where no layer before this one has parameters.
    """

    name: str
    spec: LayerSpec
    x_shape: Shape
    y_shape: Shape
    parameters: dict[str, Shape]
    needs_grad_x: bool

    @property
    def kind(self) -> str:
        """The layer's stem."""
        return self.spec.kind

    @property
    def parameter_count(self) -> int:
        """Number of trainable numbers."""
        return sum(prod(shape) for shape in self.parameters.values())

    @property
    def needs_backward(self) -> bool:
        """Whether backward has anything to compute here."""
        return self.needs_grad_x or bool(self.parameters)

    def batch_x(self, batch_size: int) -> Shape:
        """Shape of x for a batch."""
        return (batch_size, *self.x_shape)

    def batch_y(self, batch_size: int) -> Shape:
        """Shape of y for a batch; a loss has one number an image."""
        return self.spec.output_shape(self.batch_x(batch_size))


class Network:
    """Layers in order, then the loss.

    ``layers`` leaves the loss out; ``stages`` of every engine cover ``layers`` and then ``loss``. A network
    without a loss, or with ``needs_grad_x=True`` (its first layer also computes an input gradient), exists to verify
    runs of layers by themselves.

    Raises:
        NetworkError: a layer does not fit the output of the one before it, or a name is used twice.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        specs: Sequence[LayerSpec],
        loss: LossSpec | None,
        *,
        needs_grad_x: bool = False,
    ) -> None:
        self.input_shape: Shape = tuple(input_shape)
        self.layers: tuple[Layer, ...] = tuple(_resolve(self.input_shape, specs, needs_grad_x))
        self.loss: Layer | None = None
        output = self.layers[-1].y_shape if self.layers else self.input_shape
        trains = needs_grad_x or any(layer.parameters for layer in self.layers)
        if loss is not None:
            try:
                require_vectors(f"loss {loss.kind}", (1, *output))
            except SpecError as error:
                raise NetworkError(str(error), None) from error
            self.loss = Layer(LOSS_NAME, loss, output, (), {}, trains)
        self.output_shape: Shape = output

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """The layers and, where there is one, the loss."""
        return self.layers if self.loss is None else (*self.layers, self.loss)

    @property
    def parameter_count(self) -> int:
        """Number of trainable numbers."""
        return sum(layer.parameter_count for layer in self.layers)

    def initial_parameters(self, seed: int) -> dict[str, Floats]:
        """Uniform in +-1/sqrt(fan_in), by full name (``conv2d1.weight``); the same for every engine.

        Each layer draws from its own stream, so changing one layer leaves the others' values alone.
        Source: LeCun et al. 1998, Efficient BackProp, 4.6, in the form PyTorch uses.
        """
        parameters: dict[str, Floats] = {}
        for index, layer in enumerate(self.layers):
            rng = np.random.default_rng([seed, index])
            bound = layer.spec.fan_in(layer.batch_x(1)) ** -0.5
            for name, shape in layer.parameters.items():
                values = rng.uniform(-bound, bound, shape)
                parameters[f"{layer.name}.{name}"] = values.astype(np.float32)
        return parameters


def _resolve(input_shape: Shape, specs: Sequence[LayerSpec], needs_grad_x: bool) -> Iterator[Layer]:
    """Give each spec its name and shapes."""
    ordinals: Counter[str] = Counter()
    taken: dict[str, int] = {}
    shape = input_shape
    for index, spec in enumerate(specs):
        ordinals[spec.kind] += 1
        name = spec.name or f"{spec.kind}{ordinals[spec.kind]}"
        if name == LOSS_NAME or name == "*":
            raise NetworkError(f"the name {name!r} is taken by the program; choose another", index)
        if name in taken:
            raise NetworkError(
                f"the name {name!r} is used by layers {taken[name]} and {index}; choose another",
                index,
            )
        taken[name] = index
        x = (1, *shape)
        try:
            y = spec.output_shape(x)
            parameters = spec.parameter_shapes(x)
        except SpecError as error:
            raise NetworkError(f"layer {name}: {error}", index) from error
        yield Layer(name, spec, shape, y[1:], parameters, needs_grad_x)
        needs_grad_x = needs_grad_x or bool(parameters)
        shape = y[1:]
