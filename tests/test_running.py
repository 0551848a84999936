"""A whole run with engines that compute nothing: the order of events, and what is kept however it ends."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import CLASSES, INPUT, Costs, FakeEngine, FakeTime, Trouble
from safetensors.numpy import load_file

import pcnn_bench.engines as packages
from pcnn_bench import environment, running, verify
from pcnn_bench.config import Config, load_config, parse_config
from pcnn_bench.datasets import Dataset
from pcnn_bench.errors import (
    ConfigError,
    DataError,
    DeviceError,
    DeviceMemoryError,
    FindingError,
    ResultsError,
    UnavailableError,
)
from pcnn_bench.results import CheckRow, RunFolder
from pcnn_bench.running import RunResult, run, without_folders
from pcnn_bench.training import DivergedError

TEXT = """
schema: 1
name: tiny
data: {set: synthetic}
network:
  input: [1, 4, 3]
  layers:
    - {kind: flatten}
    - {kind: dense, out_features: 3}
training: {epochs: 2, batch_size: 4, optimizer: {kind: sgd, learning_rate: 0.5}}
engines: [cuda, baseline]
timing: {warmup_s: 0.0, warmup_count: 1, budget_s: 0.01}
"""
TRAIN_COUNT, TEST_COUNT = 10, 7


def tiny(*overrides: str) -> Config:
    return parse_config(TEXT, "tiny.yaml", overrides)


class FakeDevice:
    """A device that is only described."""

    kind = "emulated"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def describe(self) -> dict[str, str]:
        return {"name": "two cores"}

    def close(self) -> None:
        self._log.append("device close")


@dataclass
class World:
    """What stands in for data, device, engines and the comparison of stages."""

    log: list[str] = field(default_factory=list)
    time: FakeTime = field(default_factory=FakeTime)
    engines: list[FakeEngine] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of FakeEngine by engine name."""
    check_status: dict[str, str] = field(default_factory=dict)
    """By engine name; ``ok`` if not given."""
    refusal: BaseException | None = None
    """Raised instead of making engine cuda."""

    def dataset(self) -> Dataset:
        rng = np.random.default_rng(0)

        def images(count: int) -> Any:
            return rng.integers(0, 256, (count, *INPUT), np.uint8)

        def labels(count: int) -> Any:
            return (np.arange(count) % CLASSES).astype(np.int32)

        return Dataset(
            "synthetic", images(TRAIN_COUNT), labels(TRAIN_COUNT), images(TEST_COUNT),
            labels(TEST_COUNT), CLASSES, (0.5,), (0.25,), "0" * 64,
        )  # fmt: skip

    def make(self, name: str, batch_size: int) -> FakeEngine:
        if name == "cuda" and self.refusal:
            raise self.refusal
        given: dict[str, Any] = {"batch_size": batch_size, "log": self.log, "time": self.time}
        given |= self.settings.get(name, {})
        if name == "cuda":
            given |= {"name": "cuda", "device": "emulated", "rung": "naive", "compile_s": 0.25}
        self.engines.append(FakeEngine(**given))
        return self.engines[-1]

    def check(self, engine: FakeEngine, *given: Any) -> list[CheckRow]:
        engine.note("check")
        assert engine.learning_rate == 0.5  # the check compares updates too
        names = (engine.name, engine.device, engine.rung)
        status = self.check_status.get(engine.name, "ok")
        return [CheckRow(*names, "dense1", "y", "4x3", 1.0, 0.5, status)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    world.time.install(monkeypatch)

    @contextmanager
    def one_blas_thread() -> Iterator[list[dict[str, Any]]]:
        world.log.append("one thread")
        try:
            yield []
        finally:
            world.log.append("threads as before")

    def open_device(choice: str, **given: Any) -> FakeDevice:
        world.log.append(f"open {choice}")
        return FakeDevice(world.log)

    monkeypatch.setattr(running, "load_dataset", lambda *args, **given: world.dataset())
    monkeypatch.setattr(packages, "rungs", lambda: ("naive",))
    monkeypatch.setattr(packages, "one_blas_thread", one_blas_thread)
    monkeypatch.setattr(packages, "open_device", open_device)
    monkeypatch.setattr(
        packages,
        "make_baseline",
        lambda network, **given: world.make("baseline", given["batch_size"]),
    )
    monkeypatch.setattr(
        packages, "make_cuda", lambda network, **given: world.make("cuda", given["batch_size"])
    )
    monkeypatch.setattr(verify, "check_engine", world.check)
    return world


def only_folder(parent: Path) -> Path:
    (folder,) = parent.iterdir()
    return folder


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def run_quietly(output: Path, config: Config | None = None, **given: Any) -> RunResult:
    return run(config or tiny(), output=output, quiet=True, say=lambda text: None, **given)


def order_of(log: list[str], *events: str) -> list[int]:
    return [log.index(event) for event in events]


def test_a_run_sets_up_checks_trains_and_times_in_this_order(world: World, tmp_path: Path) -> None:
    run_quietly(tmp_path)
    log = world.log
    places = order_of(
        log, "one thread", "open auto", "baseline make", "cuda make", "cuda check", "baseline evaluate",
        "cuda evaluate",
    )  # fmt: skip
    assert places == sorted(places)
    last_evaluation = len(log) - 1 - log[::-1].index("cuda evaluate")
    timed = [event for event in log[last_evaluation:] if event.endswith("step with clock")]
    steady = timed[2:]  # a warm-up each; then they take turns
    assert steady[:4] == ["baseline step with clock", "cuda step with clock"] * 2
    assert len(timed) >= 2 * 6  # a warm-up and five samples each
    before = log[: log.index("cuda check")]
    assert not [event for event in before if " step" in event]  # nothing is timed unchecked
    between = log[log.index("cuda check") : last_evaluation]
    assert not [event for event in between if "with clock" in event]  # training has no events
    assert log[-4:] == ["baseline close", "cuda close", "device close", "threads as before"]


def test_both_engines_start_from_equal_parameters_and_see_equal_batches(
    world: World, tmp_path: Path
) -> None:
    run_quietly(tmp_path)
    baseline, cuda = world.engines
    for ours, theirs in zip(baseline.loaded[:2], cuda.loaded[:2], strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert len(baseline.batches) == len(cuda.batches)
    for (x, labels), (other_x, other_labels) in zip(baseline.batches, cuda.batches, strict=True):
        assert x.tobytes() == other_x.tobytes()
        assert labels.tobytes() == other_labels.tobytes()


def test_training_starts_afresh_after_the_check(world: World, tmp_path: Path) -> None:
    run_quietly(tmp_path)
    cuda = world.engines[1]
    check = world.log.index("cuda check")
    assert "cuda load_parameters" in world.log[check:]
    assert np.array_equal(cuda.loaded[0]["dense1.weight"], cuda.loaded[1]["dense1.weight"])


def test_a_good_run_says_what_it_was(world: World, tmp_path: Path) -> None:
    argv = ["pcnn-bench", "run", "/home/me/tiny.yaml", "--output=/home/me/out"]
    result = run_quietly(tmp_path, argv=argv)
    found = document(result.folder)
    assert found == result.document
    assert found["status"] == "ok"
    assert found["argv"] == ["pcnn-bench", "run", "tiny.yaml", "--output=out"]
    assert found["device"] == {"kind": "emulated", "name": "two cores"}
    assert found["data"]["train_count"] == TRAIN_COUNT
    baseline, cuda = found["engines"]
    assert (baseline["engine"], baseline["rung"], cuda["rung"]) == ("baseline", "", "naive")
    assert cuda["status"] == "ok"
    assert cuda["totals"]["train_s"] == pytest.approx(2 * 3 * 1010e-6)
    assert cuda["totals"]["compile_s"] == 0.25
    assert cuda["train_images"] == 2 * TRAIN_COUNT
    assert cuda["test_accuracy"] == 1.0
    assert baseline["cpu_over_wall"] == pytest.approx(1.0)
    assert cuda["agreement"] == {"predictions_equal": 1.0, "accuracy_difference": 0.0}
    assert baseline["agreement"] is None


def test_a_good_run_leaves_every_file(world: World, tmp_path: Path) -> None:
    folder = run_quietly(tmp_path).folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "checks.csv", "config.yaml", "environment.json", "epochs.csv", "layers.csv", "memory.csv",
        "run.json", "samples.csv", "weights-baseline.safetensors", "weights-cuda-naive.safetensors",
    ]  # fmt: skip
    assert [row["epoch"] for row in table(folder, "epochs")] == ["1", "2", "1", "2"]
    assert {row["engine"] for row in table(folder, "layers")} == {"baseline", "cuda"}
    assert {row["status"] for row in table(folder, "layers")} == {"ok"}
    columns = ("engine", "stage", "quantity", "shape")
    checks = [tuple(row[name] for name in columns) for row in table(folder, "checks")]
    assert checks == [
        ("baseline", "dense1", "y", "4x3"), ("cuda", "dense1", "y", "4x3"),
        ("cuda", "*", "loss", "1"), ("cuda", "*", "loss", "6"),
    ]  # fmt: skip
    weights = load_file(folder / "weights-cuda-naive.safetensors")
    assert weights["dense1.weight"].shape == (3, 12)
    assert load_config(folder / "config.yaml").cuda.rung == "naive"


def test_the_folder_is_named_after_time_config_and_code(world: World, tmp_path: Path) -> None:
    names = [run_quietly(tmp_path).folder.name for _ in range(2)]
    stamp, config, code = names[0].split("-", 2)
    assert (len(stamp), stamp[8], stamp[-1], config) == (16, "T", "Z", "tiny")
    assert code
    assert len(set(names)) == 2


def test_the_first_step_of_each_engine_is_in_its_own_column(world: World, tmp_path: Path) -> None:
    slow_start = Costs(lambda number: 500_000.0 if number == 0 else 1000.0)
    world.settings["cuda"] = {"costs": slow_start}
    rows = table(run_quietly(tmp_path).folder, "layers")
    (step,) = [row for row in rows if row["engine"] == "cuda" and row["phase"] == "step"]
    assert float(step["first_us"]) == pytest.approx(500_000)
    assert float(step["median_us"]) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("cpu_share", "words"), [(1.0, ""), (1.9, "not sequential: 1.90 s"), (0.5, "contended machine")]
)
def test_a_baseline_that_was_not_one_undisturbed_thread_is_told_in_one_line(
    world: World, tmp_path: Path, cpu_share: float, words: str
) -> None:
    world.settings["baseline"] = {"costs": Costs(cpu_share=cpu_share)}
    world.settings["cuda"] = {"costs": Costs(cpu_share=3.0)}
    said: list[str] = []
    result = run(tiny(), output=tmp_path, quiet=True, say=said.append)
    assert result.document["status"] == "ok"
    assert result.document["message"] == "".join(said)
    assert len(said) == bool(words)
    assert words in "".join(said)
    ours = result.document["engines"][0]
    assert ours["cpu_over_wall"] == pytest.approx(cpu_share)
    assert ours["timing_cpu_over_wall"] == pytest.approx(cpu_share)


def test_the_most_memory_that_the_process_held_is_recorded(world: World, tmp_path: Path) -> None:
    peak = document(run_quietly(tmp_path).folder)["peak_memory_bytes"]
    now = environment.peak_memory_bytes()
    assert now is not None
    assert 2**20 < peak <= now


@pytest.mark.parametrize(("batch_size", "expected"), [(8, 8), (10, 10), (2_000_000, TRAIN_COUNT)])
def test_a_batch_larger_than_the_data_needs_no_larger_engine(
    world: World, tmp_path: Path, batch_size: int, expected: int
) -> None:
    result = run_quietly(tmp_path, tiny(f"training.batch_size={batch_size}"))
    assert {engine.batch_size for engine in world.engines} == {expected}
    assert {row.batch_size for row in result.layers} == {expected}
    assert load_config(result.folder / "config.yaml").training.batch_size == batch_size


def test_a_batch_for_which_there_is_no_memory_leaves_no_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "memory_bytes", lambda: (9 << 10, 1 << 20))
    with pytest.raises(UnavailableError, match=r"batch_size 4, .*batch_size that fits is 2$"):
        run_quietly(tmp_path / "results")
    assert not (tmp_path / "results").exists()
    assert not world.engines


def test_without_cuda_no_device_is_looked_at(world: World, tmp_path: Path) -> None:
    result = run_quietly(tmp_path, engines=["baseline"])
    assert not [event for event in world.log if event.startswith(("open", "cuda"))]
    assert result.document["device"] is None
    assert result.document["engines"][0]["agreement"] is None
    assert [(row.engine, row.stage) for row in result.checks] == [("baseline", "dense1")]


def test_cuda_alone_is_still_held_against_the_baseline(world: World, tmp_path: Path) -> None:
    result = run_quietly(tmp_path, engines=["cuda"])
    assert [row.quantity for row in result.checks] == ["y", "loss", "loss"]
    assert [entry["engine"] for entry in result.document["engines"]] == ["cuda"]
    assert "baseline close" in world.log
    assert {row.engine for row in result.layers} == {"cuda"}


@pytest.mark.parametrize(
    ("wrong", "statuses"), [("baseline", ["mismatch"]), ("cuda", ["ok", "mismatch"])]
)
def test_a_wrong_stage_ends_the_run_before_anything_is_trained_or_timed(
    world: World, tmp_path: Path, wrong: str, statuses: list[str]
) -> None:
    world.check_status[wrong] = "mismatch"
    line = rf"engine {wrong} .*1 of 1 results.*y of stage dense1.*checks\.csv"
    with pytest.raises(FindingError, match=line) as caught:
        run_quietly(tmp_path)
    folder = only_folder(tmp_path)
    assert caught.value.folder == folder
    assert document(folder)["status"] == "failed"
    assert [row["status"] for row in table(folder, "checks")] == statuses
    assert table(folder, "layers") == table(folder, "samples") == table(folder, "epochs") == []
    assert "baseline evaluate" not in world.log


def test_losses_that_differ_end_the_run_before_anything_is_timed(
    world: World, tmp_path: Path
) -> None:
    world.settings["cuda"] = {"loss": lambda count: 0.51}
    with pytest.raises(FindingError, match="loss of stage"):
        run_quietly(tmp_path)
    folder = only_folder(tmp_path)
    statuses = [row["status"] for row in table(folder, "checks")]
    assert statuses == ["ok", "ok", "mismatch", "mismatch"]
    assert table(folder, "layers") == []
    assert len(table(folder, "epochs")) == 4


def test_losses_that_differ_where_the_baselines_grow_are_called_a_divergence(
    world: World, tmp_path: Path
) -> None:
    # two steps to launch, then six to train and six with permuted sums
    growing = chain([0.5, 0.5], cycle([0.5, 0.5, 50.0, 50.0, 50.0, 50.0]))
    world.settings["baseline"] = {"loss": lambda count: next(growing)}
    with pytest.raises(DivergedError, match=r"cuda.*grows from 0\.5 to 50 in 6 steps.*; lower"):
        run_quietly(tmp_path)
    assert document(only_folder(tmp_path))["status"] == "diverged"


def test_a_diverged_run_keeps_its_rows_and_says_so(world: World, tmp_path: Path) -> None:
    world.settings["cuda"] = {"loss": lambda count: np.nan}
    with pytest.raises(DivergedError, match=r"cuda.*epoch 1, batch 1 of 3; lower"):
        run_quietly(tmp_path)
    folder = only_folder(tmp_path)
    found = document(folder)
    assert found["status"] == "diverged"
    assert [entry["status"] for entry in found["engines"]] == ["ok", "diverged"]
    assert [row["status"] for row in table(folder, "epochs")] == ["ok", "ok", "diverged"]
    assert table(folder, "layers") == []


def test_an_engine_whose_turn_never_came_is_not_called_interrupted(
    world: World, tmp_path: Path
) -> None:
    world.settings["baseline"] = {"loss": lambda count: np.nan}
    with pytest.raises(DivergedError, match="baseline"):
        run_quietly(tmp_path)
    engines = document(only_folder(tmp_path))["engines"]
    assert [entry["status"] for entry in engines] == ["diverged", "not run"]


def test_a_folder_that_is_removed_during_the_run_is_told_and_not_made_anew(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Remover(FakeEngine):
        def evaluate(self, *given: Any) -> Any:
            for folder in tmp_path.iterdir():
                shutil.rmtree(folder)
            return super().evaluate(*given)

    def make(network: object, batch_size: int, **given: Any) -> FakeEngine:
        return Remover(batch_size=batch_size, time=world.time)

    monkeypatch.setattr(packages, "make_baseline", make)
    with pytest.raises(ResultsError, match="the folder is gone"):
        run(tiny(), output=tmp_path, quiet=True, say=said.append, engines=["baseline"])
    assert list(tmp_path.iterdir()) == []
    assert said == []


def test_equal_runs_leave_equal_files_of_weights(world: World, tmp_path: Path) -> None:
    name = "weights-cuda-naive.safetensors"
    files = {(run_quietly(tmp_path).folder / name).read_bytes() for _ in range(4)}
    assert len(files) == 1


INTERRUPTIONS = {
    "compile": ("cuda", "make", 1),
    "first launch": ("cuda", "step with clock", 1),
    "check": ("cuda", "check", 1),
    "training": ("cuda", "step", 4),
    "evaluation": ("cuda", "evaluate", 3),
    "warm-up": ("baseline", "step with clock", 1),
    "timing": ("cuda", "step with clock", 5),
}


@pytest.mark.parametrize("part", INTERRUPTIONS)
def test_an_interruption_at_any_part_leaves_a_valid_flagged_folder(
    world: World, tmp_path: Path, part: str
) -> None:
    name, event, count = INTERRUPTIONS[part]
    world.settings[name] = {"trouble": Trouble(event, KeyboardInterrupt(), count)}
    with pytest.raises(KeyboardInterrupt):
        run_quietly(tmp_path)
    folder = only_folder(tmp_path)
    found = document(folder)
    assert found["status"] == "interrupted"
    assert found["message"]
    for entry in found["engines"]:
        assert entry["status"] in ("ok", "interrupted", "not run")
    tables = {name: table(folder, name) for name in ("layers", "samples", "epochs", "checks")}
    if part in ("warm-up", "timing"):
        assert len(tables["epochs"]) == 4
        statuses = {row["engine"]: row["status"] for row in tables["layers"]}
        expected = {"warm-up": {"baseline": "interrupted"}}  # cuda's turn had not come
        assert statuses == expected.get(part, {"baseline": "interrupted", "cuda": "interrupted"})
    if part == "evaluation":
        assert [row["status"] for row in tables["epochs"]] == ["ok", "ok", "ok", "interrupted"]
    assert world.log[-1] == "threads as before"


def test_a_killed_run_does_not_look_finished(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write_json = RunFolder.write_json

    def spy(folder: RunFolder, name: str, content: Mapping[str, Any]) -> None:
        write_json(folder, name, content)
        if name == "run.json":
            seen.append(document(folder.path)["status"])

    monkeypatch.setattr(RunFolder, "write_json", spy)
    run_quietly(tmp_path)
    assert len(seen) > 5
    assert seen[-1] == "ok"
    assert set(seen[:-1]) == {"interrupted"}


def test_epochs_are_on_disk_as_soon_as_they_end(world: World, tmp_path: Path) -> None:
    counts = []

    class Watcher(FakeEngine):
        def evaluate(self, *given: Any) -> Any:
            counts.append(len(table(only_folder(tmp_path), "epochs")))
            return super().evaluate(*given)

    def make(network: object, batch_size: int, **given: Any) -> FakeEngine:
        return Watcher(batch_size=batch_size, time=world.time)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "make_baseline", make)
        run_quietly(tmp_path, engines=["baseline"])
    assert counts == [0, 0, 1, 1]  # two test batches an epoch


def no_space_after(count: int) -> Callable[[RunFolder, str, bytes], None]:
    left = [count]
    write = RunFolder.write_bytes

    def limited(folder: RunFolder, name: str, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ResultsError(f"{folder.path / name}: cannot be written (No space left on device)")
        write(folder, name, data)

    return limited


@pytest.mark.parametrize("count", [2, 9, 16, 40])
def test_a_full_disk_ends_the_run_and_keeps_what_was_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(RunFolder, "write_bytes", no_space_after(count))
    with pytest.raises(ResultsError, match="No space left"):
        run_quietly(tmp_path)
    found = document(only_folder(tmp_path))  # in place of the old one, for which there is room
    assert found["status"] == "failed"
    assert "No space left" in found["message"]
    assert world.log[-1] == "threads as before"


def test_a_folder_that_cannot_be_written_is_found_before_any_work(
    world: World, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(ResultsError, match="--output"):
        run_quietly(blocker / "results")
    assert not [event for event in world.log if event.endswith(("make", "step", "evaluate"))]


def test_missing_data_leave_no_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: Any, **given: Any) -> Dataset:
        raise DataError("data set mnist: missing")

    monkeypatch.setattr(running, "load_dataset", missing)
    with pytest.raises(DataError):
        run_quietly(tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_network_that_does_not_fit_the_device_is_a_failed_run(
    world: World, tmp_path: Path
) -> None:
    world.refusal = DeviceMemoryError("out of device memory: the largest batch_size that fits is 2")
    with pytest.raises(DeviceMemoryError, match="largest batch_size"):
        run_quietly(tmp_path)
    found = document(only_folder(tmp_path))
    assert found["status"] == "failed"
    assert "largest batch_size" in found["message"]
    assert [entry["engine"] for entry in found["engines"]] == ["baseline"]


def test_a_device_that_fails_in_an_epoch_leaves_the_row_of_that_epoch(
    world: World, tmp_path: Path
) -> None:
    failure = DeviceError("the device fell off the bus")
    world.settings["cuda"] = {"trouble": Trouble("step", failure, count=7)}
    with pytest.raises(DeviceError, match="fell off the bus"):
        run_quietly(tmp_path)
    folder = only_folder(tmp_path)
    rows = [row for row in table(folder, "epochs") if row["engine"] == "cuda"]
    assert [(row["epoch"], row["status"]) for row in rows] == [("1", "ok"), ("2", "failed")]
    assert [entry["status"] for entry in document(folder)["engines"]] == ["ok", "failed"]


def test_a_failing_device_is_reported_even_if_the_disk_is_full_too(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = DeviceError("the device fell off the bus")
    world.settings["cuda"] = {"trouble": Trouble("evaluate", failure)}
    write = RunFolder.write_bytes

    def write_until_then(folder: RunFolder, name: str, data: bytes) -> None:
        if "cuda evaluate" in world.log:
            raise ResultsError("No space left on device")
        write(folder, name, data)

    monkeypatch.setattr(RunFolder, "write_bytes", write_until_then)
    with pytest.raises(DeviceError, match="fell off the bus"):
        run_quietly(tmp_path)
    found = document(only_folder(tmp_path))
    assert (found["status"], found["message"]) == ("failed", "the device fell off the bus")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engines": ["cudda"]}, "--engine: 'cudda'.* did you mean 'cuda'"),
        ({"engines": ["cuda", "cuda"]}, "--engine: 'cuda' is named 2 times"),
        ({"rung": "naiv"}, "--rung: 'naiv'.*did you mean 'naive'"),
        ({"rung": "naive", "engines": ["baseline"]}, "--rung: concerns engine cuda"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_made(
    world: World, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_quietly(tmp_path / "results", **given)
    assert world.log == []
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/a.yaml", "a.yaml"),
        ("--output=/home/me/x", "--output=x"),
        ("data.folder=/data/mnist/", "data.folder=mnist"),
        ("C:\\Users\\me\\a.yaml", "a.yaml"),
        ("training.epochs=3", "training.epochs=3"),
        ("gpu:1", "gpu:1"),
    ],
)
def test_the_command_line_is_stored_without_folders(word: str, kept: str) -> None:
    assert without_folders(word) == kept


REAL = """
schema: 1
name: real
data: {set: synthetic, train_count: 65, test_count: 9}
network:
  input: [1, 9, 7]
  layers:
    - {kind: conv2d, out_channels: 2, kernel: 3}
    - {kind: tanh}
    - {kind: maxpool2d, size: 2}
    - {kind: flatten}
    - {kind: dense, out_features: 3}
training: {epochs: 2, batch_size: 16, optimizer: {kind: sgd, learning_rate: 0.1, momentum: 0.9}}
timing: {warmup_s: 0.0, warmup_count: 1, budget_s: 0.05}
"""


def test_the_real_engines_agree_and_the_stored_config_runs_the_same_again(tmp_path: Path) -> None:
    config = parse_config(REAL, "real.yaml")
    first = run_quietly(tmp_path, config, device="emulated")
    again = run_quietly(tmp_path, load_config(first.folder / "config.yaml"), device="emulated")
    assert first.document["status"] == again.document["status"] == "ok"
    assert {row.status for row in first.checks} == {"ok"}
    assert {row.stage for row in first.checks} >= {"conv2d1", "maxpool2d1", "dense1", "loss", "*"}
    agreement = first.document["engines"][1]["agreement"]
    assert agreement["predictions_equal"] == 1.0
    assert agreement["accuracy_difference"] is None  # no accuracy on synthetic data
    timed = [row for row in first.layers if row.phase != "transfer"]
    assert all(row.median_us and row.flop_count is not None for row in timed)
    assert {row.category for row in first.memory if row.engine == "cuda"} >= {"peak", "parameters"}
    rung = first.document["engines"][1]["rung"]
    for name in ("weights-baseline.safetensors", f"weights-cuda-{rung}.safetensors"):
        ours, theirs = load_file(first.folder / name), load_file(again.folder / name)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
