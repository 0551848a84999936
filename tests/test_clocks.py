"""The host clock."""

from __future__ import annotations

from time import sleep

import pytest

from pcnn_bench.clocks import HostClock
from pcnn_bench.engine import StageClock


def test_spans_come_out_once_and_in_order() -> None:
    clock: StageClock = HostClock()
    with clock.span("conv2d1", "forward"):
        sleep(0.01)
    with clock.span("conv2d1", "backward"):
        pass
    (first, second) = clock.drain()
    assert first[:2] == ("conv2d1", "forward")
    assert second[:2] == ("conv2d1", "backward")
    assert first[2] >= 10_000 > second[2] >= 0
    assert clock.drain() == []


def test_work_that_fails_leaves_no_time() -> None:
    clock = HostClock()
    with pytest.raises(KeyboardInterrupt), clock.span("conv2d1", "forward"):
        raise KeyboardInterrupt
    assert clock.drain() == []
