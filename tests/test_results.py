"""Result folders: what is written is read back, and what is broken costs a warning, not the rest."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import baseline, cuda, make_run

from pcnn_bench.errors import ResultsError
from pcnn_bench.results import TABLES, EpochRow, RunFolder, load_results
from pcnn_bench.results_reading import Results

EPOCHS_HEADER = ",".join(field.name for field in fields(EpochRow))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "results", baseline(), cuda())


def epochs_of(run: Path, text: str | bytes) -> tuple[pd.DataFrame, list[str]]:
    """The epochs of a run whose epochs.csv holds ``text``, and the warnings about that file."""
    data = text if isinstance(text, bytes) else text.encode()
    (run / "epochs.csv").write_bytes(data)
    results = load_results(run)
    return results.epochs, [w for w in results.warnings if "epochs.csv" in w]


def epoch_line(epoch: int = 1, **cells: str) -> str:
    """One good line of epochs.csv, with some cells replaced."""
    good = {
        "engine": "baseline",
        "device": "cpu",
        "rung": "",
        "epoch": str(epoch),
        "train_loss": "0.5",
        "test_loss": "0.6",
        "test_accuracy": "0.9",
        "wall_s": "2.5",
        "images_per_s": "400.0",
        "status": "ok",
    }
    return ",".join((good | cells).values())


def test_every_row_written_is_read_back(run: Path) -> None:
    results = load_results(run)
    assert results.warnings == ()
    for name in TABLES:
        frame = getattr(results, name)
        lines = (run / f"{name}.csv").read_text().splitlines()
        assert list(frame.columns) == ["run", *lines[0].split(",")]
        assert len(frame) == len(lines) - 1 > 0
    assert set(results.epochs["run"]) == {run.name}
    assert results.samples["is_warmup"].dtype == bool
    assert results.layers["batch_size"].dtype == np.int64
    assert results.layers["flop_count"].isna().all()


def test_times_keep_every_digit(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    third = 1 / 3
    folder.write_table(
        "epochs", [EpochRow("baseline", "cpu", "", 1, third, None, None, third, 3.0, "ok")]
    )
    epochs = load_results(folder.path).epochs
    assert epochs["wall_s"].item() == third
    assert np.isnan(epochs["test_accuracy"].item())


def test_run_json_and_environment_are_read(run: Path) -> None:
    (found,) = load_results(run).runs
    assert found.title == "lenet5"
    assert found.status == "ok"
    assert found.text("device", "name") == "NVIDIA H200"
    assert found.environment == {"python": "3.11"}
    first, second = found.engines
    assert (first.engine, second.engine, second.device, second.rung) == (
        "baseline",
        "cuda",
        "gpu",
        "naive",
    )
    assert first.train_s == pytest.approx(21.2)
    assert first.transfer_s is None


def test_folder_of_folders_is_read_with_the_path_as_key(tmp_path: Path) -> None:
    make_run(tmp_path / "published" / "h200", baseline(), name="one")
    make_run(tmp_path, baseline(), name="two")
    results = load_results(tmp_path)
    assert [found.name for found in results.runs] == ["published/h200/one", "two"]
    one = results.only(results.runs[0])
    assert set(one.layers["run"]) == {"published/h200/one"}
    assert 0 < len(one.layers) < len(results.layers)


def test_gzipped_tables_are_read_whatever_their_name(run: Path) -> None:
    plain = load_results(run)
    for name, ending in (("samples", ".csv.gz"), ("layers", ".csv")):
        data = (run / f"{name}.csv").read_bytes()
        (run / f"{name}.csv").unlink()
        (run / f"{name}{ending}").write_bytes(gzip.compress(data))
    zipped = load_results(run)
    assert zipped.warnings == ()
    pd.testing.assert_frame_equal(zipped.samples, plain.samples)
    pd.testing.assert_frame_equal(zipped.layers, plain.layers)


def test_plain_table_wins_over_a_zipped_one_beside_it(run: Path) -> None:
    (run / "samples.csv.gz").write_bytes(b"rubbish")
    results = load_results(run)
    assert len(results.samples) > 0
    assert any("samples.csv.gz" in w and "left out" in w for w in results.warnings)


def test_damaged_gzip_costs_that_table_alone(run: Path) -> None:
    data = gzip.compress((run / "samples.csv").read_bytes())
    (run / "samples.csv").unlink()
    (run / "samples.csv.gz").write_bytes(data[: len(data) // 2])
    results = load_results(run)
    assert len(results.samples) == 0
    assert len(results.layers) > 0
    assert any("samples.csv.gz: is a damaged gzip file" in w for w in results.warnings)


@pytest.mark.parametrize("text", ["", "\n", "\r\n\r\n", "   \n", EPOCHS_HEADER + "\n"])
def test_empty_or_header_only_file_is_skipped_by_name(run: Path, text: str) -> None:
    epochs, warnings = epochs_of(run, text)
    assert len(epochs) == 0
    assert list(epochs.columns) == ["run", *EPOCHS_HEADER.split(",")]
    (warning,) = warnings
    assert str(run / "epochs.csv") in warning
    assert "skipped" in warning


def test_nothing_usable_is_an_error_that_names_the_folder_and_a_reason(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run").path
    for name in TABLES:
        (run / f"{name}.csv").write_text("")
    with pytest.raises(
        ResultsError, match=r"nothing usable in 1 run folder.*layers.csv: is empty"
    ) as caught:
        load_results(tmp_path)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_one_broken_run_among_good_ones_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path, baseline(), name="good")
    bad = RunFolder.create(tmp_path, "bad").path
    (bad / "layers.csv").write_text("engine\n")
    results = load_results(tmp_path)
    assert [found.name for found in results.runs] == ["good"]
    assert any("bad: nothing usable" in w for w in results.warnings)


def test_missing_empty_and_wrong_paths_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no such folder; `pcnn-bench run"):
        load_results(tmp_path / "absent")
    with pytest.raises(ResultsError, match="holds no run folder"):
        load_results(tmp_path)
    (tmp_path / "layers.csv").write_text("x")
    with pytest.raises(ResultsError, match="is a file; name the run folder"):
        load_results(tmp_path / "layers.csv")


def test_appended_header_is_no_row(run: Path) -> None:
    text = f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{EPOCHS_HEADER}\n{epoch_line(2)}\n"
    epochs, warnings = epochs_of(run, text)
    assert epochs["epoch"].tolist() == [1, 2]
    assert epochs["wall_s"].dtype == np.float64
    assert any("line 3: the header again" in w for w in warnings)


def test_different_header_below_ends_the_reading(run: Path) -> None:
    other = EPOCHS_HEADER.replace("wall_s", "wall_seconds")
    text = f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{other}\n{epoch_line(2)}\n"
    epochs, warnings = epochs_of(run, text)
    assert epochs["epoch"].tolist() == [1]
    assert any("line 3: a different header begins" in w for w in warnings)


def test_rows_written_twice_count_once(run: Path) -> None:
    text = f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{epoch_line(1, wall_s='3.0')}\n"
    epochs, warnings = epochs_of(run, text)
    assert epochs["wall_s"].tolist() == [3.0]
    assert any("1 rows are there twice" in w for w in warnings)


def test_missing_column_is_named_and_the_file_skipped(run: Path) -> None:
    text = EPOCHS_HEADER.replace("wall_s", "seconds") + "\n" + epoch_line() + "\n"
    epochs, warnings = epochs_of(run, text)
    assert len(epochs) == 0
    assert any("line 1: no column wall_s; skipped" in w for w in warnings)


def test_column_that_we_do_not_know_is_passed_over(run: Path) -> None:
    epochs, warnings = epochs_of(run, f"extra,{EPOCHS_HEADER}\n7,{epoch_line()}\n")
    assert epochs["wall_s"].tolist() == [2.5]
    assert "extra" not in epochs.columns
    assert warnings == []


def test_column_named_twice_is_refused(run: Path) -> None:
    epochs, warnings = epochs_of(run, f"{EPOCHS_HEADER},wall_s\n{epoch_line()},9\n")
    assert len(epochs) == 0
    assert any("column wall_s is there twice" in w for w in warnings)


def test_semicolons_are_named_as_the_fault(run: Path) -> None:
    text = f"{EPOCHS_HEADER}\n{epoch_line()}\n".replace(",", ";")
    _, warnings = epochs_of(run, text)
    assert any("save it with commas" in w for w in warnings)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (epoch_line(2) + ",9", "number of cells is not that of the header (11)"),
        ("baseline,cpu", "number of cells is not that of the header (2)"),
        (epoch_line(2, device='"cpu'), "a quote is not closed"),
        (epoch_line(2, device="c\0pu"), "NUL bytes"),
        (epoch_line(2, wall_s="0.0"), "column wall_s: not a positive, finite number ('0.0')"),
        (epoch_line(2, wall_s="-1"), "column wall_s: not a positive, finite number"),
        (epoch_line(2, wall_s="nan"), "column wall_s: not a positive, finite number"),
        (epoch_line(2, wall_s="inf"), "column wall_s: not a positive, finite number"),
        (epoch_line(2, wall_s="1e999"), "column wall_s: not a positive, finite number"),
        (epoch_line(2, wall_s=""), "column wall_s: not a number"),
        (epoch_line(2, wall_s="fast"), "column wall_s: not a number"),
        (epoch_line(2, wall_s="1_0"), "column wall_s: not a number"),
        (epoch_line(2, wall_s='"2,5"'), "write a decimal point"),
        (epoch_line(2, wall_s="2,5"), "number of cells is not that of the header (11)"),
        (epoch_line(2).replace("baseline,cpu,,2", "baseline,cpu,,2.5"), "not a whole number"),
        (epoch_line(2).replace("baseline,cpu,,2", "baseline,cpu,,9" + "9" * 20), "whole number"),
    ],
)
def test_broken_line_costs_itself_alone(run: Path, bad: str, message: str) -> None:
    text = f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{bad}\n{epoch_line(3)}\n"
    epochs, warnings = epochs_of(run, text)
    assert epochs["epoch"].tolist() == [1, 3]
    (warning,) = warnings
    assert "line 3: " in warning
    assert message in warning
    assert "left out" in warning


def test_many_broken_lines_are_counted_not_listed(run: Path) -> None:
    bad = "\n".join(epoch_line(epoch, wall_s="0") for epoch in range(2, 102))
    _, warnings = epochs_of(run, f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{bad}\n")
    assert len(warnings) == 4
    assert "97 more lines" in warnings[-1]


@pytest.mark.parametrize("cut", range(1, 60))
def test_file_cut_anywhere_in_its_last_line_loses_that_line(run: Path, cut: int) -> None:
    last = epoch_line(2, wall_s="12.75") + "\n"
    text = f"{EPOCHS_HEADER}\n{epoch_line(1)}\n{last}"
    epochs, warnings = epochs_of(run, text[: -min(cut, len(last) - 1)])
    assert epochs["epoch"].tolist() == [1]
    assert any("line 3: the last line has no end" in w for w in warnings)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "NaN"])
def test_loss_that_is_not_finite_is_absent_with_a_warning(run: Path, value: str) -> None:
    line = epoch_line(train_loss=value, status="diverged")
    epochs, warnings = epochs_of(run, f"{EPOCHS_HEADER}\n{line}\n")
    assert np.isnan(epochs["train_loss"].item())
    assert epochs["status"].item() == "diverged"
    assert any("line 2: column train_loss: not finite" in w for w in warnings)


@pytest.mark.parametrize("name", ["NA", "null", "nan", "none", "N/A", "NULL", "", "1.0", "é漢"])
def test_text_stays_text(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, baseline(stages=((name,),)), cuda(rung=name))
    results = load_results(run)
    stages = results.layers[results.layers["engine"] == "baseline"]["stage"]
    assert stages.tolist() == ["*", name, name]
    assert {type(stage) for stage in results.layers["stage"]} == {str}
    assert name in set(results.epochs["rung"])


def test_name_with_comma_and_quote_survives(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(stages=(('a,"b"',),)))
    results = load_results(run)
    assert 'a,"b"' in set(results.samples["stage"])
    assert results.warnings == ()


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_other_line_ends_and_a_byte_order_mark_are_read(run: Path, ending: str, mark: str) -> None:
    text = f"{mark}{EPOCHS_HEADER}\n{epoch_line(1)}\n{epoch_line(2)}\n".replace("\n", ending)
    epochs, warnings = epochs_of(run, text.encode())
    assert epochs["epoch"].tolist() == [1, 2]
    assert set(epochs["status"]) == {"ok"}
    assert warnings == []


def test_table_saved_by_pandas_is_read_again(run: Path) -> None:
    before = load_results(run)
    for name in ("samples", "memory"):
        getattr(before, name).drop(columns="run").to_csv(run / f"{name}.csv", index=False)
    after = load_results(run)
    assert after.warnings == ()
    pd.testing.assert_frame_equal(after.samples, before.samples)
    pd.testing.assert_frame_equal(after.memory, before.memory)


def test_text_in_another_encoding_is_skipped_by_name(run: Path) -> None:
    _, warnings = epochs_of(run, EPOCHS_HEADER.encode("utf-16"))
    assert any("is not UTF-8 text; skipped" in w for w in warnings)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_folder, "is not a file"),
        (make_pipe, "is not a file"),
        (make_loop, "cannot be read"),
        (make_dangling, "is a link to nothing"),
    ],
)
def test_what_is_named_like_a_table_but_is_none_is_skipped(
    run: Path, make: Any, message: str
) -> None:
    (run / "epochs.csv").unlink()
    make(run / "epochs.csv")
    results = load_results(run)
    assert len(results.epochs) == 0
    assert len(results.layers) > 0
    assert any("epochs.csv: " in w and message in w for w in results.warnings)


def test_link_to_a_parent_does_not_go_round(tmp_path: Path, run: Path) -> None:
    (tmp_path / "results" / "again").symlink_to(tmp_path, target_is_directory=True)
    (run / "self").symlink_to(run, target_is_directory=True)
    results = load_results(tmp_path)
    assert len(results.runs) == 1
    assert len(results.epochs) == 10


def test_folder_named_like_a_table_does_not_hide_the_runs_below(tmp_path: Path) -> None:
    make_run(tmp_path / "layers.csv", baseline(), name="run")
    assert [found.name for found in load_results(tmp_path).runs] == ["layers.csv/run"]


def test_unreadable_file_is_skipped_by_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:  # chmod would not stop root, whom containers run as
        if path.name == "epochs.csv":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    results = load_results(run)
    assert len(results.layers) > 0
    assert any("epochs.csv: cannot be read (Permission denied)" in w for w in results.warnings)


def with_run_json(run: Path, text: str) -> Results:
    (run / "run.json").write_text(text)
    return load_results(run)


@pytest.mark.parametrize("schema", [2, 0, "1", None, 1.5])
def test_run_of_another_schema_is_left_out(tmp_path: Path, run: Path, schema: object) -> None:
    make_run(tmp_path / "results", baseline(), name="good")
    (run / "run.json").write_text(json.dumps({"schema": schema, "engines": []}))
    results = load_results(tmp_path)
    assert [found.name for found in results.runs] == ["results/good"]
    assert any("this version reads schema 1" in w for w in results.warnings)
    with pytest.raises(ResultsError, match="reads schema 1"):
        load_results(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"schema": 1, "x": NaN}', "\0", '"' * 3, "[" * 100_000]
)
def test_broken_run_json_leaves_the_tables(run: Path, text: str) -> None:
    results = with_run_json(run, text)
    assert results.runs[0].engines == ()
    assert results.runs[0].title == run.name
    assert len(results.layers) > 0
    assert any("run.json" in w and "unknown" in w for w in results.warnings)


def test_missing_run_json_leaves_the_tables(run: Path) -> None:
    (run / "run.json").unlink()
    results = load_results(run)
    assert len(results.layers) > 0
    assert any("run.json: missing" in w for w in results.warnings)


def test_impossible_numbers_in_run_json_are_absent_with_a_warning(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    info["engines"][0]["totals"] = {
        "train_s": 0,
        "eval_s": -1,
        "compile_s": "1",
        "transfer_s": True,
    }
    info["engines"][0]["train_images"] = 10**400
    info["engines"][1] = {"engine": "cuda"}
    results = with_run_json(run, json.dumps(info))
    (engine,) = results.runs[0].engines
    assert (engine.train_s, engine.eval_s, engine.compile_s, engine.transfer_s) == (None,) * 4
    assert engine.train_images is None
    assert sum("engines[0]" in w for w in results.warnings) == 5
    assert max(map(len, results.warnings)) < 300
    assert any("engines[1]: one of" in w for w in results.warnings)


@pytest.mark.parametrize("engines", [None, {}, "x", [1], [{"engine": 3}]])
def test_engines_of_another_shape_are_left_out(run: Path, engines: object) -> None:
    results = with_run_json(run, json.dumps({"schema": 1, "engines": engines}))
    assert results.runs[0].engines == ()


def test_a_current_folder_that_was_removed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ResultsError, match=r"^\.: (no such folder|cannot be read)"):
        load_results(".")


def test_check_that_found_nan_is_not_lost(run: Path) -> None:
    header, row = (run / "checks.csv").read_text().splitlines()[:2]
    bad = row.replace("1e-07", "nan").replace("ok", "mismatch")
    (run / "checks.csv").write_text(f"{header}\n{bad}\n")
    checks = load_results(run).checks
    assert checks["status"].tolist() == ["mismatch"]
    assert checks["max_abs_error"].isna().all()


def test_writer_refuses_nan_in_json_and_keeps_the_old_file(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_json("run.json", {"train_s": float("nan")})
    assert (folder.path / "run.json").read_text() == "{}\n"


def test_second_run_of_a_name_gets_a_number(tmp_path: Path) -> None:
    paths = [RunFolder.create(tmp_path, "run").path.name for _ in range(3)]
    assert paths == ["run", "run-2", "run-3"]


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="choose a folder with --output"):
        RunFolder.create(tmp_path / "file", "run")


def test_writing_needs_no_pandas() -> None:
    code = "import sys, pcnn_bench.results; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
