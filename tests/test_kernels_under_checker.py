"""Every kernel on every awkward shape under the checker: no race, nothing out of bounds, no barrier that some miss."""

import pytest

from pcnn_bench import engines
from pcnn_bench.awkward import Case, awkward_cases
from pcnn_bench.verify import verify
from pcnn_cuda.emulated_device import EmulatedDevice

pytestmark = pytest.mark.checker


def _affordable(case: Case) -> bool:
    """The checker follows every access; maps of 75 x 75 add minutes and no new kind of access."""
    return case.x_shape != (1, 75, 75)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_kernel_keeps_the_rules_in_every_schedule(seed: int) -> None:
    device = EmulatedDevice(checker=True, seed=seed)
    try:
        cases = [case for case in awkward_cases() if _affordable(case)]
        found = verify(None, device=device, rung="naive", cases=cases)
    finally:
        device.close()
    assert not found.mismatches
    assert set(found.kernels) == set(engines.kernel_names("naive"))
