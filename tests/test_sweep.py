"""``--sweep``: a ladder for each value of a config key, what is refused, and what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_ladder import DENSE, Capture, ladder, refuse_rung, strict, write_config

from pcnn_bench.config import Config, load_config
from pcnn_bench.errors import ConfigError, FindingError
from pcnn_bench.job import RunResult
from pcnn_bench.ladder_report import _other_batch, summarise_ladder
from pcnn_bench.sweep import parse_sweep, sweep


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sweep", "batch_size"], ["KEY=V1,V2"]),
        (["--sweep", "batch_size=4,,8"], ["KEY=V1,V2"]),
        (["--sweep", "batch_siez=4"], ["--sweep: 'batch_siez'", "did you mean 'batch_size'"]),
        (["--sweep", "kind=sgd"], ["network.layers[0].kind or network.layers[1].kind"]),
        (["--sweep", "batch_size=4,4"], ["4 is named 2 times"]),
        (["--sweep", "learning_rate=0.1,1e-1"], ["--sweep: 1e-1 is 0.1 again"]),
        (["--sweep", "cuda.rung=naive,tuned"], ["a ladder runs every rung", "--rungs"]),
        (["--sweep", "batch_size=4,0"], ["training.batch_size=0"]),
        (["--sweep", "training.batch=4"], ["training.batch"]),
    ],
)
def test_a_wrong_sweep_is_one_line_and_nothing_runs(
    tmp_path: Path, capsys: Capture, argv: list[str], words: list[str]
) -> None:
    assert ladder(write_config(tmp_path, DENSE), tmp_path / "results", *argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "results").exists()


def test_a_sweep_goes_on_after_a_value_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    refuse_rung(monkeypatch, "tuned", above=10)
    config = write_config(tmp_path, DENSE)
    argv = ("--rungs", "naive,tuned", "--sweep", "batch_size=1,70000,8")
    assert ladder(config, tmp_path / "results", *argv) == 3
    found = capsys.readouterr()
    assert found.err.splitlines()[-1] == (
        "sweep: 1 of 3 values failed, worst training.batch_size=70000: rung tuned, beside naive: "
        "out of device memory: batch_size 37"
    )
    lines = found.out.splitlines()
    assert lines[0] == "tiny: emulated device, no GPU times, by training.batch_size"
    heads = [line.split("  ")[0] for line in lines if line.endswith("tuned")]
    assert heads == ["step us (emulated)", "images/s", "emulated/baseline"]
    assert sum(line.startswith("70000 failed") for line in lines) == len(heads)
    folders = sorted((tmp_path / "results").iterdir())
    assert len(folders) == 3
    sizes = {load_config(folder / "config.yaml").training.batch_size for folder in folders}
    assert sizes == {1, 8, 70000}


def test_a_sweep_as_json_holds_the_figures_of_every_value(tmp_path: Path, capsys: Capture) -> None:
    config = write_config(tmp_path, DENSE)
    argv = ("--rungs", "naive", "--sweep", "learning_rate=1e-2,1e30", "--json")
    assert ladder(config, tmp_path / "results", *argv) == 1
    summary = strict(capsys.readouterr().out)
    assert summary["key"] == "training.optimizer.learning_rate"
    good, bad = summary["values"]
    assert (good["value"], good["status"], good["exit_code"]) == ("1e-2", "ok", 0)
    assert good["ladder"] == summarise_ladder(Path(good["folder"]))
    assert (bad["value"], bad["status"], bad["exit_code"]) == ("1e30", "diverged", 1)
    assert "learning_rate" in bad["message"]
    assert Path(bad["folder"]).is_dir()


def test_a_sweep_that_is_interrupted_shows_what_is_done(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    begun: list[str] = []

    def run(config: Config) -> RunResult:
        if len(begun) > 1:
            raise KeyboardInterrupt
        raise FindingError("diverged")

    summary, ending = sweep(
        "batch_size=4,8,16", lambda more: load_config(file, more), run, begun.append
    )
    assert isinstance(ending, KeyboardInterrupt)
    assert [each["value"] for each in summary["values"]] == ["4"]
    assert begun == ["training.batch_size=4", "training.batch_size=8"]


def test_a_batch_that_the_data_set_cannot_fill_is_not_said_to_have_run() -> None:
    outcome = {"value": "1000", "ladder": {"rungs": [{"batch_size": None}, {"batch_size": 64}]}}
    assert _other_batch("training.batch_size", outcome) == " (ran 64)"
    assert _other_batch("training.batch_size", {**outcome, "value": "64"}) == ""
    assert _other_batch("training.seed", outcome) == ""
    assert _other_batch("training.batch_size", {"value": "8", "ladder": None}) == ""


def test_the_values_of_a_sweep_may_hold_commas(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path))
    key, values = parse_sweep("kernel=3, [2, 3],5", config)
    assert (key, values) == ("network.layers[0].kernel", ["3", "[2, 3]", "5"])
    assert parse_sweep("name=a,b", config) == ("name", ["a", "b"])
    with pytest.raises(ConfigError, match="out_features"):
        parse_sweep("out_features=3,4", config)  # two dense layers have it
