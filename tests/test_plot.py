"""``plot``: files for every run, notes for what is missing, and no display, style or state needed."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from synthetic_runs import LAYERS, baseline, cuda, emulated, make_run

from pcnn_bench.errors import ResultsError
from pcnn_bench.figures import loss_accuracy
from pcnn_bench.plotting import plot
from pcnn_bench.results import RunFolder
from pcnn_bench.results_reading import Results

# isort: split
import matplotlib

ROOT = Path(__file__).resolve().parent.parent
FEW = (("conv2d1",), ("loss",))
"""Stages enough for every figure; more would only take longer to draw."""
FIGURES = ("end_to_end", "layer_speedups", "layer_times", "loss_accuracy")


def names(paths: list[Path]) -> list[str]:
    return sorted(path.name for path in paths)


def small_run(parent: Path) -> Path:
    return make_run(parent, baseline(stages=FEW), cuda(stages=FEW))


def test_every_figure_of_a_run_is_written_as_png_and_svg(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    written, notes, _ = plot(run)
    assert notes == []
    assert names(written) == sorted(f"{name}.{end}" for name in FIGURES for end in ("png", "svg"))
    assert sorted((run / "figures").iterdir()) == sorted(written)
    for path in written:
        data = path.read_bytes()
        if path.suffix == ".png":
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            assert int.from_bytes(data[16:20], "big") == 1400  # two px for each of 700
        else:
            assert ElementTree.fromstring(data).tag.endswith("svg")
            assert b"<dc:date>" not in data


def test_same_rows_give_the_same_files(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    first = {path.name: path.read_bytes() for path in plot(run).files}
    again = {path.name: path.read_bytes() for path in plot(run, output=tmp_path / "again").files}
    assert first == again


def test_every_run_of_a_folder_is_drawn_into_itself(tmp_path: Path) -> None:
    one = baseline(stages=FEW, epochs=1)
    published = make_run(tmp_path / "published" / "h200", one, name="one")
    other = make_run(tmp_path, one, name="two")
    written, notes, _ = plot(tmp_path)
    assert {path.parent for path in written} == {published / "figures", other / "figures"}
    assert any(note.startswith("published/h200/one: layer_speedups: skipped") for note in notes)
    assert any(note.startswith("two: layer_speedups: skipped") for note in notes)


def test_output_folder_is_used_and_the_runs_are_left_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "results" / "h200", baseline(stages=FEW, epochs=1), name="one")
    make_run(tmp_path / "results", baseline(stages=FEW, epochs=1), name="two")
    output = tmp_path / "output"
    written, *_ = plot(tmp_path / "results", output=output)
    assert {path.parent for path in written} == {output / "h200" / "one", output / "two"}
    assert not list((tmp_path / "results").rglob("figures"))


def test_a_file_in_the_place_of_the_output_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match=r"^--output: \S+/file is a file; name a folder$"):
        plot(small_run(tmp_path), output=tmp_path / "file")


def test_emulated_ratios_are_not_filed_as_speedups(tmp_path: Path) -> None:
    written, notes, _ = plot(make_run(tmp_path, baseline(stages=FEW), emulated(stages=FEW)))
    assert notes == []
    assert "layer_ratios.png" in names(written)
    assert not [path for path in written if "speedup" in path.name]
    for path in written:
        if path.suffix == ".svg":
            assert "speedup" not in path.read_text().lower()
            assert "emulated" in path.read_text()


def test_each_rung_has_its_own_figures(tmp_path: Path) -> None:
    rungs = (cuda(stages=FEW), cuda(stages=FEW, rung="fused/2"))
    run = make_run(tmp_path, baseline(stages=FEW), *rungs)
    written, *_ = plot(run)
    assert {"layer_times-cuda-naive-gpu.png", "layer_times-cuda-fused_2-gpu.png"} <= {
        path.name for path in written
    }


def test_missing_pair_is_noted_with_its_reason(tmp_path: Path) -> None:
    failed = cuda(stages=FEW, stage_status={"loss": "failed"})
    run = make_run(tmp_path, baseline(stages=FEW), failed)
    written, notes, _ = plot(run)
    assert len(written) == 8
    (note,) = notes
    assert note == (
        f"{run.name}: cuda naive: no ratio for loss forward, loss backward: cuda loss: failed"
    )


def test_diverged_run_keeps_its_curves_and_gets_no_ratio(tmp_path: Path) -> None:
    diverged = cuda(stages=FEW, status="diverged", epochs=2)
    run = make_run(tmp_path, baseline(stages=FEW), diverged, info={"status": "diverged"})
    written, notes, _ = plot(run)
    assert "loss_accuracy.png" in names(written)
    assert "layer_speedups.png" not in names(written)
    assert any("end_to_end: n/a: cuda naive: diverged" in note for note in notes)


def test_figure_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(results: Results) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(loss_accuracy, "draw", fail)
    run = small_run(tmp_path)
    written, notes, failures = plot(run)
    assert failures == notes
    assert names(written) == sorted(
        f"{name}.{end}" for name in FIGURES if name != "loss_accuracy" for end in ("png", "svg")
    )
    assert notes == [f"{run.name}: loss_accuracy: failed: ZeroDivisionError: planted"]
    assert (run / "epochs.csv").stat().st_size > 0


def test_a_disk_that_fills_up_is_a_failure_and_missing_data_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunFolder.write_bytes

    def limited(folder: RunFolder, name: str, data: bytes) -> None:
        if name.startswith("loss_accuracy"):
            raise ResultsError(f"{name}: cannot be written (No space left on device)")
        write(folder, name, data)

    monkeypatch.setattr(RunFolder, "write_bytes", limited)
    run = make_run(tmp_path, baseline(stages=FEW))  # alone, so that there are no ratios to draw
    written, notes, failures = plot(run)
    assert names(written) == [
        f"{name}.{end}" for name in ("end_to_end", "layer_times") for end in ("png", "svg")
    ]
    (failure,) = failures
    assert "No space left" in failure
    assert any("layer_speedups: skipped" in note for note in notes)


def test_broken_table_costs_its_own_figures(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    (run / "layers.csv").write_text("")
    written, notes, _ = plot(run)
    assert names(written) == [
        f"{name}.{end}" for name in ("end_to_end", "loss_accuracy") for end in ("png", "svg")
    ]
    assert any("layers.csv: is empty; skipped" in note for note in notes)
    assert any("layer_times: skipped" in note for note in notes)


def test_nothing_to_draw_is_an_error_of_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(epochs=0))
    (run / "layers.csv").write_text("")
    with pytest.raises(ResultsError, match="no figure could be made") as caught:
        plot(run)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(epochs=1))
    (run / "figures").write_text("in the way")
    with pytest.raises(
        ResultsError,
        match=r"no figure could be made.*figures: is a file; name a folder with --output$",
    ) as caught:
        plot(run)
    assert "\n" not in str(caught.value)


def test_characters_without_a_glyph_are_noted_not_warned_of(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    stages = (("漢字",), ("ünï",))
    run = make_run(tmp_path, baseline(stages=stages), cuda(stages=stages))
    written, notes, _ = plot(run)
    assert len(written) == 8
    assert any("missing from font" in note for note in notes)
    assert len(recwarn) == 0


def test_callers_matplotlib_settings_neither_matter_nor_change(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    expected = {path.name: path.read_bytes() for path in plot(run).files}
    with matplotlib.rc_context({"font.size": 30.0, "svg.hashsalt": "x", "lines.marker": "*"}):
        found = {path.name: path.read_bytes() for path in plot(run).files}
        assert matplotlib.rcParams["font.size"] == 30.0
        assert matplotlib.rcParams["svg.hashsalt"] == "x"
    assert found == expected


def drawn_elsewhere(run: Path, **environ: str) -> tuple[str, str]:
    """stdout and stderr of another process that draws."""
    code = (
        "import sys; from pathlib import Path; from pcnn_bench.plotting import plot;"
        f"files = plot(Path({str(run)!r})).files;"
        "print(len(files), 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "DISPLAY": ":99", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("backend", ["garbage", "module://nope"])
def test_no_backend_is_asked_for(tmp_path: Path, backend: str) -> None:
    run = make_run(tmp_path, baseline(epochs=1, stages=((LAYERS[0],),)))
    assert drawn_elsewhere(run, MPLBACKEND=backend) == ("6 False", "")


def test_a_home_that_cannot_be_written_is_not_spoken_of(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = make_run(tmp_path, baseline(epochs=1, stages=((LAYERS[0],),)))
    assert drawn_elsewhere(run, MPLCONFIGDIR=str(tmp_path / "file")) == ("6 False", "")


def test_a_run_without_a_device_was_on_the_processor(tmp_path: Path) -> None:
    for device, words in ((None, "device: cpu"), ({"kind": "gpu", "name": "H200"}, "H200")):
        info = {"device": device}
        run = make_run(tmp_path, baseline(epochs=1, stages=FEW), info=info, name=words[-4:].strip())
        plot(run)
        assert words in (run / "figures" / "end_to_end.svg").read_text()
