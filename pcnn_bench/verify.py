"""Compares every stage of an engine, by itself, with the float64 baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from pcnn_bench import engines
from pcnn_bench.awkward import Case, awkward_cases
from pcnn_bench.engine import Engine, Probe, ResidentData, Stage
from pcnn_bench.layers import LossSpec
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Floats, Labels, Network
from pcnn_bench.optimizers import OptimizerSpec, SgdSpec
from pcnn_bench.random_networks import random_network
from pcnn_bench.results import CheckRow
from pcnn_bench.tolerances import EXACT_KINDS, Bounded, Doubles, expect

if TYPE_CHECKING:
    from pcnn_cuda.device import Device

NETWORK_IMAGES = 3
"""Images for which a config's own network is verified."""
RESIDENT_SETS: tuple[tuple[int, int, tuple[int, int, int]], ...] = (
    (1, 1, (1, 1, 1)),
    (13, 5, (3, 7, 4)),
    (9, 3, (2, 11, 13)),
    (3, 64, (1, 5, 2)),
)
"""Images, batch size and shape of the training sets that are kept to be verified."""
NAN, INFINITY = float("nan"), float("inf")
EXTREMES: dict[str, tuple[float, ...]] = {
    "maxpool2d": (NAN, INFINITY, -INFINITY, 1.0, 1.0, 0.0),
    "relu": (NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e30),
    "tanh": (NAN, INFINITY, -INFINITY, 90.0, -90.0, 1e-30),
    "sigmoid": (NAN, INFINITY, -INFINITY, 90.0, -90.0, 0.0),
    "softmax_cross_entropy": (1000.0, 0.0, -1000.0, 1000.0, 88.0, -88.0),
    "mean_squared_error": (1000.0, 0.0, -1000.0, 1000.0, 1.0, 1.0),
}
"""Values that x is drawn from once more, for kinds whose contract names them: NaN, infinities, ties, overflow."""
VERIFY_OPTIMIZER = SgdSpec(learning_rate=0.0625, momentum=0.5, weight_decay=0.25)
"""Every term of the update counts, and each factor is a power of two."""


@dataclass(slots=True)
class Verification:
    """What was compared."""

    rows: list[CheckRow] = field(default_factory=list)
    case_count: int = 0
    """Stages verified, each with its own shape."""
    kernels: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    """Kernels that exist and were never launched."""
    random: list[tuple[Case, list[CheckRow]]] = field(default_factory=list)
    """Random networks, and what was compared of each; not among ``rows``."""

    @property
    def comparison_count(self) -> int:
        """How much was compared."""
        return len(self.rows) + sum(len(rows) for _, rows in self.random)

    @property
    def mismatches(self) -> list[CheckRow]:
        """The comparisons that failed."""
        return _mismatches([*self.rows, *(row for _, rows in self.random for row in rows)])

    @property
    def failed(self) -> list[Case]:
        """The random networks in which a comparison failed."""
        return [case for case, rows in self.random if _mismatches(rows)]

    @property
    def is_good(self) -> bool:
        """Every comparison held, and there were some, of every kernel and each random network."""
        counts = (len(self.rows), len(self.kernels), *(len(rows) for _, rows in self.random))
        return all(counts) and not self.mismatches and not self.unverified


def _mismatches(rows: Iterable[CheckRow]) -> list[CheckRow]:
    return [row for row in rows if row.status != "ok"]


def verify(
    network: Network | None,
    *,
    device: Device,
    rung: str,
    cases: Iterable[Case] | None = None,
    random: Sequence[Case] = (),
    on_case: Callable[[Case], None] = lambda case: None,
) -> Verification:
    """Verify the awkward shapes and, if a network is given, each of its stages at its own shape; then ``random`` ones.

    Inputs are random, and once more small integers, on which the exact kinds must be equal to the last bit. Gradients
    from above are random. With ``cases`` given (some of the awkward ones), kernels they do not reach are not held
    against the engine.
    """
    chosen = list(awkward_cases() if cases is None else cases)
    if network is not None:
        chosen += _network_cases(network)
    chosen += random
    networks = [_network_of(case) for case in chosen]
    sizes = [case.n + case.spare for case in chosen]
    engines.prefetch(networks, sizes, device=device, rung=rung, optimizer=VERIFY_OPTIMIZER)
    found = Verification()
    device.launched.clear()
    for place, (case, single) in enumerate(zip(chosen, networks, strict=True)):
        on_case(case)
        seed = place if case.seed is None else case.seed
        rows = _verify_case(case, single, device, rung, np.random.default_rng(seed))
        if case.seed is not None:
            found.random.append((case, rows))
            continue
        found.rows += rows
        found.case_count += len({row.stage for row in rows})
    if cases is None and engines.keeps_data(rung):
        rows = verify_resident(device, rung)
        found.rows += rows
        found.case_count += len(RESIDENT_SETS)
    found.kernels = tuple(sorted(device.launched))
    if cases is None:
        known = engines.kernel_names(rung)
        found.unverified = tuple(sorted(set(known) - set(found.kernels)))
    return found


def random_cases(count: int, first_seed: int) -> list[Case]:
    """As many random networks, each drawn from a seed of its own: that and those that follow it."""
    return [
        replace(random_network(np.random.default_rng(seed)), seed=seed)
        for seed in range(first_seed, first_seed + count)
    ]


def verify_resident(device: Device, rung: str) -> list[CheckRow]:
    """Compare the batches of an engine that keeps its training set with the same taken by NumPy, bit for bit."""
    rows: list[CheckRow] = []
    for seed, (image_count, batch_size, shape) in enumerate(RESIDENT_SETS):
        rng = np.random.default_rng(seed)
        data = ResidentData(
            images=rng.integers(0, 256, (image_count, *shape), dtype=np.uint8),
            labels=rng.integers(0, 2, image_count).astype(np.int32),
            values=rng.standard_normal((shape[0], 256), dtype=np.float32),
        )
        network = Network(
            shape, [FlattenSpec(), DenseSpec(out_features=2)], SoftmaxCrossEntropySpec()
        )
        engine = engines.make_cuda(
            network,
            batch_size=batch_size,
            optimizer=VERIFY_OPTIMIZER,
            device=device,
            rung=rung,
            keeps_data=True,
        )
        try:
            rows += _check_resident(engine, data, rng)
        finally:
            engine.close()
    return rows


def _check_resident(engine: Engine, data: ResidentData, rng: np.random.Generator) -> list[CheckRow]:
    """Two rounds through a random order."""
    assert engine.resident is not None
    order = rng.permutation(len(data.labels))
    engine.resident.keep(data)
    engine.resident.set_order(order)
    channels = np.arange(data.values.shape[0])[:, None, None]
    rows: list[CheckRow] = []
    for first in [*range(0, len(order), engine.batch_size)] * 2:
        chosen = order[first : first + engine.batch_size]
        expected = {"x": data.values[channels, data.images[chosen]], "labels": data.labels[chosen]}
        found = dict(zip(expected, engine.resident.next_batch(), strict=True))
        for name, values in expected.items():
            exact = np.asarray(values, np.float64)
            error, bound, is_within = compare(found[name], exact, np.zeros_like(exact))
            rows.append(
                CheckRow(
                    engine.name, engine.device, engine.rung, "*", name,
                    "x".join(map(str, exact.shape)), error, bound,
                    "ok" if is_within else "mismatch",
                )
            )  # fmt: skip
    return rows


def _network_cases(network: Network) -> list[Case]:
    """Each layer alone, which exact kinds must compute exactly; then all together, as the rung runs them."""
    alone = [
        Case((layer.spec,), layer.x_shape, NETWORK_IMAGES)
        for layer in network.all_layers
        if layer.kind != "flatten"  # a view: nothing computes it
    ]
    specs = tuple(layer.spec for layer in network.all_layers)
    return [*alone, Case(specs, network.input_shape, NETWORK_IMAGES)]


def _network_of(case: Case) -> Network:
    """A network of these layers, whose first computes an input gradient too."""
    *specs, last = case.specs
    if isinstance(last, LossSpec):
        return Network(case.x_shape, specs, last, needs_grad_x=True)
    return Network(case.x_shape, case.specs, None, needs_grad_x=True)


def _verify_case(
    case: Case, network: Network, device: Device, rung: str, rng: np.random.Generator
) -> list[CheckRow]:
    """Compare the stages of a case, and once more those that move errors the other way."""
    reference = engines.make_baseline(
        network, batch_size=case.n, optimizer=VERIFY_OPTIMIZER, dtype=np.float64
    )
    rows: list[CheckRow] = []
    try:
        for direction in engines.DIRECTIONS:
            engine = engines.make_cuda(
                network,
                batch_size=case.n + case.spare,
                optimizer=VERIFY_OPTIMIZER,
                device=device,
                rung=rung,
                direction=direction,
            )
            try:
                if direction == engines.DIRECTIONS[0] or any(s.direction for s in engine.stages):
                    rows += _verify_engine(case, engine, reference, rng)
            finally:
                engine.close()
        return rows
    finally:
        reference.close()


def _verify_engine(
    case: Case, engine: Engine, reference: Engine, rng: np.random.Generator
) -> list[CheckRow]:
    """Compare the stages on random values, on small integers and on extremes."""
    rows: list[CheckRow] = []
    for draw in ("normal", "integers", "extremes"):
        if draw == "extremes" and (len(case.kinds) > 1 or case.kinds[0] not in EXTREMES):
            continue
        step = _draw(reference.network, case.n, rng, draw)
        # a layer that rounds hands its neighbours what are no integers any more
        is_exact = draw == "integers" and EXACT_KINDS.issuperset(case.kinds)
        rows += _check_stages(engine, reference, step, VERIFY_OPTIMIZER, is_exact=is_exact)
    return rows


@dataclass(frozen=True, slots=True)
class _Step:
    """What a network is given in a training step: a batch, and labels or the gradient of its output."""

    x: Floats
    grad_y: Floats | None
    labels: Labels | None
    parameters: Mapping[str, Floats]


def _draw(
    network: Network,
    n: int,
    rng: np.random.Generator,
    draw: Literal["normal", "integers", "extremes"],
) -> _Step:
    """Random input, parameters and gradient from above.

    Normal; or integers from -3 to 3; or, for one layer of ``EXTREMES``, normal with an x of those values. Normal
    weights are divided by the root of a unit's inputs, so that a stage of several layers does not amplify errors.
    """

    def values(shape: tuple[int, ...]) -> Floats:
        if draw == "integers":
            return rng.integers(-3, 4, shape).astype(np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    def weights(shape: tuple[int, ...]) -> Floats:
        inputs = 1 if draw == "integers" else prod(shape[1:])
        return np.asarray(values(shape) / np.float32(inputs**0.5), np.float32)

    classes = network.output_shape[0]
    x = values((n, *network.input_shape))
    if draw == "extremes":
        (layer,) = network.all_layers
        x = rng.choice(np.array(EXTREMES[layer.kind], np.float32), x.shape)
    return _Step(
        x=x,
        grad_y=None if network.loss else values((n, *network.output_shape)),
        labels=rng.integers(0, classes, n).astype(np.int32) if network.loss else None,
        parameters={
            f"{layer.name}.{name}": weights(shape)
            for layer in network.layers
            for name, shape in layer.parameters.items()
        },
    )


def check_engine(
    engine: Engine,
    network: Network,
    parameters: Mapping[str, Floats],
    x: Floats,
    labels: Labels,
    optimizer: OptimizerSpec,
) -> list[CheckRow]:
    """Compare every stage of an engine on one real batch; x (n, C, H, W), labels (n,)."""
    reference = engines.make_baseline(
        network, batch_size=len(x), optimizer=optimizer, dtype=np.float64
    )
    try:
        return _check_stages(engine, reference, _Step(x, None, labels, parameters), optimizer)
    finally:
        reference.close()


def _check_stages(
    engine: Engine,
    reference: Engine,
    step: _Step,
    optimizer: OptimizerSpec,
    *,
    is_exact: bool = False,
) -> list[CheckRow]:
    """Compare every stage on what reaches it in this step.

    The reference carries the step through the network. Each stage is then given the reference's own x and grad_y, so
    that errors do not add up from stage to stage and the bound of each stage is its own.
    """
    inputs, gradients = _carry(reference, step)
    rows: list[CheckRow] = []
    for stage in engine.stages:
        if "forward" not in stage.work(len(step.x)):
            continue  # a view computes nothing; an update of all layers is verified with each of them
        first, last = stage.layers[0], stage.layers[-1]
        is_loss = reference.network.loss is not None and last == reference.network.loss.name
        given = Probe(
            x=inputs[first],
            grad_y=gradients.get(last),
            labels=step.labels if is_loss else None,
            parameters=_parameters_of(reference.network, stage.layers, step.parameters),
        )
        rows += check_stage(engine, reference, stage, given, optimizer, is_exact=is_exact)
    return rows


def _carry(reference: Engine, step: _Step) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """x of every layer, and grad_y of every layer that has one, rounded to float32."""
    layers = reference.network.all_layers
    inputs: dict[str, Floats] = {}
    x = step.x
    for layer in layers:
        inputs[layer.name] = x
        own = _parameters_of(reference.network, (layer.name,), step.parameters)
        if layer is not reference.network.loss:
            x = reference.probe(layer.name, Probe(x, parameters=own))["y"].astype(np.float32)
    gradients: dict[str, Floats] = {}
    grad = step.grad_y
    for layer in reversed(layers):
        if grad is not None:
            gradients[layer.name] = grad
        if not layer.needs_grad_x:
            break
        own = _parameters_of(reference.network, (layer.name,), step.parameters)
        labels = step.labels if layer is reference.network.loss else None
        found = reference.probe(layer.name, Probe(inputs[layer.name], grad, labels, own))
        grad = found["grad_x"].astype(np.float32)
    return inputs, gradients


def _parameters_of(
    network: Network, names: Sequence[str], parameters: Mapping[str, Floats]
) -> dict[str, Floats]:
    """The parameters of these layers, named as ``Engine.probe`` names them."""
    owners = [layer for layer in network.layers if layer.name in names and layer.parameters]
    return {
        f"{owner.name}.{name}" if len(owners) > 1 else name: parameters[f"{owner.name}.{name}"]
        for owner in owners
        for name in owner.parameters
    }


def check_stage(
    engine: Engine,
    reference: Engine,
    stage: Stage,
    given: Probe,
    optimizer: OptimizerSpec,
    *,
    is_exact: bool = False,
) -> list[CheckRow]:
    """One row for every quantity that the stage computes; ``reference`` has a stage for each of its layers."""
    by_name = {layer.name: layer for layer in reference.network.all_layers}
    layers = [by_name[name] for name in stage.layers]
    with np.errstate(invalid="ignore", over="ignore"):  # extremes are given on purpose
        expected = expect(reference, layers, given, optimizer, is_exact=is_exact)
    actual = engine.probe(stage.name, given)
    if "beyond_batch" in actual:
        nothing = np.zeros(())
        expected["beyond_batch"] = Bounded(nothing, nothing)
    rows: list[CheckRow] = []
    for name, quantity in expected.items():
        error, bound, is_within = compare(actual.get(name), quantity.value, quantity.error)
        rows.append(
            CheckRow(
                engine.name, engine.device, engine.rung, stage.name, name,
                "x".join(map(str, quantity.value.shape)), error, bound,
                "ok" if is_within else "mismatch",
            )
        )  # fmt: skip
    return rows


def compare(
    actual: np.ndarray | None, expected: Doubles, allowed: Doubles
) -> tuple[float, float, bool]:
    """(error, allowed error, whether all is within), the errors at the element that exceeds its bound the most.

    Where the expected value is a NaN or an infinity, which a stage is only given extremes to produce, nothing else
    will do. Anywhere else a NaN fails, and counts as an infinite error; so do an absent result and another shape.
    """
    if actual is None or actual.shape != expected.shape or not expected.size:
        return INFINITY, 0.0, False
    found = np.asarray(actual, np.float64)
    is_special = ~np.isfinite(expected)
    is_same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.abs(found - expected)
    error = np.where(np.isnan(error), INFINITY, error)
    error = np.where(is_special, np.where(is_same, 0.0, INFINITY), error)
    bound = np.where(is_special, 0.0, allowed)
    is_within = bool((error <= bound).all())
    excess = np.divide(error, bound, out=np.where(error > 0, INFINITY, 0.0), where=bound > 0)
    worst = np.unravel_index(int(excess.argmax()), excess.shape)
    return float(error[worst]), float(bound[worst]), is_within
