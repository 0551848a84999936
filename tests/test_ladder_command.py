"""``pcnn-bench ladder``: every rung in one run folder, and the tables read from it."""

from __future__ import annotations

import csv
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import baseline, cuda, emulated, make_run
from tiny_ladder import DENSE, Capture, ladder, refuse_rung, strict, write_config

import pcnn_bench.engines as packages
from pcnn_bench import ladder_report, plotting, timing
from pcnn_bench.cli import exit_code_of
from pcnn_bench.config import load_config, parse_config
from pcnn_bench.ladder_report import print_ladder, summarise_ladder
from pcnn_bench.pairing import Series, common_stages
from pcnn_bench.reporting import WIDTH, summarise
from pcnn_bench.results import load_results


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


@dataclass
class Climbed:
    folder: Path
    output: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = strict((self.folder / "run.json").read_text())
        return found


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """One ladder of all rungs."""
    parent = tmp_path_factory.mktemp("ladder")
    config = write_config(parent)
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = ladder(config, parent / "results")
    assert code == 0, err.getvalue()
    (folder,) = (parent / "results").iterdir()
    return Climbed(folder, out.getvalue())


def test_the_folder_holds_the_baseline_and_every_rung_in_order(climbed: Climbed) -> None:
    entries = climbed.document["engines"]
    assert [entry["rung"] for entry in entries] == ["", *packages.rungs()]
    assert {entry["status"] for entry in entries} == {"ok"}
    names = {path.name for path in climbed.folder.iterdir()}
    assert names >= {f"weights-cuda-{rung}.safetensors" for rung in packages.rungs()}
    for name in ("layers", "samples", "epochs", "memory", "checks"):
        assert {row["rung"] for row in table(climbed.folder, name)} == {"", *packages.rungs()}
    assert {row["status"] for row in table(climbed.folder, "checks")} == {"ok"}


def test_every_rung_is_held_against_the_baseline(climbed: Climbed) -> None:
    first, *rungs = climbed.document["engines"]
    assert first["agreement"] is None
    for entry in rungs:
        assert entry["agreement"] == {"predictions_equal": 1.0, "accuracy_difference": None}
    compared = [row["rung"] for row in table(climbed.folder, "checks") if row["quantity"] == "loss"]
    assert compared == [rung for rung in packages.rungs() for _ in range(2)]


def test_the_ceilings_are_recorded_for_the_memory_of_each_rung(climbed: Climbed) -> None:
    ceilings = climbed.document["ceilings"]
    assert ceilings["clock"] == "host"
    assert ceilings["gflop_per_s"] > 0
    assert list(ceilings["copies"]) == list(packages.rungs())
    assert all(copy["gbyte_per_s"] > 0 for copy in ceilings["copies"].values())


def test_the_rungs_that_layers_choose_are_ignored_and_their_directions_are_not(
    tmp_path: Path, capsys: Capture
) -> None:
    layers = """
    - {kind: conv2d, out_channels: 2, kernel: 3}
    - {kind: conv2d, out_channels: 2, kernel: 2, cuda: {rung: naive, backward: pull}}
    - {kind: tanh}
    - {kind: flatten}
    - {kind: dense, out_features: 3}
"""
    config = write_config(tmp_path, layers)
    assert ladder(config, tmp_path / "results", "--rungs", "fused", "--engine", "cuda") == 0
    assert capsys.readouterr().err == (
        "a ladder runs each rung as a whole: network.layers[1].cuda.rung ignored\n"
    )
    (folder,) = (tmp_path / "results").iterdir()
    choice = load_config(folder / "config.yaml").network.layers[1].cuda
    assert choice is not None
    assert (choice.rung, choice.backward) == (None, "pull")
    directions = {row["stage"]: row["direction"] for row in table(folder, "layers")}
    assert directions["conv2d2+tanh1"] == "pull"


def test_the_tables_fit_a_terminal_and_call_no_emulated_time_a_speedup(climbed: Climbed) -> None:
    *lines, last = climbed.output.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert last.startswith("figures: pcnn-bench plot ")
    text = "\n".join(lines)
    assert "tiny: emulated device, no GPU times" in text
    assert "emulated/" in text
    assert "speedup" not in text
    assert "as fast as" not in text
    for rung in packages.rungs():
        assert text.count(f"{rung} (emulated)") == 3  # times, use of the device, outcomes


def test_the_figures_are_those_of_the_tables_in_the_folder(climbed: Climbed) -> None:
    summary = summarise_ladder(climbed.folder)
    strict(json.dumps(summary, allow_nan=False))
    by_name = {one["name"]: one for one in summary["rungs"]}
    naive, fused = by_name["naive"], by_name["fused"]
    steps = {
        row["rung"]: row
        for row in table(climbed.folder, "layers")
        if (row["stage"], row["phase"]) == ("*", "step")
    }
    step_us = {rung: float(row["median_us"]) for rung, row in steps.items()}
    assert fused["step_us"] == step_us["fused"]
    assert fused["images_per_s"] == pytest.approx(8 / step_us["fused"] * 1e6)
    assert fused["ratios"]["naive"] == pytest.approx(step_us["naive"] / step_us["fused"])
    assert fused["ratios"]["previous"] == pytest.approx(step_us["tuned"] / step_us["fused"])
    assert summary["ratio"] == "emulated/baseline"
    assert fused["ratios"]["baseline"] == pytest.approx(step_us["fused"] / step_us[""])
    assert naive["ratios"]["previous"] is None
    assert naive["ratios"]["naive"] == 1.0
    flops, moved = (int(steps["fused"][name]) for name in ("flop_count", "byte_count"))
    assert fused["flop_per_byte"] == pytest.approx(flops / moved)
    ceilings = summary["ceilings"]
    assert fused["gflop_share"] * ceilings["gflop_per_s"] == pytest.approx(
        flops / step_us["fused"] / 1e3
    )
    copied = ceilings["copies"]["fused"]["gbyte_per_s"]
    assert fused["gbyte_share"] * copied == pytest.approx(moved / step_us["fused"] / 1e3)
    memory = [row for row in table(climbed.folder, "memory") if row["rung"] == "fused"]
    assert fused["memory_bytes"]["activations"] == sum(
        int(row["byte_count"]) for row in memory if row["category"] == "activations"
    )
    assert fused["memory_bytes"]["peak"] in {
        int(row["byte_count"]) for row in memory if row["tensor"] == "allocated"
    }
    assert by_name["baseline"]["gflop_share"] is by_name["baseline"]["gbyte_share"] is None


def test_coverage_counts_the_stages_that_are_the_rungs_own(climbed: Climbed) -> None:
    counts = {one["name"]: one["coverage"] for one in summarise_ladder(climbed.folder)["rungs"]}
    assert counts["baseline"] is None
    assert counts["naive"] == {"taken": 7, "possible": 7}  # a flatten is a view
    assert counts["tuned"] == {"taken": 4, "possible": 4}  # convolution, two dense, loss
    assert counts["fused"] == {"taken": 2, "possible": 2}  # convolution block, dense with tanh


def test_stages_are_matched_by_the_layers_that_they_cover(climbed: Climbed) -> None:
    stages = summarise_ladder(climbed.folder)["stages"]
    names = {("+".join(stage["layers"]), "+".join(stage["phases"])) for stage in stages}
    block = "conv2d1+tanh1+avgpool2d1"
    assert names == {
        (block, "forward"), (block, "backward"), ("flatten1", "forward"), ("flatten1", "backward"),
        ("dense1+tanh2+dense2+loss", "forward+backward"), ("conv2d1+dense1+dense2", "update"),
    }  # fmt: skip
    for stage in stages:
        expected = {"baseline", *packages.rungs()}
        assert set(stage["us"]) == ({"baseline"} if stage["layers"] == ["flatten1"] else expected)
        assert None not in stage["us"].values()
    (forward,) = [s for s in stages if s["layers"][0] == "conv2d1" and s["phases"] == ["forward"]]
    sums: dict[str, float] = {}
    for row in table(climbed.folder, "samples"):
        is_part = row["stage"] in block.split("+") and row["phase"] == "forward"
        if row["rung"] == "naive" and row["is_warmup"] == "0" and is_part:
            sums[row["repeat"]] = sums.get(row["repeat"], 0.0) + float(row["time_us"])
    times = sorted(sums.values())
    middle = (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
    assert forward["us"]["naive"] == pytest.approx(middle)


def test_a_ladder_is_drawn_with_figures_of_each_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plotting, "SUFFIXES", ("svg",))
    config = write_config(tmp_path, DENSE)
    assert ladder(config, tmp_path / "results", "--rungs", "naive,tuned") == 0
    assert exit_code_of(["plot", str(tmp_path / "results"), "--quiet"]) == 0
    (folder,) = (tmp_path / "results").iterdir()
    kinds = [
        f"layer_{kind}-cuda-{r}-emulated"
        for r in ("naive", "tuned")
        for kind in ("times", "ratios")
    ]
    names = ["end_to_end", "loss_accuracy", *kinds]
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}.svg" for name in names
    }


def test_the_table_of_a_single_rung_takes_the_last_of_a_ladder(climbed: Climbed) -> None:
    summary = summarise(climbed.folder)
    assert summary["rung"] == packages.rungs()[-1]
    assert summary["agreement"]["predictions_equal"] == 1.0


def test_some_rungs_without_the_baseline(tmp_path: Path, capsys: Capture) -> None:
    config = write_config(tmp_path, DENSE)
    argv = ("--rungs", "fused,tuned", "--engine", "cuda", "--json")
    assert ladder(config, tmp_path / "results", *argv) == 0
    summary = strict(capsys.readouterr().out)
    tuned, fused = summary["rungs"]
    assert (tuned["name"], fused["name"]) == ("tuned", "fused")  # in the ladder's order
    assert summary["ratio"] is None
    assert tuned["ratios"]["baseline"] is tuned["accuracy_difference"] is None
    rows = table(Path(summary["folder"]), "checks")
    assert {row["quantity"] for row in rows} >= {"y", "losses", "loss"}
    print_ladder(summary)
    assert "tuned (emulated)" in capsys.readouterr().out


def test_a_rung_that_launches_the_same_as_the_one_before_has_no_factor(
    tmp_path: Path, capsys: Capture
) -> None:
    config = write_config(tmp_path, DENSE)
    assert ladder(config, tmp_path / "results", "--rungs", "naive,tuned,fused") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fused")]
    assert "same plan" in rows[0]
    (folder,) = (tmp_path / "results").iterdir()
    naive, tuned, fused = (one for one in summarise_ladder(folder)["rungs"] if one["rung"])
    assert (naive["same_plan_as"], tuned["same_plan_as"], fused["same_plan_as"]) == (
        "",
        "",
        "tuned",
    )
    assert fused["ratios"]["previous"] is None
    assert fused["ratios"]["naive"] is not None
    assert fused["coverage"] == {"taken": 0, "possible": 0}


def test_rungs_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    take_turn = timing.TimingPass.round

    def noted(self: timing.TimingPass) -> None:
        turns.append(self.engine.rung)
        take_turn(self)

    monkeypatch.setattr(timing.TimingPass, "round", noted)
    config = write_config(tmp_path, DENSE)
    assert ladder(config, tmp_path / "results", "--rungs", "naive,tuned") == 0
    assert turns[:9] == ["", "naive", "tuned"] * 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rungs", "naive,tunde"], ["--rungs: 'tunde'", "did you mean 'tuned'"]),
        (["--rungs", "naive,naive"], ["--rungs: 'naive' is named 2 times"]),
        (["--rungs", ""], ["--rungs: ''"]),
        (["--engine", "baseline"], ["engine cuda does not run"]),
        (["--set", "cuda.rung=naiv"], ["cuda.rung: 'naiv'"]),
    ],
)
def test_a_wrong_command_line_is_one_line_and_nothing_runs(
    tmp_path: Path, capsys: Capture, argv: list[str], words: list[str]
) -> None:
    assert ladder(write_config(tmp_path, DENSE), tmp_path / "results", *argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "results").exists()


def test_a_rung_that_does_not_fit_ends_the_ladder_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    refuse_rung(monkeypatch, "tuned")
    assert ladder(write_config(tmp_path, DENSE), tmp_path / "results") == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "rung tuned, beside naive: out of device memory: batch_size 8"
    (folder,) = (tmp_path / "results").iterdir()
    assert strict((folder / "run.json").read_text())["status"] == "failed"


def test_a_ladder_that_diverges_is_a_finding_and_keeps_its_rows(
    tmp_path: Path, capsys: Capture
) -> None:
    argv = ("--engine", "cuda", "--json", "--set", "training.optimizer.learning_rate=1e30")
    assert ladder(write_config(tmp_path, DENSE), tmp_path / "results", *argv) == 1
    found = capsys.readouterr()
    summary = strict(found.out)
    assert summary["status"] == "diverged"
    assert [one["status"] for one in summary["rungs"]][:2] == ["diverged", "not run"]
    assert all(one["step_us"] is None for one in summary["rungs"])
    assert "engine cuda naive (emulated)" in found.err


def test_on_a_gpu_the_headline_is_a_ratio_of_totals(tmp_path: Path, capsys: Capture) -> None:
    fused = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1",), ("dense1",), ("loss",))
    rungs = (cuda(), cuda(rung="fused", base_us=5.0, images_per_s=40_000.0, stages=fused))
    summary = summarise_ladder(make_run(tmp_path, baseline(), *rungs))
    assert summary["ratio"] == "speedup"
    ratios = summary["rungs"][2]["ratios"]
    assert ratios["end_to_end"] == pytest.approx(40.0)
    assert ratios["baseline"] == pytest.approx(20.0, rel=0.02)
    assert ratios["previous"] == ratios["naive"] == pytest.approx(2.0, rel=0.02)
    print_ladder(summary)
    out = capsys.readouterr().out
    assert "training end to end: fused is 40.0x as fast as the baseline" in out
    assert "emulated" not in out


@pytest.mark.parametrize("wrong", [baseline(status="diverged"), baseline(epochs=3)])
def test_a_baseline_that_did_something_else_gives_no_ratio(tmp_path: Path, wrong: Any) -> None:
    (ours,) = [
        one for one in summarise_ladder(make_run(tmp_path, wrong, cuda()))["rungs"] if one["rung"]
    ]
    assert ours["ratios"]["baseline"] is ours["ratios"]["end_to_end"] is None
    assert ours["step_us"] is not None


def test_a_stage_that_failed_leaves_its_rung_without_a_step(tmp_path: Path) -> None:
    failed = cuda(rung="tuned", stage_status={"tanh1": "failed"})
    summary = summarise_ladder(make_run(tmp_path, cuda(), failed))
    assert [one["step_us"] is None for one in summary["rungs"]] == [False, True]
    times = {"+".join(stage["layers"]): stage["us"] for stage in summary["stages"]}
    assert times["tanh1"]["tuned"] is None


def test_a_part_that_is_missing_makes_the_whole_unknown(tmp_path: Path) -> None:
    fused = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1",), ("dense1",), ("loss",))
    run = make_run(
        tmp_path, emulated(), emulated(rung="tuned"), emulated(rung="fused", stages=fused)
    )
    lines = (run / "layers.csv").read_text().splitlines(keepends=True)
    lost = [
        line for line in lines if not line.startswith("cuda,emulated,naive,tanh1,tanh1,op,,forward")
    ]
    assert len(lost) == len(lines) - 1
    (run / "layers.csv").write_text("".join(lost))
    first = common_stages(load_results(run))[0]
    assert (first.layers, first.phases) == (("conv2d1", "tanh1", "avgpool2d1"), ("forward",))
    known = {series.rung: times is not None for series, times in first.times.items()}
    assert known == {"naive": False, "tuned": True, "fused": True}


def test_what_a_row_does_not_say_is_absent(tmp_path: Path) -> None:
    run = make_run(tmp_path, cuda(), cuda(rung="tuned"))
    with open(run / "layers.csv", newline="") as file:
        first, *rows = csv.reader(file)
    column = first.index("flop_count")
    for row in rows:
        row[column] = "4000" if row[first.index("rung")] == "tuned" else ""
    with open(run / "layers.csv", "w", newline="") as file:
        csv.writer(file).writerows([first, *rows])
    naive, tuned = summarise_ladder(run)["rungs"]
    assert naive["flop_count"] is naive["gflop_per_s"] is naive["flop_per_byte"] is None
    assert tuned["flop_count"] == 4000
    assert tuned["gflop_per_s"] == pytest.approx(4.0 / tuned["step_us"])
    assert tuned["gflop_share"] is None  # the folder holds no ceilings


def test_factors_have_three_digits() -> None:
    values = (0.01234, 1.05, 24.06, 99.96, 1234.5)
    assert [ladder_report.factor(value) for value in values] == [
        "0.0123x", "1.05x", "24.1x", "100x", "1,234x",
    ]  # fmt: skip
    assert ladder_report.factor(None) == ""


def test_one_layer_too_large_for_a_block_lowers_the_coverage_of_its_rung() -> None:
    config = parse_config(
        """
schema: 1
name: large
data: {set: synthetic}
network:
  input: [1, 40, 40]
  layers:
    - {kind: conv2d, out_channels: 2, kernel: 3}
    - {kind: tanh}
    - {kind: conv2d, out_channels: 2, kernel: 33}
    - {kind: flatten}
    - {kind: dense, out_features: 3}
training: {epochs: 1, batch_size: 8, optimizer: {kind: sgd, learning_rate: 0.1}}
""",
        "large.yaml",
    )
    plans = packages.compare_plans(
        config.build_network(),
        ("naive", "tuned"),
        batch_size=8,
        optimizer=config.training.optimizer,
        direction="push",
    )
    assert plans["naive"]["coverage"] == {"taken": 5, "possible": 5}
    assert plans["tuned"]["coverage"] == {"taken": 3, "possible": 4}
    assert Series("cuda", "emulated", "tuned").label == "cuda tuned (emulated)"
