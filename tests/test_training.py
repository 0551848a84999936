"""The training loop: order, weights of partial batches, what is inside the clock, and how it ends."""

import numpy as np
import pytest
from fakes import Costs, FakeEngine, FakeTime, Trouble, small_images

from pcnn_bench.errors import DeviceError
from pcnn_bench.results import EpochRow
from pcnn_bench.training import (
    COMPARED_STEPS,
    DivergedError,
    Schedule,
    TrainingRecord,
    evaluate,
    first_losses,
    has_grown,
    loss_checks,
    train,
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    fake.install(monkeypatch)
    return fake


def run(
    engine: FakeEngine, train_count: int, epochs: int = 1, test_count: int = 7
) -> tuple[TrainingRecord, list[EpochRow]]:
    record, seen = TrainingRecord(), list[EpochRow]()
    schedule = Schedule(epochs, engine.batch_size, seed=3, learning_rate=0.5)
    train(engine, small_images(train_count, test_count), schedule, record, seen.append)
    return record, seen


def test_a_partial_batch_weighs_what_it_should() -> None:
    engine = FakeEngine(batch_size=64, loss=lambda count: 1.0 if count == 64 else 3.0)
    record, _ = run(engine, 65)
    assert record.epochs[0].train_loss == pytest.approx(67 / 65)  # the mean of batch means is 2
    assert record.step_losses == [1.0, 3.0]
    assert [len(x) for x, _ in engine.batches] == [64, 1]


def test_fewer_images_than_a_batch_are_one_batch() -> None:
    engine = FakeEngine(batch_size=64)
    record, _ = run(engine, 3)
    assert [len(x) for x, _ in engine.batches] == [3]
    assert record.image_count == 3


def test_every_epoch_visits_every_image_once_with_its_label_in_another_order() -> None:
    engine = FakeEngine(batch_size=4)
    run(engine, 10, epochs=2)
    seen = np.concatenate([x[:, 0, 0, 0] for x, _ in engine.batches]).astype(int)
    labels = np.concatenate([labels for _, labels in engine.batches])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])
    assert list(labels) == list(seen % 3)


def test_an_epoch_is_timed_from_shuffle_to_last_update_without_evaluation() -> None:
    clock = FakeTime()
    engine = FakeEngine(batch_size=4)
    engine.costs = Costs(lambda number: 50_000.0, transfer_us=1000.0, is_asynchronous=True)
    with pytest.MonkeyPatch.context() as patch:
        engine.time = clock
        clock.install(patch)
        record, _ = run(engine, 10)
    assert record.epochs[0].wall_s == pytest.approx(3 * 0.051)
    assert record.train_s == pytest.approx(3 * 0.051)
    assert record.transfer_s == pytest.approx(0.003)
    assert record.eval_s == pytest.approx(2 * 300e-6)
    assert record.epochs[0].images_per_s == pytest.approx(10 / 0.153)


def test_nothing_is_waited_for_inside_an_epoch() -> None:
    engine = FakeEngine(batch_size=4)
    run(engine, 10)
    steps = ["baseline set_batch", "baseline step"] * 3
    assert engine.log[1:8] == [*steps, "baseline finish"]


def test_the_learning_rate_is_the_schedules() -> None:
    engine = FakeEngine()
    run(engine, 4)
    assert engine.learning_rate == 0.5


def test_the_first_losses_span_epochs_and_stop_at_the_number_compared() -> None:
    record, _ = run(FakeEngine(batch_size=4), 12, epochs=9)
    assert len(record.step_losses) == COMPARED_STEPS


def test_accuracy_and_loss_of_the_test_set_are_over_all_its_batches() -> None:
    engine = FakeEngine(batch_size=4, test_loss=0.25)
    record, _ = run(engine, 4, test_count=7)
    assert record.epochs[0].test_accuracy == 1.0
    assert record.epochs[0].test_loss == 0.25
    assert record.predictions is not None
    assert len(record.predictions) == 7


def test_without_a_test_set_there_is_no_test_loss() -> None:
    record, _ = run(FakeEngine(), 4, test_count=0)
    assert record.epochs[0].test_loss is None
    assert record.epochs[0].test_accuracy is None


def test_evaluation_keeps_the_order_of_the_images() -> None:
    images = small_images(4, test_count=9)
    losses, predictions = evaluate(FakeEngine(batch_size=4), images.test, images.test_labels)
    assert list(predictions) == list(images.test_labels)
    assert len(losses) == 9


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(value: float) -> None:
    engine = FakeEngine(batch_size=4, loss=lambda count: value if count == 2 else 1.0)
    record, seen = TrainingRecord(), list[EpochRow]()
    schedule = Schedule(5, 4, seed=0, learning_rate=0.5)
    with pytest.raises(DivergedError, match=r"baseline.* epoch 1, batch 3 of 3; lower .*0\.5"):
        train(engine, small_images(10), schedule, record, seen.append)
    assert [row.status for row in record.epochs] == ["diverged"]
    assert record.epochs[0].train_loss is None
    assert seen == record.epochs


def test_a_finite_loss_out_of_all_proportion_stops_the_run_and_keeps_its_row() -> None:
    engine = FakeEngine(batch_size=4, loss=lambda count: 1001.0 if count == 2 else 1.0)
    record, seen = TrainingRecord(), list[EpochRow]()
    with pytest.raises(DivergedError, match=r"grew from 1 .* to 1001 in epoch 1, batch 3 of 3"):
        train(engine, small_images(10), Schedule(5, 4, 0, 0.5), record, seen.append)
    assert [row.status for row in seen] == ["diverged"]
    assert seen[0].train_loss == pytest.approx((8 + 2 * 1001) / 10)
    run(FakeEngine(batch_size=4, loss=lambda count: 999.0 if count == 2 else 1.0), 10)


@pytest.mark.parametrize(
    ("losses", "grown"),
    [([1.0, 2.0, 10.0], False), ([1.0, 11.0, 1.0], True), ([1.0, np.nan], True), ([1.0], False)],
)
def test_losses_have_grown_beyond_tenfold(losses: list[float], grown: bool) -> None:
    assert has_grown(losses) is grown


def test_a_test_loss_that_is_no_number_stops_the_run() -> None:
    with pytest.raises(DivergedError, match="test loss is not finite after epoch 1"):
        run(FakeEngine(test_loss=np.nan), 4)


@pytest.mark.parametrize("event", ["step", "finish", "take_losses", "evaluate"])
def test_an_interruption_keeps_the_epochs_before_and_flags_its_own(event: str) -> None:
    engine = FakeEngine(batch_size=4)
    engine.trouble = Trouble(event, KeyboardInterrupt(), count=4 if event == "step" else 2)
    record, seen = TrainingRecord(), list[EpochRow]()
    if event == "step":
        engine.trouble.count = 5  # 3 steps in the first epoch
    schedule = Schedule(3, 4, seed=0, learning_rate=0.5)
    if event == "evaluate":
        engine.trouble.count = 3  # 2 batches after the first epoch
    with pytest.raises(KeyboardInterrupt):
        train(engine, small_images(10), schedule, record, seen.append)
    assert [row.status for row in record.epochs] == ["ok", "interrupted"]
    assert seen == record.epochs
    last = record.epochs[-1]
    assert last.train_loss == (0.5 if event == "evaluate" else None)
    assert (last.test_loss, last.test_accuracy) == (None, None)


@pytest.mark.parametrize("error", [DeviceError("fell off the bus"), MemoryError()])
@pytest.mark.parametrize(("event", "count"), [("step", 5), ("take_losses", 2), ("evaluate", 3)])
def test_a_failure_in_an_epoch_leaves_its_row_and_asks_the_engine_nothing_more(
    error: Exception, event: str, count: int
) -> None:
    engine = FakeEngine(batch_size=4, trouble=Trouble(event, error, count))
    record, seen = TrainingRecord(), list[EpochRow]()
    with pytest.raises(type(error)):
        train(engine, small_images(10), Schedule(3, 4, 0, 0.5), record, seen.append)
    assert [row.status for row in record.epochs] == ["ok", "failed"]
    assert seen == record.epochs[:1]
    assert record.epochs[1].train_loss == (0.5 if event == "evaluate" else None)
    assert engine.log[-1] == f"baseline {event}"


def test_an_interruption_before_the_first_image_leaves_no_row() -> None:
    record = TrainingRecord()
    engine = FakeEngine(trouble=Trouble("set_batch", KeyboardInterrupt()))
    schedule = Schedule(1, 4, seed=0, learning_rate=0.5)
    with pytest.raises(KeyboardInterrupt):
        train(engine, small_images(4), schedule, record, lambda row: None)
    assert record.epochs == []


def test_first_losses_can_be_taken_of_reversed_batches() -> None:
    schedule = Schedule(9, 4, seed=0, learning_rate=0.5)
    forward, backward = FakeEngine(batch_size=4), FakeEngine(batch_size=4)
    assert len(first_losses(forward, small_images(10), schedule)) == COMPARED_STEPS
    first_losses(backward, small_images(10), schedule, is_reversed=True)
    for (x, labels), (reversed_x, reversed_labels) in zip(
        forward.batches, backward.batches, strict=True
    ):
        assert np.array_equal(x[::-1], reversed_x)
        assert np.array_equal(labels[::-1], reversed_labels)


def unused() -> list[float]:
    raise AssertionError("permuted sums are not needed here")


def test_equal_losses_pass_both_bounds() -> None:
    rows = loss_checks(FakeEngine(name="cuda"), [1.0, 0.5], [1.0, 0.5], unused)
    assert [(row.shape, row.status) for row in rows] == [("1", "ok"), ("2", "ok")]
    assert rows[0].allowed_error == pytest.approx(1e-5)


def test_the_first_step_has_the_tighter_bound() -> None:
    rows = loss_checks(FakeEngine(), [1.0001, 0.5], [1.0, 0.5], unused)
    assert [row.status for row in rows] == ["mismatch", "ok"]


def test_a_later_step_is_held_to_its_bound_or_to_what_permuted_sums_do() -> None:
    found, expected = [1.0, 0.502], [1.0, 0.5]
    wrong = loss_checks(FakeEngine(), found, expected, lambda: [1.0, 0.5])
    assert [row.status for row in wrong] == ["ok", "mismatch"]
    assert wrong[1].max_abs_error == pytest.approx(0.002)
    right = loss_checks(FakeEngine(), found, expected, lambda: [1.0, 0.501])
    assert [row.status for row in right] == ["ok", "ok"]
    assert right[1].allowed_error == pytest.approx(0.004)


def test_a_loss_that_is_no_number_passes_no_bound() -> None:
    rows = loss_checks(FakeEngine(), [np.nan, np.nan], [1.0, 1.0], lambda: [1.0, 1.0])
    assert [row.status for row in rows] == ["mismatch", "mismatch"]
