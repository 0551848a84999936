"""The event clock: the device is held back while the host queues, and a step that began too early is flagged."""

from typing import Any

from pcnn_cuda.event_clock import FIRST_STALL_US, LAUNCH_BOUND, MAX_STALL_US, EventClock


class _Device:
    """Events are numbers; whether the device has come to one is up to the test."""

    kind = "gpu"

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_early = False

    def stall(self, time_us: float) -> None:
        self.log.append(("stall", time_us))

    def record(self) -> int:
        self.log.append("record")
        return len(self.log)

    def is_reached(self, event: int) -> bool:
        self.log.append("query")
        return self.is_early

    def synchronize(self) -> None:
        self.log.append("wait")

    def elapsed_us(self, start: int, stop: int) -> float:
        return float(stop - start)


def _step(clock: EventClock, device: _Device) -> list[tuple[str, str, float]]:
    for stage in ("conv2d1", "loss"):
        with clock.span(stage, "forward"):
            device.log.append(f"launch {stage}")
    return list(clock.drain())


def _clock(device: _Device) -> EventClock:
    return EventClock(device)  # type: ignore[arg-type]


def test_the_device_is_held_back_once_before_the_first_span_and_waited_for_once_after_the_last() -> (
    None
):
    device = _Device()
    spans = _step(_clock(device), device)
    assert device.log == [
        ("stall", 1.5 * FIRST_STALL_US),
        "record", "launch conv2d1", "record", "record", "launch loss", "record", "query", "wait",
    ]  # fmt: skip
    assert [(stage, phase) for stage, phase, _ in spans] == [
        ("conv2d1", "forward"), ("loss", "forward"),
    ]  # fmt: skip


def test_the_pause_follows_what_queueing_took() -> None:
    device = _Device()
    clock = _clock(device)
    _step(clock, device)
    _step(clock, device)
    stalls = [entry[1] for entry in device.log if entry[0] == "stall"]
    assert stalls[1] < FIRST_STALL_US  # a few calls of a fake take far less than 5 ms
    clock._queue_us = 1e9
    _step(clock, device)
    assert [entry[1] for entry in device.log if entry[0] == "stall"][-1] == MAX_STALL_US


def test_a_step_that_began_before_it_was_queued_is_flagged_and_the_next_is_not() -> None:
    device = _Device()
    clock = _clock(device)
    device.is_early = True
    assert len(_step(clock, device)) == 2
    assert clock.flags == LAUNCH_BOUND
    device.is_early = False
    _step(clock, device)
    assert clock.flags == ""


def test_nothing_to_drain_waits_for_nothing() -> None:
    device = _Device()
    assert _clock(device).drain() == []
    assert device.log == []
