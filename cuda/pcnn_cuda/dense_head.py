"""The fully connected layers at the end of a network and its loss: host code of ``dense_head.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.layers import LOSSES, SPECS, Shape
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.network import Layer, Network
from pcnn_cuda.dense_tuned import ACTIVATIONS
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import MAX_DYNAMIC_SHARED_BYTES, Launch, linear
from pcnn_cuda.op import Direction, Op, PartialSums, Tensors

HEAD_LOSSES = ("softmax_cross_entropy", "mean_squared_error")
"""In the order of the enum in ``dense_head.cu``."""
MOST_LAYERS = 3
RUNS = tuple(
    (*(kind for pair in after for kind in ("dense", pair) if kind), loss)
    for count in range(MOST_LAYERS, 0, -1)
    for after in product(ACTIVATIONS, repeat=count)
    for loss in HEAD_LOSSES
)
"""The kinds of consecutive layers that the op covers; each ends with the loss, so no run begins another."""

MAX_PARAMETERS = 300_000
"""Each block reads all weights, twice: with more, tiles of images that share what they read are better."""
MAX_FEATURES = 4096
"""Of the first layer: those of eight images then fill half of the shared memory."""
THREADS = 512
"""Of a block that carries images: up to 128 registers each, one block a multiprocessor."""
BLOCKS = 132
"""Of images, at most, until they are eight a block: one for each multiprocessor of an H200."""
STEPS = {1: "one", 2: "two", 4: "four", 8: "eight"}
"""Images a block -> the word in the kernel's name."""
EDGE = 32
"""Weights along an edge of a tile: LeNet-5's three layers are 67 tiles."""
DEPTH = 32
"""Images that a tile's block stages at once."""
SLICE_IMAGES = 128
"""Of a split of the batch, at least: fewer would save less time, beside other work, than adding up splits takes."""
WEIGHT_BLOCKS = 264
"""Of the weight gradients, about: two for each multiprocessor of an H200."""


@dataclass(frozen=True, slots=True)
class _Dense:
    """A fully connected layer of the run, its activation and their sizes."""

    layer: Layer
    activation: str = ""

    @property
    def features(self) -> int:
        """F."""
        return self.layer.x_shape[0]

    @property
    def units(self) -> int:
        """K."""
        return self.layer.y_shape[0]

    @property
    def tiles(self) -> int:
        """Of the weight gradient, whose last column is the bias."""
        return ceil(self.units / EDGE) * ceil((self.features + 1) / EDGE)


class DenseHead(Op):
    """One to three fully connected layers, each with or without an activation, and the loss.

    Forward also takes the errors back to grad_x; what is left to backward are the gradients of all weights, which
    nothing waits for but the update.
    """

    stem = "dense_head"
    sum_kernel = "dense_head_sum"
    forward_writes_grad_x = True
    backward_reads_x = True
    has_aside = True

    def __init__(
        self, layers: Sequence[Layer], direction: Direction = "push", batch_size: int = 1
    ) -> None:
        super().__init__(layers, direction, batch_size)
        *chain, self.loss = self.layers
        self._dense: list[_Dense] = []
        for layer in chain:
            if layer.kind == "dense":
                self._dense.append(_Dense(layer))
            else:
                self._dense[-1] = _Dense(self._dense[-1].layer, layer.kind)

    @classmethod
    def fits(cls, layers: Sequence[Layer]) -> bool:
        """Whether a block can hold eight images, and reading all weights in each block is worth it.

        A block reads the weights twice through the L2 cache. At 300,000 that is 2.4 MB, some 30 us at the 80 GB/s or
        so of one multiprocessor, for eight images: as long as tiled products of a batch take.
        """
        op = cls(layers)
        return (
            op._parameter_count <= MAX_PARAMETERS
            and op._dense[0].features <= MAX_FEATURES
            and FLOAT_BYTES * max(STEPS) * op._image_floats <= MAX_DYNAMIC_SHARED_BYTES
        )

    @property
    def _parameter_count(self) -> int:
        return sum(dense.layer.parameter_count for dense in self._dense)

    @property
    def _pitch(self) -> int:
        """Of a row of errors."""
        return sum(_padded(dense.units) for dense in self._dense)

    @property
    def _hidden_pitch(self) -> int:
        """Of a row of units."""
        return self._pitch - _padded(self._dense[-1].units)

    @property
    def _image_floats(self) -> int:
        """Shared memory for an image: x, later the sums of groups of threads; units; errors."""
        cells = max(4 * THREADS, *(_padded(dense.features) for dense in self._dense))
        return cells + 2 * self._pitch

    def constants(self) -> dict[str, int]:
        """The layers' sizes, all but N, their activations, the loss, and the tiles."""
        absent = MOST_LAYERS - len(self._dense)
        units = [dense.units for dense in self._dense] + [0] * absent
        kinds = [ACTIVATIONS.index(dense.activation) for dense in self._dense] + [0] * absent
        return {
            "LAYERS": len(self._dense),
            "FEATURES": self._dense[0].features,
            **{f"UNITS_{number}": count for number, count in enumerate(units, 1)},
            **{f"ACTIVATION_{number}": kind for number, kind in enumerate(kinds, 1)},
            "LOSS": HEAD_LOSSES.index(self.loss.kind),
            "NEEDS_GRAD_X": int(self.layers[0].needs_grad_x),
            "THREADS": THREADS,
            "IMAGE_FLOATS": self._image_floats,
            "EDGE": EDGE,
            "DEPTH": DEPTH,
        }

    def saved(self) -> dict[str, tuple[Shape, str]]:
        """``units``: y of each layer but the last; ``errors``: the loss's derivative by each layer's z."""
        saved: dict[str, tuple[Shape, str]] = {"errors": ((self._pitch,), "float32")}
        if self._hidden_pitch:
            saved["units"] = ((self._hidden_pitch,), "float32")
        return saved

    def workspace(self, batch_size: int) -> dict[str, tuple[Shape, str]]:
        """``partials`` (splits, parameters): the gradients of each split of the batch, where there are several."""
        splits = self._most_splits(batch_size)
        return {"partials": ((splits, self._parameter_count), "float32")} if splits > 1 else {}

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, F), labels (N) -> losses (N) from place ``first`` on, predictions (N), grad_x (N, F) where needed."""
        assert t.parameter is not None
        assert t.labels is not None
        assert t.first is not None
        assert t.history is not None
        assert t.predictions is not None
        images = images_for(n)
        errors = t.saved["errors"]
        return [
            self.kernels[f"dense_head_step_{STEPS[images]}"].bind(
                Launch(
                    (ceil(n / images), 1, 1), (THREADS, 1, 1), FLOAT_BYTES * images * self._image_floats
                ),
                x=t.x, parameter=t.parameter, label=t.labels, first=t.first,
                units=t.saved.get("units", errors),  # one layer leaves none
                errors=errors, loss=t.history, prediction=t.predictions,
                grad_x=t.grad_x or errors,  # not written where it is not needed
                N=n,
            )
        ]  # fmt: skip

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """Nothing: forward has computed grad_x, and nobody below waits for the rest."""
        return []

    def backward_aside(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x, units, errors -> every grad_weight (K, F) and grad_bias (K), or their partial sums."""
        assert t.gradient is not None
        size, count = self._slices(n)
        errors = t.saved["errors"]
        return [
            self.kernels["dense_head_backward"].bind(
                Launch((self._tiles, count, 1), (DEPTH * EDGE // 4, 1, 1)),
                x=t.x, units=t.saved.get("units", errors), errors=errors,
                partial=t.workspace["partials"] if count > 1 else t.gradient,
                N=n, slice_size=size,
            )
        ]  # fmt: skip

    def partial_sums(self, n: int, t: Tensors) -> list[PartialSums]:
        """The splits' gradients of all layers; none for a batch that is not split."""
        assert t.gradient is not None
        count = self._slices(n)[1]
        return [PartialSums(t.workspace["partials"], count, t.gradient)] if count > 1 else []

    def partial_count(self, n: int) -> int:
        """splits * parameters; none for a batch that is not split."""
        count = self._slices(n)[1]
        return count * self._parameter_count if count > 1 else 0

    def add_up(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """partials -> the gradients; nothing for a batch that is not split."""
        return [
            self.kernels[self.sum_kernel].bind(
                linear(each.gradient.size),
                partial=each.partials, gradient=each.gradient, split_count=each.split_count,
            )
            for each in self.partial_sums(n, t)
        ]  # fmt: skip

    def work(self, n: int) -> dict[StagePhase, Work]:
        """Forward and errors; then the weight gradients. Weights count once: L2 serves all blocks but the first."""
        chain = [(layer.spec, layer.batch_x(n), layer.needs_grad_x) for layer in self.layers]
        weights = sum(spec.backward_flops(x, False) for spec, x, _ in chain if spec.kind == "dense")
        both = sum(
            spec.forward_flops(x) + spec.backward_flops(x, needed) for spec, x, needed in chain
        )
        x = n * self._dense[0].features
        units, errors = n * self._hidden_pitch, n * self._pitch
        step = x + self._parameter_count + units + errors + 3 * n
        if self.layers[0].needs_grad_x:
            step += x
        sums = self._parameter_count + 2 * self.partial_count(n)
        return {
            "forward": Work(both - weights, FLOAT_BYTES * step),
            "backward": Work(weights, FLOAT_BYTES * (x + units + errors + sums)),
        }

    @property
    def _tiles(self) -> int:
        return sum(dense.tiles for dense in self._dense)

    def _most_splits(self, n: int) -> int:
        """No batch of at most n images is cut into more."""
        return max(1, min(ceil(n / SLICE_IMAGES), round(WEIGHT_BLOCKS / self._tiles)))

    def _slices(self, n: int) -> tuple[int, int]:
        """(images in a slice, slices): whole stagings, about ``WEIGHT_BLOCKS`` in all."""
        size = DEPTH * ceil(n / self._most_splits(n) / DEPTH)
        return size, ceil(n / size)


def images_for(n: int) -> int:
    """Images a block: as few as give each multiprocessor one block, at most eight."""
    return next((images for images in STEPS if n <= BLOCKS * images), max(STEPS))


def _padded(count: int) -> int:
    """Rounded up to whole vectors."""
    return 4 * ceil(count / 4)


def _example(
    features: int, *layers: tuple[int, str], loss: str = HEAD_LOSSES[0], needs_grad_x: bool = True
) -> dict[str, int]:
    specs = []
    for units, activation in layers:
        specs.append(SPECS["dense"].model_validate({"kind": "dense", "out_features": units}))
        if activation:
            specs.append(SPECS[activation].model_validate({"kind": activation}))
    network = Network((features,), specs, LOSSES[loss](kind=loss), needs_grad_x=needs_grad_x)
    return DenseHead(network.all_layers).constants()


EXAMPLE_CONSTANTS = (
    _example(400, (120, "tanh"), (84, "tanh"), (10, "")),
    _example(1250, (100, "tanh"), (10, ""), needs_grad_x=False),
    _example(7, (5, "relu"), (3, "sigmoid"), loss="mean_squared_error"),
    _example(4096, (64, "relu"), (10, "")),
)
"""What ``dense_head.cu`` is test-compiled with: LeNet-5's, one without a grad_x, an awkward one, the widest."""
