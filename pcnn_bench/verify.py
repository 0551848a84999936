"""Compares every stage of an engine, by itself, with the float64 baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pcnn_bench import engines
from pcnn_bench.awkward import Case, awkward_cases
from pcnn_bench.engine import Engine, Probe
from pcnn_bench.layers import LossSpec
from pcnn_bench.network import Floats, Labels, Layer, Network
from pcnn_bench.optimizers import OptimizerSpec, SgdSpec
from pcnn_bench.results import CheckRow
from pcnn_bench.tolerances import Doubles, allowed_errors

if TYPE_CHECKING:
    from pcnn_cuda.device import Device

SPARE_IMAGES = 2
"""Room beyond the batch, so that a kernel which reads or writes stale rows is caught."""
VERIFY_OPTIMIZER = SgdSpec(learning_rate=0.0625, momentum=0.5, weight_decay=0.25)
"""Every term of the update counts, and each factor is a power of two."""


@dataclass(slots=True)
class Verification:
    """What was compared."""

    rows: list[CheckRow] = field(default_factory=list)
    case_count: int = 0
    kernels: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    """Kernels that exist and were never launched."""

    @property
    def mismatches(self) -> list[CheckRow]:
        """The comparisons that failed."""
        return [row for row in self.rows if row.status != "ok"]

    @property
    def is_good(self) -> bool:
        """Every comparison held, and there were some, of every kernel."""
        return bool(self.rows and self.kernels) and not self.mismatches and not self.unverified


def verify(
    network: Network | None,
    *,
    device: Device,
    rung: str,
    cases: Iterable[Case] | None = None,
    on_case: Callable[[Case], None] = lambda case: None,
) -> Verification:
    """Verify the awkward shapes and, if a network is given, each of its layers at its own shape.

    Inputs are random, and once more small integers, on which the exact kinds must be equal to the last bit. Gradients
    from above are random. With ``cases`` given (some of the awkward ones), kernels they do not reach are not held
    against the engine.
    """
    chosen = list(awkward_cases() if cases is None else cases)
    chosen += [] if network is None else list(_network_cases(network))
    networks = [_alone(case) for case in chosen]
    engines.prefetch(networks, device=device, rung=rung, optimizer=VERIFY_OPTIMIZER)
    found = Verification(case_count=len(chosen))
    device.launched.clear()
    for seed, (case, alone) in enumerate(zip(chosen, networks, strict=True)):
        on_case(case)
        found.rows += _verify_case(case, alone, device, rung, np.random.default_rng(seed))
    found.kernels = tuple(sorted(device.launched))
    if cases is None:
        known = engines.kernel_names(rung)
        found.unverified = tuple(sorted(set(known) - set(found.kernels)))
    return found


def _network_cases(network: Network) -> Iterator[Case]:
    """The layers of a network as cases of 3 images; a view has nothing to verify."""
    for layer in network.all_layers:
        if layer.kind != "flatten":
            yield Case(layer.spec, layer.x_shape, 3)


def _alone(case: Case) -> Network:
    """A network of this one layer, which computes an input gradient too."""
    if isinstance(case.spec, LossSpec):
        return Network(case.x_shape, [], case.spec, needs_grad_x=True)
    return Network(case.x_shape, [case.spec], None, needs_grad_x=True)


def _verify_case(
    case: Case, network: Network, device: Device, rung: str, rng: np.random.Generator
) -> list[CheckRow]:
    """Compare one layer on random values and on small integers."""
    (layer,) = network.all_layers
    batch_size = case.n + SPARE_IMAGES
    reference = engines.make_baseline(
        network, batch_size=batch_size, optimizer=VERIFY_OPTIMIZER, dtype=np.float64
    )
    engine = engines.make_cuda(
        network, batch_size=batch_size, optimizer=VERIFY_OPTIMIZER, device=device, rung=rung
    )
    try:
        rows: list[CheckRow] = []
        for is_exact in (False, True):
            given = _draw(layer, case.n, rng, is_exact)
            rows += check_stage(engine, reference, layer, given, VERIFY_OPTIMIZER, is_exact)
        return rows
    finally:
        engine.close()
        reference.close()


def _draw(layer: Layer, n: int, rng: np.random.Generator, is_exact: bool) -> Probe:
    """Random input, parameters and gradient from above: normal, or integers from -3 to 3."""

    def values(shape: tuple[int, ...]) -> Floats:
        if is_exact:
            return rng.integers(-3, 4, shape).astype(np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    is_loss = isinstance(layer.spec, LossSpec)
    return Probe(
        x=values(layer.batch_x(n)),
        grad_y=None if is_loss else values(layer.batch_y(n)),
        labels=rng.integers(0, layer.x_shape[0], n).astype(np.int32) if is_loss else None,
        parameters={name: values(shape) for name, shape in layer.parameters.items()},
    )


def check_engine(
    engine: Engine,
    network: Network,
    parameters: Mapping[str, Floats],
    x: Floats,
    labels: Labels,
    optimizer: OptimizerSpec,
) -> list[CheckRow]:
    """Compare every stage of an engine on one real batch; x (n, C, H, W), labels (n,).

    The float64 baseline carries the batch through the network; each stage is then given the baseline's own x and
    grad_y, so that errors do not add up from stage to stage and the bound of each stage is its own.
    """
    reference = engines.make_baseline(
        network, batch_size=len(x), optimizer=optimizer, dtype=np.float64
    )
    try:
        rows: list[CheckRow] = []
        for layer, given in _carry(reference, network, parameters, x, labels):
            rows += check_stage(engine, reference, layer, given, optimizer, is_exact=False)
        return rows
    finally:
        reference.close()


def _carry(
    reference: Engine,
    network: Network,
    parameters: Mapping[str, Floats],
    x: Floats,
    labels: Labels,
) -> list[tuple[Layer, Probe]]:
    """What each layer is given in a training step: forward through the layers, then back for the gradients."""
    probes: list[Probe] = []
    for layer in network.all_layers:
        own = {name: parameters[f"{layer.name}.{name}"] for name in layer.parameters}
        is_loss = layer is network.loss
        grad_y = None if is_loss else np.zeros(layer.batch_y(len(x)), np.float32)
        probes.append(Probe(x, grad_y, labels if is_loss else None, own))
        if not is_loss:
            x = reference.probe(layer.name, probes[-1])["y"].astype(np.float32)
    grad: Floats | None = None
    carried: list[tuple[Layer, Probe]] = []
    for layer, probe in reversed(list(zip(network.all_layers, probes, strict=True))):
        given = Probe(probe.x, grad, probe.labels, probe.parameters)
        carried.insert(0, (layer, given))
        result = reference.probe(layer.name, given)
        if "grad_x" not in result:
            grad = np.zeros(layer.batch_x(len(probe.x)), np.float32)
        else:
            grad = result["grad_x"].astype(np.float32)
    return carried


def check_stage(
    engine: Engine,
    reference: Engine,
    layer: Layer,
    given: Probe,
    optimizer: OptimizerSpec,
    is_exact: bool,
) -> list[CheckRow]:
    """One row for every quantity that the reference computes for this layer."""
    expected: dict[str, Doubles] = {
        name: np.asarray(values, np.float64)
        for name, values in reference.probe(layer.name, given).items()
    }
    allowed = allowed_errors(reference, layer, given, expected, optimizer, is_exact=is_exact)
    actual = engine.probe(layer.name, given)
    rows: list[CheckRow] = []
    for name, values in expected.items():
        error, bound, is_within = compare(actual.get(name), values, allowed[name])
        rows.append(
            CheckRow(
                engine.name, engine.device, engine.rung, layer.name, name,
                "x".join(map(str, values.shape)), error, bound, "ok" if is_within else "mismatch",
            )
        )  # fmt: skip
    return rows


def compare(
    actual: np.ndarray | None, expected: Doubles, allowed: Doubles
) -> tuple[float, float, bool]:
    """(error, allowed error, whether all is within), the errors at the element that exceeds its bound the most.

    A NaN on either side fails, and counts as an infinite error; so do an absent result and another shape.
    """
    if actual is None or actual.shape != expected.shape or not expected.size:
        return float("inf"), 0.0, False
    error = np.abs(np.asarray(actual, np.float64) - expected)
    error = np.where(np.isnan(error), np.inf, error)
    is_within = bool((error <= allowed).all())
    excess = np.divide(error, allowed, out=np.where(error > 0, np.inf, 0.0), where=allowed > 0)
    worst = np.unravel_index(int(excess.argmax()), excess.shape)
    return float(error[worst]), float(allowed[worst]), is_within
