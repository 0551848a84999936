"""Stochastic gradient descent: host code of ``sgd.cu``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import BoundLaunch, Compiler, DeviceArray, Kernel
from pcnn_cuda.launch import Launch, linear
from pcnn_cuda.op import PartialSums

JOINED_KERNEL = "sgd_update_joined"
UPDATE_THREADS = 256
"""Of a block of ``JOINED_KERNEL``, as the ``.cu`` says."""
SPLITS_OF_A_SLICE = 8
"""Splits that one thread adds up, at least: loads that are on their way together."""
MAX_SLICES = 32
"""Threads that share a parameter's sum, at most."""
GRAIN_FLOATS = 64
"""What partial sums' places are counted in, so that 32 bits reach them all; the plan's alignment."""


class Sgd:
    """Device twin of ``pcnn_baseline.sgd``; one launch updates everything a stage, or a network, owns."""

    stem = "sgd"
    source = "sgd.cu"

    def __init__(self, spec: SgdSpec) -> None:
        self.spec = spec
        self._kernels: Mapping[str, Kernel] = {}

    def load(self, compiler: Compiler) -> None:
        """Compile the kernels."""
        self._kernels = compiler.compile(self.source)

    def update(
        self,
        *,
        parameter: DeviceArray,
        grad: DeviceArray,
        velocity: DeviceArray,
        learning_rate: DeviceArray,
    ) -> list[BoundLaunch]:
        """parameter, grad, velocity (count): move the parameters and their velocity in place."""
        return [
            self._kernels["sgd_update"].bind(
                linear(parameter.size),
                grad=grad, learning_rate=learning_rate, velocity=velocity, parameter=parameter,
                momentum=self.spec.momentum, weight_decay=self.spec.weight_decay,
                count=parameter.size,
            )
        ]  # fmt: skip

    def update_joined(
        self,
        *,
        memory: DeviceArray,
        table: DeviceArray,
        sums: Sequence[PartialSums],
        parameter: DeviceArray,
        grad: DeviceArray,
        velocity: DeviceArray,
        learning_rate: DeviceArray,
    ) -> list[BoundLaunch]:
        """As ``update``; gradients that lie in ``memory`` as partial sums are completed first.

        ``table`` (len(sums), 6) int32 holds ``join_table(...)``.
        """
        first_plain = sum(_blocks(each) for each in sums)
        blocks = first_plain + ceil(parameter.size / UPDATE_THREADS)
        return [
            self._kernels[JOINED_KERNEL].bind(
                Launch((blocks, 1, 1), (UPDATE_THREADS, 1, 1)),
                memory=memory, joins=table, grad=grad, learning_rate=learning_rate,
                velocity=velocity, parameter=parameter,
                momentum=self.spec.momentum, weight_decay=self.spec.weight_decay,
                count=parameter.size, join_count=len(sums), first_plain=first_plain,
            )
        ]  # fmt: skip


def join_table(
    sums: Sequence[PartialSums], *, memory: DeviceArray, grad: DeviceArray
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """The rows of ``JOINED_KERNEL``: which parameters, and where the parts of their gradients lie."""
    rows = []
    first_block = 0
    for each in sums:
        first = (each.gradient.address - grad.address) // 4
        grains, rest = divmod(each.partials.address - memory.address, 4 * GRAIN_FLOATS)
        assert rest == 0, "the plan aligns tensors"
        count = each.gradient.size
        log2_slices = _slices(each).bit_length() - 1
        rows.append((first_block, first, count, each.split_count, log2_slices, grains))
        first_block += _blocks(each)
    return np.array(rows, np.int32).reshape(-1, 6)


def _slices(sums: PartialSums) -> int:
    """Threads that share a parameter's sum: a power of two."""
    wanted = ceil(sums.split_count / SPLITS_OF_A_SLICE)
    return min(MAX_SLICES, 1 << (wanted - 1).bit_length())


def _blocks(sums: PartialSums) -> int:
    return ceil(sums.gradient.size / (UPDATE_THREADS // _slices(sums)))
