"""The command line: what each command prints, its exit codes, and that every error is one line."""

import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from time import perf_counter
from typing import IO, Any

import pytest
from synthetic_runs import baseline, cuda, emulated, make_run

from pcnn_bench import __version__, doctor, plotting, reporting, running
from pcnn_bench.cli import cli, exit_code_of
from pcnn_bench.errors import (
    ConfigError,
    DataError,
    DeviceMemoryError,
    FindingError,
    ResultsError,
)
from pcnn_bench.progress import showing
from pcnn_bench.results import CheckRow, EpochRow
from pcnn_bench.streams import Lenient
from pcnn_bench.verify import Verification

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
FOLDERS = (ROOT, ROOT / "baseline", ROOT / "cuda")
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
Capture = pytest.CaptureFixture[str]


def call(*argv: str) -> int:
    return exit_code_of(argv)


def one_line(text: str) -> str:
    """The only line of what went to stderr."""
    assert text.count("\n") == 1
    assert "Traceback" not in text
    return text


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **given: Any) -> Any:
        raise error

    return fail


def python(*argv: str, stdout: int | IO[str] = subprocess.PIPE) -> CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENVIRON, check=False,
    )  # fmt: skip


def test_help_lists_the_commands_that_are_built(capsys: Capture) -> None:
    assert call("--help") == 0
    out = capsys.readouterr().out
    for name in cli.commands:
        assert f"  {name} " in out
    assert set(cli.commands) >= {"run", "plot", "verify", "show", "doctor", "data"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pcnn_bench.cli import exit_code_of; exit_code_of(['--help']);"
        "heavy = {'numpy', 'pandas', 'matplotlib', 'scipy', 'pydantic', 'rich', 'pycuda'};"
        "sys.exit(', '.join(heavy & set(sys.modules)))"
    )
    assert python("-c", code).stderr.strip() == ""


def test_help_is_there_at_once() -> None:
    start = perf_counter()
    assert python("-m", "pcnn_bench", "--help").returncode == 0
    assert perf_counter() - start < 3  # 0.1 s on an idle machine


def test_the_module_runs_like_the_command() -> None:
    found = python("-m", "pcnn_bench", "--version")
    assert (found.returncode, __version__ in found.stdout) == (0, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rnu"], ["'rnu'", "did you mean 'run'"]),
        (["run"], ["CONFIG", "pcnn-bench run --help"]),
        (["run", QUICKSTART, "--devise", "gpu"], ["--devise", "--device"]),
        (["run", QUICKSTART, "--device", "emulatd"], ["'emulatd'", "'emulated'"]),
        (["run", QUICKSTART, "--device", "gpu:x"], ["'gpu:x'", "did you mean 'gpu'"]),
        (["run", QUICKSTART, "--engine", "basline"], ["'basline'", "'baseline'"]),
        (["run", QUICKSTART, "--rung", "naiv"], ["'naiv'", "'naive'"]),
        (["run", QUICKSTART, "--set", "training.epoch=3"], ["epoch", "epochs"]),
        (["run", "missing.yaml"], ["missing.yaml"]),
        (["verify", QUICKSTART, "--rung", "naiv"], ["'naiv'", "'naive'"]),
        (["show", QUICKSTART, "--rung", "naiv"], ["--rung: 'naiv'", "'naive'"]),
        *(
            ([command, QUICKSTART, "--set", f"{key}=naiv"], [f"{key}: 'naiv'", "'naive'"])
            for command in ("run", "verify", "show")
            for key in ("cuda.rung", "network.layers[3].cuda.rung")
        ),
        (["data", "lst"], ["'lst'", "'list'"]),
        (["data", "fetch", "mnits"], ["mnits", "mnist"]),
        (["data", "where", "mnits"], ["mnits", "mnist"]),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_suggestion(
    argv: list[str], words: list[str], capsys: Capture, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*argv) == 2
    text = one_line(capsys.readouterr().err)
    for word in words:
        assert word in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FindingError("cuda differs"), 1, "cuda differs"),
        (ConfigError("a.yaml:1:1: wrong"), 2, "a.yaml:1:1: wrong"),
        (DataError("mnist: missing"), 3, "mnist: missing"),
        (DeviceMemoryError("out of device memory"), 3, "out of device memory"),
        (ResultsError("cannot be written"), 3, "cannot be written"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("Unable to allocate 9 TiB"), 3, "9 TiB; lower training.batch_size"),
        (OSError(errno.ENOSPC, "No space left on device", "a.csv"), 3, "a.csv: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 3, "a: Permission denied; "),
    ],
)
@pytest.mark.parametrize("command", ["run", "plot"])
def test_every_error_has_its_exit_code_and_one_line(
    command: str,
    error: BaseException,
    code: int,
    words: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "run", raising(error))
    monkeypatch.setattr(plotting, "plot", raising(error))
    assert call(command, QUICKSTART) == code
    assert words in one_line(capsys.readouterr().err)


def test_a_bug_is_not_dressed_up_as_an_error_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ZeroDivisionError(), OSError(errno.EBADF, "Bad file descriptor")):
        monkeypatch.setattr(running, "run", raising(error))
        with pytest.raises(type(error)):
            call("run", QUICKSTART)


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        found = python("-m", "pcnn_bench", "data", "list", stdout=closed)
    assert (found.returncode, found.stderr) == (0, "")


BASELINE_RUN = [
    "run", QUICKSTART, "--engine", "baseline", "--set", "training.epochs=1",
    "--set", "data.set=synthetic", "--set", "data.train_count=64", "--set", "data.test_count=8",
    "--set", "timing.budget_s=0.01",
]  # fmt: skip


def piped(argv: list[str], redirection: str) -> CompletedProcess[str]:
    """The command in a shell, with its streams as ``redirection`` has them."""
    command = shlex.join([sys.executable, "-m", "pcnn_bench", *argv])
    return subprocess.run(
        ["bash", "-c", f"{command} {redirection}"],
        capture_output=True, text=True, env=ENVIRON, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "2> >(true)"])
@pytest.mark.parametrize(("argv", "code"), [(["show", QUICKSTART], 0), (["show", "none.yaml"], 2)])
def test_the_exit_code_is_that_of_the_work_whatever_became_of_the_streams(
    redirection: str, argv: list[str], code: int
) -> None:
    found = piped(argv, redirection)
    assert found.returncode == code
    assert "Traceback" not in found.stderr
    assert ("conv2d1" in found.stdout) is (code == 0 and not redirection.startswith(">&-"))


@pytest.mark.parametrize("argv", [["show", QUICKSTART], ["data", "list"], ["show", "none.yaml"]])
def test_a_pipe_that_nobody_reads_changes_no_exit_code(argv: list[str]) -> None:
    found = piped(argv, "| true; exit ${PIPESTATUS[0]}")
    assert found.returncode == (2 if "none.yaml" in argv else 0)
    assert found.stderr.count("\n") == found.returncode // 2


def test_a_run_ends_well_though_nobody_reads_its_progress(tmp_path: Path) -> None:
    argv = [*BASELINE_RUN, "--output", str(tmp_path)]
    found = piped(argv, "2> >(true)")
    assert found.returncode == 0
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "run.json").read_text())["status"] == "ok"
    assert str(folder) in found.stdout


def test_a_terminal_of_ascii_is_shown_what_it_can_show(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    text = Path(QUICKSTART).read_text(encoding="utf-8")
    config.write_text(text.replace("kind: conv2d,", "kind: conv2d, name: 漢字,", 1), "utf-8")
    command = [sys.executable, "-m", "pcnn_bench", "show", str(config)]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = subprocess.run(
        command, capture_output=True, env={**ENVIRON, **ascii_only, "PYTHONIOENCODING": "ascii"}
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"\\u6f22" in found.stdout


def test_a_stream_that_fails_falls_silent_and_another_fault_is_told() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    assert Lenient(Full(), always=True).write("lost") == 4
    with pytest.raises(OSError, match="No space"):
        Lenient(Full(), always=False).write("lost")


def test_an_interruption_while_modules_are_loaded_is_one_line() -> None:
    code = (
        "import sys; import pcnn_bench.__main__ as entry\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "entry.main()"
    )
    found = python("-c", code)
    assert (found.returncode, found.stderr) == (130, "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        found = python("-m", "pcnn_bench", "data", "list", stdout=full)
    assert found.returncode == 3
    assert "No space left" in one_line(found.stderr)


def test_run_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def fake_run(config: Any, **given: Any) -> Any:
        seen.update(given, epochs=config.training.epochs)
        raise FindingError("enough")

    monkeypatch.setattr(running, "run", fake_run)
    options = ["--device", "gpu:1", "--engine", "cuda", "--rung", "naive", "--quiet"]
    call(
        "run", QUICKSTART, *options, "--output", str(tmp_path), "--set", "training.epochs=9"
    )  # fmt: skip
    assert seen["device"] == "gpu:1"
    assert seen["engines"] == ("cuda",)
    assert (seen["rung"], seen["output"], seen["quiet"]) == ("naive", tmp_path, True)
    assert (seen["epochs"], seen["with_host"]) == (9, False)


@pytest.fixture(params=["gpu", "emulated"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    other = emulated() if request.param == "emulated" else cuda()
    return make_run(tmp_path, baseline(), other)


def test_the_table_shows_both_engines_and_the_right_ratio(folder: Path, capsys: Capture) -> None:
    summary = reporting.summarise(folder)
    reporting.print_report(summary)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    is_emulated = summary["device"]["kind"] == "emulated"
    assert ("speedup" in out) is not is_emulated
    assert ("emulated/baseline" in out) is is_emulated
    ours, theirs = (summary["totals"]["train_s"][side] for side in ("baseline", "cuda"))
    expected = theirs / ours if is_emulated else ours / theirs
    assert summary["totals"]["train_s"]["ratio"] == pytest.approx(expected)
    assert f"{expected:.2f}x" in out
    for layer in summary["layers"]:
        times = layer["baseline_us"], layer["cuda_us"]
        assert layer["ratio"] == pytest.approx(
            times[1] / times[0] if is_emulated else times[0] / times[1]
        )
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(
    ("training", "timing", "words"),
    [
        (1.0, 1.0, ""),
        (None, None, ""),
        (1.1, 0.7, ""),
        (1.9, 1.0, "baseline: not sequential: 1.90 s of processor time"),
        (1.0, 1.11, "baseline: not sequential: 1.11 s of processor time"),
        (0.4, 1.9, "baseline: not sequential: 1.90 s of processor time"),
        (0.69, 1.0, "baseline: had the processor for 0.69 s of a second only"),
        (1.0, 0.4, "baseline: had the processor for 0.40 s of a second only"),
    ],
)
def test_ratios_against_a_baseline_that_was_not_one_undisturbed_thread_are_marked(
    training: float | None,
    timing: float | None,
    words: str,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    ours = baseline(cpu_over_wall=training, timing_cpu_over_wall=timing)
    theirs = cuda(
        cpu_over_wall=9.0, timing_cpu_over_wall=0.0
    )  # of no account: it is not sequential
    summary = reporting.summarise(make_run(tmp_path, ours, theirs))
    assert summary["baseline_doubt"].startswith(words)
    assert bool(summary["baseline_doubt"]) is bool(words)
    reporting.print_report(summary)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert ("speedup*" in out) is bool(words)
    assert (f"* {words}" in out) is bool(words)


def test_the_memory_of_the_process_stands_beside_that_of_the_engines(
    tmp_path: Path, capsys: Capture
) -> None:
    reporting.print_report(reporting.summarise(make_run(tmp_path, baseline(), cuda())))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "peak memory" in line]
    assert line.split()[-3:] == ["n/a", "n/a", "768.0"]  # these engines have no account


def test_a_fused_stage_is_held_against_the_sum_of_its_layers(tmp_path: Path) -> None:
    stages = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1",), ("dense1",), ("loss",))
    summary = reporting.summarise(make_run(tmp_path, baseline(), cuda(stages=stages)))
    alone = reporting.summarise(make_run(tmp_path, baseline(), name="alone"))
    parts = [
        layer["baseline_us"]
        for layer in alone["layers"]
        if layer["phase"] == "forward" and layer["layers"][0] in stages[0]
    ]
    (fused,) = [
        layer
        for layer in summary["layers"]
        if layer["layers"] == list(stages[0]) and layer["phase"] == "forward"
    ]
    assert len(parts) == 3
    assert fused["baseline_us"] == pytest.approx(sum(parts), rel=0.1)


def test_the_baseline_alone_has_no_ratio(tmp_path: Path, capsys: Capture) -> None:
    summary = reporting.summarise(make_run(tmp_path, baseline()))
    assert summary["ratio"] is None
    assert {layer["ratio"] for layer in summary["layers"]} == {None}
    assert all(layer["baseline_us"] > 0 for layer in summary["layers"])
    assert {layer["cuda_us"] for layer in summary["layers"]} == {None}
    reporting.print_report(summary)
    assert "n/a" in capsys.readouterr().out


def test_an_engine_that_is_not_ok_enters_no_ratio(tmp_path: Path, capsys: Capture) -> None:
    path = make_run(tmp_path, baseline(), cuda(status="diverged"))
    summary = reporting.summarise(path)
    ratios = [row["ratio"] for row in (*summary["layers"], *summary["totals"].values())]
    assert set(ratios) == {None}
    reporting.print_report(summary)
    assert "x\n" not in capsys.readouterr().out


def test_json_is_one_object_and_strict(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = running.RunResult(folder, {}, [], [], [], [], [])
    monkeypatch.setattr(running, "run", lambda config, **given: result)
    assert call("run", QUICKSTART, "--json") == 0
    assert json.loads(capsys.readouterr().out)["layers"]


def test_json_of_a_run_that_found_something_wrong_is_printed_too(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = FindingError("cuda differs")
    finding.folder = folder
    monkeypatch.setattr(running, "run", raising(finding))
    assert call("run", QUICKSTART, "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["folder"] == str(folder)
    assert one_line(captured.err) == "cuda differs\n"


def test_run_names_the_command_that_draws(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = running.RunResult(folder, {}, [], [], [], [], [])
    monkeypatch.setattr(running, "run", lambda config, **given: result)
    assert call("run", QUICKSTART) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"figures: pcnn-bench plot {folder}"


def test_plot_prints_its_files_and_notes(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = plotting.Plotted([Path("a.svg")], ["skipped b"], [])
    monkeypatch.setattr(plotting, "plot", lambda path, output: drawn)
    assert call("plot", "results") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("a.svg\n", "skipped b\n")
    assert call("plot", "results", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"files": ["a.svg"], "notes": ["skipped b"]}


def test_plot_fails_if_a_figure_failed_and_names_the_files_of_the_others(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = plotting.Plotted([Path("a.svg")], ["b: disk full"], ["b: disk full"])
    monkeypatch.setattr(plotting, "plot", lambda path, output: drawn)
    assert call("plot", "results", "--quiet") == 3
    captured = capsys.readouterr()
    assert captured.out == "a.svg\n"
    assert "first b: disk full" in one_line(captured.err)


def test_plot_of_nothing_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    assert call("plot", str(tmp_path / "missing")) == 3
    assert "missing" in one_line(capsys.readouterr().err)


def test_show_prints_layers_and_json(capsys: Capture) -> None:
    assert call("show", QUICKSTART) == 0
    assert "conv2d1" in capsys.readouterr().out
    assert call("show", QUICKSTART, "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("lack", 3)])
def test_doctor_prints_its_findings_and_exits_with_its_verdict(
    status: doctor.Status, code: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = doctor.Finding(doctor.BASELINE, status, "as found", "do this")
    monkeypatch.setattr(doctor, "diagnose", lambda: [finding])
    assert call("doctor") == code
    assert "as found" in capsys.readouterr().out
    assert call("doctor", "--json") == code
    assert json.loads(capsys.readouterr().out)[0]["status"] == status


def test_data_list_and_where_print_json(capsys: Capture) -> None:
    assert call("data", "list", "--json") == 0
    assert "mnist-5k" in [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert call("data", "where", "mnist", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0].keys() == {"folder", "is_there"}
    assert call("data", "list") == 0
    assert "mnist-5k" in capsys.readouterr().out
    assert call("data", "where", "synthetic") == 0
    assert "made when it is used" in capsys.readouterr().out


def test_data_fetch_reports_on_stderr(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, report: Callable[[str], None]) -> Path:
        report("downloading")
        return Path("cache") / name

    monkeypatch.setattr("pcnn_bench.datasets.fetch", fetch)
    assert call("data", "fetch", "mnist") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{Path('cache/mnist')}\n", "downloading\n")


def checked(status: str, error: float) -> CheckRow:
    return CheckRow("cuda", "emulated", "naive", "conv2d", "y", "1x2", error, 0.5, status)


@pytest.mark.parametrize(
    ("rows", "unverified", "code", "words"),
    [
        ([checked("ok", 0.1)], (), 0, "1 comparisons, 0 mismatches"),
        ([checked("mismatch", 0.7)], (), 1, "conv2d y 1x2: off by 0.7, allowed 0.5"),
        ([checked("mismatch", float("inf"))], (), 1, "off by n/a"),
        ([checked("ok", 0.1)], ("sgd_update",), 1, "sgd_update: never launched"),
        ([], (), 1, "0 comparisons"),
    ],
)
def test_verify_says_what_it_compared_and_fails_if_that_is_nothing(
    rows: list[CheckRow],
    unverified: tuple[str, ...],
    code: int,
    words: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Device:
        kind = "emulated"

        def close(self) -> None: ...

    found = Verification(rows, 1, ("conv2d_forward",), unverified)
    monkeypatch.setattr("pcnn_bench.engines.open_device", lambda *args, **given: Device())
    monkeypatch.setattr("pcnn_bench.verify.verify", lambda network, **given: found)
    assert call("verify", QUICKSTART, "--device", "emulated") == code
    captured = capsys.readouterr()
    assert words in captured.out
    assert captured.err == "" or one_line(captured.err).startswith("verify: ")
    call("verify", QUICKSTART, "--device", "emulated", "--json")
    summary = json.loads(capsys.readouterr().out)
    assert summary["is_good"] is (code == 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EPOCH = EpochRow("cuda", "emulated", "naive", 2, 0.1234, 0.2, 0.95, 1.25, 100.0, "ok")
LINE = "cuda naive (emulated): epoch 2: loss 0.1234, test accuracy 0.9500, 1.2 s\n"


def shown(stream: io.StringIO, environ: dict[str, str], *, quiet: bool = False) -> str:
    with showing(quiet, stream, environ) as progress:
        progress.activity("training", 3)
        progress.epoch(EPOCH)
        progress.say("look [here]")
    return stream.getvalue()


def test_progress_is_a_bar_on_a_terminal() -> None:
    text = shown(Terminal(), {"TERM": "xterm"})
    assert "training" in text
    assert "1/3" in text
    assert "look [here]" in text
    assert LINE not in text


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"NO_COLOR": "1"}])
def test_progress_is_a_line_an_epoch_where_no_bar_is_wanted(environ: dict[str, str]) -> None:
    assert shown(Terminal(), environ) == f"{LINE}look [here]\n"


def test_progress_is_a_line_an_epoch_in_a_file() -> None:
    assert shown(io.StringIO(), {}) == f"{LINE}look [here]\n"


def test_quiet_shows_only_what_must_be_seen() -> None:
    assert shown(Terminal(), {}, quiet=True) == "look [here]\n"


def test_nothing_draws_by_itself() -> None:
    threads = threading.active_count()
    with showing(False, Terminal(), {}) as progress:
        progress.activity("training", 3)
        assert threading.active_count() == threads


@pytest.mark.slow
def test_ctrl_c_keeps_a_valid_run_folder(tmp_path: Path) -> None:
    options = ["--engine", "baseline", "--set", "training.epochs=100000", "--output", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pcnn_bench", "run", QUICKSTART, *options],
        env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "epoch 1:" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    (folder,) = tmp_path.iterdir()
    found = json.loads((folder / "run.json").read_text())
    assert (found["status"], found["engines"][0]["status"]) == ("interrupted", "interrupted")
    statuses = [line.rpartition(",")[2] for line in (folder / "epochs.csv").read_text().split()]
    assert statuses[1] == "ok"
    assert set(statuses[1:]) <= {"ok", "interrupted"}
    assert reporting.summarise(folder)["totals"]["train_s"]["ratio"] is None
