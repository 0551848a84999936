"""The timing pass: what is inside a sample, what ends the sampling, and that no weight changes."""

from collections import Counter
from time import sleep

import pytest
from fakes import Costs, FakeEngine, FakeTime, Trouble, small_images

from pcnn_bench.config import TimingConfig
from pcnn_bench.results import LayerRow, SampleRow
from pcnn_bench.timing import (
    MIN_SAMPLES,
    MIN_SAMPLING_S,
    TimingPass,
    TimingRecord,
    flag_outliers,
    launch_once,
    layer_rows,
    time_engines,
)

FAST = TimingConfig(warmup_s=0.0, warmup_count=2, target_relative_mad=0.01, budget_s=1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    fake.install(monkeypatch)
    return fake


def run(engine: FakeEngine, timing: TimingConfig = FAST) -> TimingRecord:
    images = small_images(engine.batch_size)
    record = TimingRecord()
    launch_once(engine, images.train, images.train_labels, 0, 0.5, record)
    time_engines([TimingPass(engine, images.train, images.train_labels, timing, 0.5, record)])
    return record


def rows_of(engine: FakeEngine, record: TimingRecord) -> dict[tuple[str, str], LayerRow]:
    rows = layer_rows(engine, record, engine.batch_size, "ok")
    return {(row.stage, row.phase): row for row in rows}


def steps(record: TimingRecord, *, is_warmup: bool = False) -> list[SampleRow]:
    return [s for s in record.samples if s.phase == "step" and s.is_warmup == is_warmup]


def test_launches_that_return_at_once_are_waited_for(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    engine.costs = Costs(lambda number: 50_000.0, is_asynchronous=True)
    assert rows_of(engine, run(engine))["*", "step"].median_us == pytest.approx(50_000)


def test_a_launch_that_sleeps_in_finish_is_reported_by_the_real_clock() -> None:
    class Sleeper(FakeEngine):
        def finish(self) -> None:
            sleep(0.05 * self._steps_since_finish)
            self._steps_since_finish = 0

        def step(self, clock: object = None) -> None:
            self._steps_since_finish += 1
            super().step(clock)  # type: ignore[arg-type]

        _steps_since_finish = 0

    engine = Sleeper()
    median_us = rows_of(engine, run(engine))["*", "step"].median_us
    assert median_us is not None
    assert 50_000 <= median_us < 500_000


def test_a_slow_first_call_enters_first_us_and_no_sample(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    engine.costs = Costs(lambda number: 500_000.0 if number == 0 else 1000.0)
    record = run(engine)
    assert {s.time_us for s in record.samples if s.phase == "step"} == {1000.0}
    row = rows_of(engine, record)["*", "step"]
    assert row.first_us == pytest.approx(500_000)
    assert row.median_us == row.p25_us == row.p75_us == pytest.approx(1000)
    assert row.mad_us == 0


def test_a_slow_start_is_spent_in_the_warm_up_and_not_in_the_budget(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    engine.costs = Costs(lambda number: 900_000.0 if number < 3 else 1000.0)
    record = run(engine)
    assert record.ended_by == "target"
    assert {s.time_us for s in steps(record)} == {1000.0}


def test_the_warm_up_lasts_its_time_and_its_count(clock: FakeTime) -> None:
    by_count = FakeEngine(time=clock)
    assert len(steps(run(by_count), is_warmup=True)) == 2
    by_time = FakeEngine(time=clock)
    record = run(by_time, FAST.model_copy(update={"warmup_s": 0.1}))
    warm_us = sum(s.time_us * s.step_count for s in steps(record, is_warmup=True))
    assert len(steps(record, is_warmup=True)) > 2
    assert warm_us == pytest.approx(100_000, rel=0.3)


def test_steps_are_timed_in_blocks_long_enough_for_the_clock(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(lambda number: 90.0))
    samples = steps(run(engine))
    assert {s.step_count for s in samples} == {56}  # the first count of 90 us that makes 5 ms
    assert {round(s.time_us, 6) for s in samples} == {90.0}


def test_a_step_sample_has_no_events_inside_and_waits_once(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(lambda number: 2500.0))
    run(engine)
    text = ", ".join(event.removeprefix("baseline ") for event in engine.log)
    assert "set_batch, finish, step, step, finish, take_losses, step with clock, drain" in text


def test_steady_long_steps_end_by_the_target_with_the_fewest_samples(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(lambda number: 90_000.0))
    record = run(engine)
    assert record.ended_by == "target"
    assert len(steps(record)) == MIN_SAMPLES
    assert {row.flags for row in rows_of(engine, record).values()} == {"target"}


def test_steady_short_steps_are_sampled_for_a_while(clock: FakeTime) -> None:
    record = run(FakeEngine(time=clock))
    spent_us = sum(s.time_us * s.step_count for s in record.samples if not s.is_warmup)
    assert record.ended_by == "target"
    assert spent_us == pytest.approx(MIN_SAMPLING_S * 1e6, rel=0.2)


def noisy(number: int) -> float:
    return 6000.0 + 600.0 * (number % 3)


def test_noisy_steps_end_by_the_budget(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(noisy))
    record = run(engine)
    assert record.ended_by == "budget"
    assert len(steps(record)) > MIN_SAMPLES
    row = rows_of(engine, record)["*", "step"]
    assert row.flags == "budget"
    assert row.sample_count == len(steps(record))


def test_noisy_stages_of_steady_steps_end_by_the_budget(clock: FakeTime) -> None:
    class Restless(FakeEngine):
        def step(self, clock: object = None) -> None:
            if clock:
                self.stage_us = 7.0 + (self.stage_us - 6.0) % 3
            super().step(clock)  # type: ignore[arg-type]

    record = run(Restless(time=clock))
    assert {s.time_us for s in steps(record)} == {1000.0}
    assert record.ended_by == "budget"


def test_a_spent_budget_still_takes_the_fewest_samples(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(lambda number: 1000.0 * noisy(number)))
    record = run(engine)
    assert (record.ended_by, len(steps(record))) == ("budget", MIN_SAMPLES)


def test_no_weight_changes_by_a_single_bit(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    before = engine.parameters()
    run(engine)
    after = engine.parameters()
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_weights_are_restored_where_a_step_changes_them_and_where_it_is_interrupted(
    clock: FakeTime,
) -> None:
    class Restless(FakeEngine):
        def set_learning_rate(self, learning_rate: float) -> None:
            super().set_learning_rate(learning_rate or 1.0)

    for trouble in (None, Trouble("step with clock", KeyboardInterrupt(), count=4)):
        engine = Restless(time=clock, trouble=trouble)
        before = engine.parameters()
        try:
            run(engine)
        except KeyboardInterrupt:
            assert trouble
        after = engine.parameters()
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)
        assert engine.learning_rate == 0.5


def test_the_learning_rate_is_zero_inside_and_restored_after(clock: FakeTime) -> None:
    rates = []

    class Watched(FakeEngine):
        def step(self, clock: object = None) -> None:
            rates.append(self.learning_rate)
            super().step(clock)  # type: ignore[arg-type]

    engine = Watched(time=clock)
    run(engine)
    assert set(rates) == {0.0}
    assert engine.learning_rate == 0.5


def test_launching_once_takes_the_last_batch_too(clock: FakeTime) -> None:
    images = small_images(4)
    engine = FakeEngine(time=clock)
    record = TimingRecord()
    launch_once(engine, images.train, images.train_labels, 1, 0.5, record)
    assert [len(x) for x, _ in engine.batches] == [4, 1]
    assert engine.learning_rate == 0.5
    assert set(record.first_us) == {("*", "transfer"), ("*", "step")}
    assert "step with clock" not in engine.log
    assert record.first_us["*", "transfer"] == pytest.approx(10)
    assert record.samples == []


def test_rows_carry_work_and_rates(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, compile_s=0.25)
    rows = rows_of(engine, run(engine))
    row = rows["dense1", "forward"]
    assert (row.flop_count, row.byte_count) == (4000, 16000)
    assert row.median_us == engine.stage_us
    assert row.gflop_per_s == pytest.approx(4000 / 7e-6 / 1e9)
    assert row.gbyte_per_s == pytest.approx(16000 / 7e-6 / 1e9)
    assert (row.clock, row.layers, row.op) == ("device", "dense1", "dense")
    assert row.compile_ms is None
    step = rows["*", "step"]
    assert (step.clock, step.layers, step.compile_ms) == ("host", "flatten1+dense1+loss", 250.0)
    assert step.flop_count == sum(
        r.flop_count for r in rows.values() if r.stage != "*" and r.flop_count
    )
    transfer = rows["*", "transfer"]
    assert (transfer.flop_count, transfer.gflop_per_s) == (None, None)
    assert transfer.median_us == pytest.approx(10)


def test_a_phase_that_a_stage_lacks_has_no_row(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    assert list(rows_of(engine, run(engine))) == [
        ("flatten1", "forward"),
        ("dense1", "forward"),
        ("dense1", "backward"),
        ("dense1", "update"),
        ("loss", "forward"),
        ("loss", "backward"),
        ("*", "step"),
        ("*", "transfer"),
    ]


def test_every_phase_has_as_many_samples_as_the_step(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock, costs=Costs(noisy))
    record = run(engine)
    counts = Counter((s.stage, s.phase) for s in record.samples if not s.is_warmup)
    assert set(counts.values()) == {len(steps(record))}
    assert {row.warmup_count for row in rows_of(engine, record).values()} == {2}


def test_an_interrupted_pass_keeps_its_samples(clock: FakeTime) -> None:
    images, record = small_images(4), TimingRecord()
    engine = FakeEngine(time=clock, trouble=Trouble("step with clock", KeyboardInterrupt(), 4))
    with pytest.raises(KeyboardInterrupt):
        time_engines([TimingPass(engine, images.train, images.train_labels, FAST, 0.5, record)])
    assert len(steps(record)) == 2
    rows = {(r.stage, r.phase): r for r in layer_rows(engine, record, 4, "interrupted")}
    assert rows["*", "step"].sample_count == 2
    assert rows["dense1", "forward"].sample_count == 1
    assert {row.status for row in rows.values()} == {"interrupted"}
    assert {row.flags for row in rows.values()} == {""}


def test_a_phase_without_samples_has_empty_cells_and_no_zero(clock: FakeTime) -> None:
    row = layer_rows(FakeEngine(), TimingRecord(), 4, "interrupted")[0]
    times = (row.median_us, row.mad_us, row.min_us, row.p25_us, row.p75_us, row.first_us)
    assert times == (None,) * 6
    assert row.gflop_per_s is None


@pytest.mark.parametrize(
    ("name", "cpu_share", "flags"),
    [
        ("baseline", 1.0, "target"),
        ("baseline", 1.05, "target"),
        ("baseline", 1.9, "target;not_sequential"),
        ("cuda", 1.9, "target"),
    ],
)
def test_a_baseline_on_several_processors_is_flagged(
    clock: FakeTime, name: str, cpu_share: float, flags: str
) -> None:
    engine = FakeEngine(time=clock, costs=Costs(cpu_share=cpu_share))
    engine.name = "baseline" if name == "baseline" else "cuda"
    assert rows_of(engine, run(engine))["*", "step"].flags == flags


def sample(time_us: float, is_warmup: bool = False) -> SampleRow:
    return SampleRow("cuda", "gpu", "naive", "*", "step", 4, 0, 1, is_warmup, time_us, "")


def test_outliers_are_flagged_and_kept_and_warm_ups_are_not_judged() -> None:
    samples = [sample(900.0, True), *(sample(100.0 + i) for i in range(8)), sample(400.0)]
    flagged = flag_outliers(samples)
    assert [s.time_us for s in flagged] == [s.time_us for s in samples]
    assert [s.flags for s in flagged] == ["", *[""] * 8, "outlier"]


def test_losses_do_not_pile_up(clock: FakeTime) -> None:
    engine = FakeEngine(time=clock)
    run(engine)
    assert len(engine.take_losses()) == 0
