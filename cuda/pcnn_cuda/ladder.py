"""The ladder: for each rung, which op covers which run of layers, in order of preference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pcnn_bench.errors import ConfigError
from pcnn_bench.layers.base import CudaChoice
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.pooling import PoolingSpec
from pcnn_bench.network import Layer
from pcnn_cuda import conv2d_act_pool, conv2d_avgpool_folded, dense_head, load_batch
from pcnn_cuda.avgpool2d import AvgPool2d
from pcnn_cuda.conv2d import Conv2d
from pcnn_cuda.conv2d_act_pool import Conv2dActPool, Conv2dActPoolKept
from pcnn_cuda.conv2d_avgpool_folded import Conv2dAvgPoolFolded
from pcnn_cuda.conv2d_ring import Conv2dRing
from pcnn_cuda.conv2d_tuned import Conv2dTuned
from pcnn_cuda.dense import Dense
from pcnn_cuda.dense_head import DenseHead
from pcnn_cuda.dense_tuned import DenseActivation, DenseTuned
from pcnn_cuda.flatten import Flatten
from pcnn_cuda.launch import kernel_text, signatures
from pcnn_cuda.maxpool2d import MaxPool2d
from pcnn_cuda.mean_squared_error import MeanSquaredError
from pcnn_cuda.mean_squared_error_tuned import MeanSquaredErrorTuned
from pcnn_cuda.op import Direction, Op
from pcnn_cuda.relu import Relu
from pcnn_cuda.sgd import JOINED_KERNEL, Sgd
from pcnn_cuda.sigmoid import Sigmoid
from pcnn_cuda.softmax_cross_entropy import SoftmaxCrossEntropy
from pcnn_cuda.softmax_cross_entropy_tuned import SoftmaxCrossEntropyTuned
from pcnn_cuda.tanh import Tanh

LAYERS: dict[str, type[Op]] = {
    "conv2d": Conv2d,
    "maxpool2d": MaxPool2d,
    "avgpool2d": AvgPool2d,
    "dense": Dense,
    "flatten": Flatten,
    "tanh": Tanh,
    "relu": Relu,
    "sigmoid": Sigmoid,
    "softmax_cross_entropy": SoftmaxCrossEntropy,
    "mean_squared_error": MeanSquaredError,
}
"""The naive op of every kind of layer: what a rung falls back to."""

Table = tuple[tuple[tuple[str, ...], type[Op]], ...]
RUNGS: dict[str, Table] = {
    "naive": tuple(((kind,), op) for kind, op in LAYERS.items()),
}
"""Rung -> (kinds of consecutive layers, op), the first that fits wins; the last rung is the default."""

LOSSES_IN_ONE = (
    (("softmax_cross_entropy",), SoftmaxCrossEntropyTuned),
    (("mean_squared_error",), MeanSquaredErrorTuned),
)
RUNGS["tuned"] = (
    (("conv2d",), Conv2dTuned),
    (("dense",), DenseTuned),
    *LOSSES_IN_ONE,
    *RUNGS["naive"],
)

FOLDED = tuple((run, Conv2dAvgPoolFolded) for run in conv2d_avgpool_folded.RUNS)
DENSE_IN_ONE = tuple((("dense", kind), DenseActivation) for kind in ("tanh", "relu", "sigmoid"))
RUNGS["fused"] = (
    *FOLDED,
    *((run, Conv2dActPool) for run in conv2d_act_pool.RUNS),
    *DENSE_IN_ONE,
    *RUNGS["tuned"],
)
RUNGS["ring"] = (
    *((run, Conv2dRing) for run in conv2d_act_pool.RUNS),
    *RUNGS["fused"],
)
# Best on an H200, block by block: results/published/h200/blocks.csv. Fused with derivatives kept beats tuned and ring
# on every shape, but where pooling windows overlap: see `_table`.
RUNGS["graph"] = (
    *FOLDED,
    *((run, Conv2dActPoolKept) for run in conv2d_act_pool.RUNS),
    *((run, DenseHead) for run in dense_head.RUNS),
    *DENSE_IN_ONE,
    *RUNGS["tuned"],
)

UPDATED_AT_ONCE = frozenset({"graph"})
"""Rungs that update the parameters of all layers in one launch."""

BEST_OF = frozenset({"graph"})
"""Rungs that take the better op of the rungs below for each layer, so that a lower rung's is no fall-back."""

PULLED_EXTENT, PULLED_CHANNELS = 56, 64
"""Rows and columns, or else channels, of the input of a convolution from which on ``BEST_OF`` pull errors down.

A filter of one cell never does. Measured block by block: results/published/h200/blocks.csv.
"""

CAPTURED = frozenset({"graph"})
"""Rungs whose step is recorded once and replayed."""

HOST_DATA = frozenset({"naive"})
"""Rungs whose batches come from the host; every other one keeps the training set on the device."""

DEFAULT_RUNG = list(RUNGS)[-1]


def resolve_rung(name: str | None) -> str:
    """The rung of this name; the highest one built for None.

    Raises:
        ConfigError: there is no such rung.
    """
    if name is None:
        return DEFAULT_RUNG
    if name not in RUNGS:
        raise ConfigError(f"rung {name!r} is not built; choose one of {', '.join(RUNGS)}")
    return name


def cover(
    layers: Sequence[Layer], rung: str, direction: Direction | None = None, batch_size: int = 1
) -> list[Op]:
    """One op for each run of layers, in order; a layer's own ``cuda`` choice wins over these.

    What the first layer of a run chooses holds for the run; one that chooses another rung begins a run of its own.

    Raises:
        ConfigError: there is no such rung.
    """
    ops: list[Op] = []
    first = 0
    while first < len(layers):
        choice = layers[first].spec.cuda or CudaChoice()
        chosen = resolve_rung(choice.rung or rung)
        table = _table(chosen, layers[first:])
        end = next(
            (index for index in range(first + 1, len(layers)) if _chooses(layers[index])), None
        )
        run, op = next(_fitting(table, layers[first:end]))
        covered = layers[first : first + len(run)]
        wanted = choice.backward or direction or _better_direction(chosen, layers[first])
        ops.append(op(covered, wanted, batch_size))
        first += len(run)
    return ops


def _table(rung: str, layers: Sequence[Layer]) -> Table:
    """The lines to look for the first of these layers in.

    Where pooling windows overlap, a fused block gathers each error from several of them, and tuned kernels are faster.
    """
    if rung in BEST_OF and layers[0].kind == "conv2d":
        pool = next((each.spec for each in layers[1:3] if isinstance(each.spec, PoolingSpec)), None)
        if pool and any(size > step for size, step in zip(pool.size, pool.stride, strict=True)):
            return RUNGS["tuned"]
    return RUNGS[rung]


def _better_direction(rung: str, layer: Layer) -> Direction:
    """What a block that begins with this layer does where nobody chose."""
    if rung not in BEST_OF or not isinstance(layer.spec, Conv2dSpec):
        return "push"
    channels, *extent = layer.x_shape
    is_large = min(extent) >= PULLED_EXTENT or channels >= PULLED_CHANNELS
    return "pull" if is_large and max(layer.spec.kernel) > 1 else "push"


def _chooses(layer: Layer) -> bool:
    """Whether a layer names its own rung."""
    return layer.spec.cuda is not None and layer.spec.cuda.rung is not None


def _fitting(table: Table, layers: Sequence[Layer]) -> Iterator[tuple[tuple[str, ...], type[Op]]]:
    """The lines of a rung's table that can cover the first of these layers."""
    kinds = tuple(layer.kind for layer in layers)
    for run, op in table:
        if kinds[: len(run)] == run and op.fits(layers[: len(run)]):
            yield run, op


def kernels_of(rung: str) -> list[str]:
    """Every kernel that a rung can launch, the optimiser's and the loader's included; sorted."""
    lines = RUNGS[rung]
    always = {run for run, op in lines if op.fits.__func__ is Op.fits.__func__}  # type: ignore[attr-defined]
    first = {run: op for run, op in reversed(lines) if run in always}
    reached = {op for run, op in lines if run not in always or first[run] is op}
    sources = {Sgd.source} | {f"{op.stem}.cu" for op in reached if not op.is_view}
    sources |= set() if rung in HOST_DATA else {load_batch.SOURCE}
    at_once = rung in UPDATED_AT_ONCE
    idle = {op.sum_kernel for op in reached} if at_once else {JOINED_KERNEL}
    names = {name for source in sources for name in signatures(kernel_text(source))}
    return sorted(names - idle)
