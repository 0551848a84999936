"""Verification itself: what passes, what cannot pass, and that nothing is left out."""

from collections.abc import Iterator

import numpy as np
import pytest

from pcnn_bench import engines
from pcnn_bench.awkward import awkward_cases
from pcnn_bench.layers import SPECS
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.relu import ReluSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_bench.tolerances import UNIT_ROUNDOFF, summation_error
from pcnn_bench.verify import check_engine, compare, verify
from pcnn_cuda.emulated_device import EmulatedDevice

OPTIMIZER = SgdSpec(learning_rate=0.05, momentum=0.9)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    device = EmulatedDevice()
    yield device
    device.close()


def _network() -> Network:
    conv = SPECS["conv2d"].model_validate({"kind": "conv2d", "out_channels": 3, "kernel": [3, 2]})
    pool = SPECS["maxpool2d"].model_validate({"kind": "maxpool2d", "size": 3, "stride": 2})
    dense = SPECS["dense"].model_validate({"kind": "dense", "out_features": 4})
    specs = [conv, ReluSpec(), pool, FlattenSpec(), dense]
    return Network((2, 9, 8), specs, SoftmaxCrossEntropySpec())


@pytest.mark.parametrize("rung", engines.rungs())
def test_every_kernel_of_the_rung_is_right_on_awkward_shapes(
    device: EmulatedDevice, rung: str
) -> None:
    found = verify(None, device=device, rung=rung)
    assert not found.mismatches
    assert not found.unverified
    assert set(found.kernels) == set(engines.kernel_names(rung))
    if rung == "naive":  # each layer is a stage
        assert found.case_count == sum(len(case.kinds) for case in awkward_cases())
    assert found.is_good


def test_a_network_adds_its_own_shapes(device: EmulatedDevice) -> None:
    found = verify(_network(), device=device, rung="naive", cases=[])
    assert found.case_count == 10  # five layers alone, then together; a view is none
    assert not found.mismatches
    assert "conv2d_backward_input" in found.kernels


def test_nothing_verified_is_not_good(device: EmulatedDevice) -> None:
    assert not verify(None, device=device, rung="naive", cases=[]).is_good


def test_a_real_batch_is_checked_stage_by_stage(device: EmulatedDevice) -> None:
    network = _network()
    parameters = network.initial_parameters(seed=3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 2, 9, 8), dtype=np.float32)
    labels = rng.integers(0, 4, 5).astype(np.int32)
    engine = engines.make_cuda(
        network, batch_size=5, optimizer=OPTIMIZER, device=device, rung="naive"
    )
    rows = check_engine(engine, network, parameters, x, labels, OPTIMIZER)
    assert {row.status for row in rows} == {"ok"}
    assert {(row.stage, row.quantity) for row in rows} >= {
        ("conv2d1", "y"),
        ("conv2d1", "grad_weight"),
        ("conv2d1", "weight"),
        ("maxpool2d1", "grad_x"),
        ("dense1", "grad_bias"),
        ("loss", "losses"),
        ("loss", "grad_x"),
    }
    assert ("conv2d1", "grad_x") not in {(row.stage, row.quantity) for row in rows}
    engine.close()


@pytest.mark.parametrize(
    ("actual", "is_within"),
    [([1.0, 2.0], True), ([1.0, 2.25], True), ([1.0, 2.26], False), ([np.nan, 2.0], False)],
)
def test_compare_holds_each_element_against_its_own_bound(
    actual: list[float], is_within: bool
) -> None:
    expected, allowed = np.array([1.0, 2.0]), np.array([0.0, 0.25])
    assert compare(np.array(actual), expected, allowed)[2] is is_within


@pytest.mark.parametrize("actual", [None, np.zeros(3), np.zeros((2, 1))])
def test_an_absent_result_or_another_shape_never_passes(actual: np.ndarray | None) -> None:
    assert compare(actual, np.zeros(2), np.full(2, np.inf)) == (float("inf"), 0.0, False)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_where_a_special_value_is_expected_nothing_else_will_do(special: float) -> None:
    expected, allowed = np.array([special, 1.0]), np.array([np.nan, 0.5])
    assert compare(np.array([special, 1.0]), expected, allowed)[2] is True
    for wrong in (0.0, 1e30, np.nan, np.inf, -np.inf):
        is_right = wrong == special or bool(np.isnan(wrong) and np.isnan(special))
        assert compare(np.array([wrong, 1.0]), expected, allowed)[2] is is_right
    assert compare(np.array([special, np.nan]), expected, allowed)[2] is False


@pytest.mark.parametrize("terms", [1, 10, 400, 10_000])
def test_a_float32_sum_stays_within_the_bound_in_any_order(terms: int) -> None:
    rng = np.random.default_rng(terms)
    values = rng.standard_normal(terms).astype(np.float32)
    exact = float(values.astype(np.float64).sum())
    bound = summation_error(terms) * float(np.abs(values.astype(np.float64)).sum())
    for _ in range(20):
        total = np.float32(0)
        for value in rng.permutation(values):
            total = np.float32(total + value)
        assert abs(float(total) - exact) <= bound


def test_the_bound_is_tight_enough_to_miss_no_term() -> None:
    assert summation_error(10_000) < 1e-4
    assert summation_error(1) == 2 * UNIT_ROUNDOFF
