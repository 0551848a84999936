"""Fully connected layer by tiled matrix products: host code of ``dense_tuned.cu``."""

from __future__ import annotations

from math import ceil, prod

from pcnn_bench.engine import StagePhase, Work
from pcnn_bench.layers import SPECS, LayerSpec
from pcnn_bench.layers.base import FLOAT_BYTES
from pcnn_bench.network import Network
from pcnn_cuda.conv2d_tiles import balanced
from pcnn_cuda.dense import Dense
from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import Launch
from pcnn_cuda.op import Tensors

EDGE = 16
"""Outputs along an edge of a block's tile: 64 images of 120 units are then 32 blocks, and short sums each."""
GROUPS = 16
"""Sets of 16 threads that share a sum: 256 threads a block."""
MAX_DEPTH = 256
"""Most terms staged at once: 40 KiB of shared memory, below the 48 that a kernel may declare."""
WEIGHT_DEPTH = 128
"""Images staged at once: the common batch sizes in whole steps."""
MICRO = 4
"""Outputs of a thread along each edge, and cells in a vector load."""
ACTIVATIONS = ("", "tanh", "relu", "sigmoid")
"""In the order of ``ACTIVATION`` in the ``.cu``."""


class DenseTuned(Dense):
    """Device twin of ``pcnn_baseline.dense``."""

    stem = "dense_tuned"

    def constants(self) -> dict[str, int]:
        """The layer's sizes, its activation, and the tile."""
        features, units = self._sizes
        return {
            "FEATURES": features,
            "UNITS": units,
            "ACTIVATION": ACTIVATIONS.index(self.activation),
            "EDGE": EDGE,
            "GROUPS": GROUPS,
            "FORWARD_DEPTH": _depth(features),
            "INPUT_DEPTH": _depth(units),
            "WEIGHT_DEPTH": WEIGHT_DEPTH,
        }

    @property
    def activation(self) -> str:
        """The kind of the activation that the op computes too, or an empty string."""
        return ""

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x (N, F) -> y (N, K)."""
        blocks = _tiles(n, self._sizes[1])
        return [
            self.kernels["dense_tuned_forward"].bind(
                _launch(blocks), x=t.x, y=t.y, **t.parameters, N=n
            )
        ]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y (N, K) -> grad_weight (K, F), grad_bias (K) and, where needed, grad_x (N, F)."""
        assert t.grad_y is not None
        features, units = self._sizes
        blocks = _tiles(units, features + 1)
        if t.grad_x is not None:
            blocks += _tiles(n, features)
        return [
            self.kernels["dense_tuned_backward"].bind(
                _launch(blocks),
                x=t.x, y=t.y, grad_y=t.grad_y, weight=t.parameters["weight"],
                grad_weight=t.gradients["weight"], grad_bias=t.gradients["bias"],
                grad_x=t.grad_x or t.gradients["weight"],  # without a grad_x there is no block that would write it
                N=n,
            )
        ]  # fmt: skip


class DenseActivation(DenseTuned):
    """A fully connected layer and the tanh, relu or sigmoid after it, in the same launches."""

    backward_reads_y = True

    @property
    def activation(self) -> str:
        """The kind of the second layer."""
        return self.layers[1].kind

    @property
    def _sizes(self) -> tuple[int, int]:
        """(F, K)."""
        return self.layers[0].x_shape[0], self.layers[0].y_shape[0]

    def work(self, n: int) -> dict[StagePhase, Work]:
        """Both layers', without the maps between them: z is never stored, and error neither."""
        between = FLOAT_BYTES * prod(self.layers[0].batch_y(n))
        return {
            phase: Work(work.flop_count, work.byte_count - 2 * between)
            for phase, work in super().work(n).items()
        }


def _depth(count: int) -> int:
    """Terms to stage at once: equal parts, in whole vectors."""
    return ceil(balanced(count, MAX_DEPTH) / MICRO) * MICRO


def _tiles(rows: int, columns: int) -> int:
    return ceil(rows / EDGE) * ceil(columns / EDGE)


def _launch(blocks: int) -> Launch:
    return Launch((blocks, 1, 1), ((EDGE // MICRO) ** 2 * GROUPS, 1, 1))


def _example(features: int, units: int, activation: str) -> dict[str, int]:
    specs: list[LayerSpec] = [
        SPECS["dense"].model_validate({"kind": "dense", "out_features": units})
    ]
    if not activation:
        return DenseTuned(Network((features,), specs, None).layers).constants()
    specs.append(SPECS[activation].model_validate({"kind": activation}))
    return DenseActivation(Network((features,), specs, None).layers).constants()


EXAMPLE_CONSTANTS = (
    _example(1024, 64, ""), _example(400, 120, "tanh"), _example(31, 10, "sigmoid"), _example(13, 7, "relu")
)  # fmt: skip
"""What ``dense_tuned.cu`` is test-compiled with."""
