"""What ``show`` says of the rungs' plans: stages, fall-backs, memory, and all of it side by side."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pcnn_bench import engines
from pcnn_bench.config import load_config, parse_config
from pcnn_bench.show import describe, render
from pcnn_cuda import description as plan_description

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LENET = ROOT / "configs" / "lenet5-fashion.yaml"
HEAD = """\
schema: 1
name: odd
data: {set: mnist, folder: /nowhere}
training: {epochs: 1, batch_size: 6, optimizer: {kind: sgd, learning_rate: 0.1}}
network:
"""
ODD = f"""{HEAD}
  input: [1, 400, 400]
  layers:
    - {{kind: conv2d, out_channels: 3, kernel: 3}}
    - {{kind: tanh}}
    - {{kind: maxpool2d, size: 300}}
    - {{kind: conv2d, out_channels: 2, kernel: 33, padding: 17}}
    - {{kind: relu, cuda: {{rung: naive}}}}
    - {{kind: avgpool2d, size: 2}}
    - {{kind: flatten}}
    - {{kind: dense, out_features: 7, name: "[red]scores"}}
"""
"""A pooling window that no block holds, a kernel that no tile has, and a layer that names its rung."""


def odd(*overrides: str, rung: str | None = None) -> dict[str, Any]:
    return describe(parse_config(ODD, "odd.yaml", overrides), rung)


def lenet(rung: str, *overrides: str) -> dict[str, Any]:
    plan: dict[str, Any] = describe(load_config(LENET, overrides), rung)["plan"]
    return plan


def text_of(shown: dict[str, Any], **options: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=80, **options).print(render(shown))
    return file.getvalue()


def unfolded(shown: dict[str, Any]) -> str:
    return " ".join(text_of(shown).split())


def fallbacks(shown: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["stage"]: (each["rung"], each["reason"]) for each in shown["plan"]["fallbacks"]}


@pytest.mark.parametrize("rung", engines.rungs())
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_stages_cover_each_layer_once_and_their_phases_add_up(path: Path, rung: str) -> None:
    config = load_config(path)
    shown = describe(config, rung)
    plan = shown["plan"]
    covered = [
        name for stage in plan["stages"] if stage["name"] != "update" for name in stage["layers"]
    ]
    layers = config.build_network().all_layers
    assert covered == [layer.name for layer in layers if layer.kind != "flatten"]
    for count in ("launch_count", "flop_count", "byte_count"):
        for phase in ("forward", "backward", "update"):
            found = [stage["phases"].get(phase, {}).get(count, 0) for stage in plan["stages"]]
            assert plan["totals"][phase][count] == sum(found)
        assert plan["totals"]["step"][count] == sum(
            plan["totals"][phase][count] for phase in ("forward", "backward", "update")
        )
    assert all(
        phase["launch_count"] for stage in plan["stages"] for phase in stage["phases"].values()
    )
    assert shown["rungs"] == []  # one rung was asked for


def test_a_stage_names_its_op_direction_and_rung() -> None:
    first, second, *_ = lenet("fused", "cuda.backward=pull")["stages"]
    assert (first["name"], first["layers"]) == (
        "conv2d1+tanh1+avgpool2d1",
        ["conv2d1", "tanh1", "avgpool2d1"],
    )
    assert (first["op"], first["rung"], first["direction"]) == ("conv2d_act_pool", "fused", "")
    assert (second["op"], second["direction"]) == ("conv2d_act_pool", "pull")
    assert second["phases"].keys() == {"forward", "backward", "update"}
    own = "network.layers[3].cuda.backward=push"
    assert lenet("fused", "cuda.backward=pull", own)["stages"][1]["direction"] == "push"


def test_the_update_of_all_layers_is_a_stage_of_its_own_where_the_rung_has_one() -> None:
    naive, graph = lenet("naive"), lenet("graph")
    assert naive["totals"]["update"]["launch_count"] == 5
    assert graph["totals"]["update"]["launch_count"] == 1
    assert graph["stages"][-1]["layers"] == ["conv2d1", "conv2d2", "dense1", "dense2", "dense3"]


@pytest.mark.parametrize("rung", engines.rungs())
def test_memory_is_what_the_allocation_holds(rung: str) -> None:
    memory = lenet(rung)["memory"]
    for category, byte_count in memory["category_bytes"].items():
        assert byte_count == sum(
            row["byte_count"] for row in memory["tensors"] if row["category"] == category
        )
    ends = [row["offset"] + row["byte_count"] for row in memory["tensors"]]
    assert max(ends) <= memory["allocation_bytes"] < max(ends) + 256
    lent = [row for row in memory["tensors"] if row["first_step"] is not None]
    assert min(row["offset"] for row in lent) == memory["allocation_bytes"] - memory["arena_bytes"]
    assert memory["arena_bytes"] < memory["lent_bytes"]  # some of it is used twice
    assert {row["last_step"] < memory["step_count"] for row in lent} == {True}


def test_reuse_can_be_seen() -> None:
    lent = [row for row in lenet("naive")["memory"]["tensors"] if row["first_step"] is not None]
    places = [row["offset"] for row in lent]
    assert len(set(places)) < len(places)


# ---- fall-backs


def test_a_rung_says_which_layers_it_leaves_to_which_rung_and_why() -> None:
    found = fallbacks(odd(rung="fused"))
    rung, reason = found["maxpool2d1"]
    assert rung == "naive"
    assert reason.startswith("a pooling window of 300 x 300 ")
    assert reason.endswith("is too large for one block")
    assert found["avgpool2d1"] == ("naive", "relu1 names a rung of its own")
    assert found["[red]scores"] == ("tuned", "no op of rung fused takes dense alone")
    assert found["loss"] == ("tuned", "no op of rung fused takes softmax_cross_entropy")
    assert not {"conv2d1+tanh1", "relu1"} & found.keys()  # covered; and chosen by the layer


def test_an_op_that_leaves_the_work_to_a_lower_rung_s_kernels_is_a_fallback() -> None:
    found = fallbacks(odd(rung="tuned"))
    assert found["conv2d2"] == ("naive", "conv2d_tuned leaves windows of this size to conv2d.cu")
    assert "conv2d1" not in found
    assert found["tanh1"] == ("naive", "no op of rung tuned takes tanh")


def test_a_layer_that_names_a_rung_is_held_to_that_one() -> None:
    own = "network.layers[0].cuda.rung=fused"
    shown = odd(own, "network.layers[1]={kind: tanh}", rung="naive")
    assert fallbacks(shown).keys() == set()
    assert shown["plan"]["stages"][0]["rung"] == "fused"
    alone = odd(own, "network.layers[1]={kind: tanh, cuda: {rung: naive}}", rung="naive")
    assert fallbacks(alone) == {"conv2d1": ("tuned", "tanh1 names a rung of its own")}


def test_the_lowest_rung_falls_back_nowhere_and_the_best_of_all_only_to_the_lowest() -> None:
    assert fallbacks(odd(rung="naive")) == {}
    assert {rung for rung, _ in fallbacks(odd(rung="graph")).values()} == {"naive"}
    assert lenet("graph")["fallbacks"] == []


def test_fallbacks_and_choices_are_printed() -> None:
    shown = odd(rung="fused")
    text = unfolded(shown)
    assert (
        "falls back to rung naive: maxpool2d1 (a pooling window of 300 x 300 over a convolution of 3 x 3 is"
        in text
    )
    assert "falls back to rung tuned: [red]scores (no op of rung fused takes dense alone)" in text
    assert "of rung naive, by choice: relu1" in text


# ---- the rungs side by side


def test_without_a_rung_all_are_compared() -> None:
    shown = describe(load_config(LENET))
    assert [row["rung"] for row in shown["rungs"]] == list(engines.rungs())
    assert shown["plan"]["rung"] == engines.rungs()[-1]
    by_rung = {row["rung"]: row for row in shown["rungs"]}
    assert by_rung["fused"]["activation_bytes"] < 0.3 * by_rung["naive"]["activation_bytes"]
    assert by_rung["fused"]["launch_count"] < by_rung["tuned"]["launch_count"]
    assert by_rung["tuned"]["fallback_count"] == 6
    assert by_rung["fused"]["coverage"] == {"taken": 4, "possible": 4}
    for name in ("launch_count", "flop_count", "byte_count"):
        assert by_rung["fused"][name] == lenet("fused")["totals"]["step"][name]


def test_each_stage_of_the_rung_counts_where_a_longer_run_was_too_large() -> None:
    dense = [f"{{kind: dense, out_features: {units}}}" for units in (2000, 1000, 3)]
    layers = ", {kind: tanh}, ".join(dense)
    shown = odd(f"network.layers=[{{kind: flatten}}, {layers}]")
    ops = [stage["op"] for stage in shown["plan"]["stages"]]
    assert ops == ["dense_tuned", "dense_tuned", "dense_head", "sgd"]
    coverage = {row["rung"]: row["coverage"] for row in shown["rungs"]}
    assert coverage["graph"] == {"taken": 3, "possible": 3}


def test_the_config_s_rung_is_the_one_shown() -> None:
    assert odd("cuda.rung=naive")["plan"]["rung"] == "naive"
    assert odd("cuda.rung=naive", rung="tuned")["plan"]["rung"] == "tuned"


def test_a_rung_that_changes_nothing_is_the_same_plan() -> None:
    specs = "network.layers=[{kind: tanh}, {kind: flatten}, {kind: dense, out_features: 3}]"
    shown = odd(specs)
    same = {row["rung"]: row["same_plan_as"] for row in shown["rungs"]}
    assert same["fused"] == "tuned"
    assert same["tuned"] == same["graph"] == ""
    assert "rung fused: same plan as tuned" in text_of(shown)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_everything_fits_80_columns_and_survives_strict_json(path: Path) -> None:
    shown = describe(load_config(path))
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    for rung in engines.rungs():
        text = text_of(describe(load_config(path), rung))
        assert max(map(len, text.splitlines())) <= 80
        assert "allocation" in text


def test_large_numbers_long_names_and_plain_terminals_are_no_trouble() -> None:
    shown = odd("training.batch_size=2000", f"network.layers[0].name={'n' * 64}")
    text = text_of(shown, force_terminal=True, no_color=True, color_system=None)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=80).print(render(shown))
    file.flush()
    assert "allocation" in file.buffer.getvalue().decode("ascii")


# ---- what has no plan, and what does not repeat


def test_a_plan_that_cannot_be_made_says_why_beside_the_layers() -> None:
    shown = odd("training.batch_size=10000")
    assert shown["layers"]
    assert "more than 32-bit indices reach" in shown["plan"]["error"]
    text = unfolded(shown)
    assert "rung graph: no plan: layer conv2d1+tanh1: y has" in text
    assert "no plan of naive, tuned: layer conv2d1: y has" in text


def test_layers_are_shown_where_engine_cuda_does_not_run() -> None:
    shown = odd("engines=[baseline]")
    assert shown["layers"]
    assert (shown["plan"], shown["rungs"]) == (None, [])
    assert "conv2d1" in text_of(shown)
    assert odd("engines=[baseline]", rung="tuned")["plan"]["rung"] == "tuned"


def test_what_does_not_repeat_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "rung naive, repeats: bit for bit\n" in text_of(odd(rung="naive"))
    monkeypatch.setattr(plan_description, "repeats_bitwise", lambda text: "dense_tuned" not in text)
    assert not odd(rung="naive")["plan"]["unrepeatable"]
    shown = odd(rung="tuned")
    assert shown["plan"]["unrepeatable"] == ["dense_tuned.cu"]
    assert "rung tuned, repeats: not bit for bit (dense_tuned.cu)\n" in text_of(shown)
    demanded = unfolded(odd("training.deterministic=true", rung="tuned"))
    assert "(dense_tuned.cu), although training.deterministic demands it" in demanded
    compared = odd("cuda.rung=naive")
    assert {row["rung"]: row["repeats_bitwise"] for row in compared["rungs"]}["naive"]
    assert "rung tuned: repeats not bit for bit" in text_of(compared)


def test_no_device_is_opened_and_no_data_are_looked_for() -> None:
    code = (
        "import sys\n"
        "from pcnn_bench.cli import exit_code_of\n"
        f"assert exit_code_of(['show', {str(LENET)!r}]) == 0\n"
        "opened = {'pcnn_cuda.devices', 'pcnn_cuda.emulated_device', 'pcnn_cuda.pycuda_device', 'pycuda'}\n"
        "assert not opened & set(sys.modules), opened & set(sys.modules)\n"
    )
    path = ":".join(str(ROOT / folder) for folder in (".", "baseline", "cuda"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PATH": "", "HOME": "/nowhere", "PCNN_BENCH_DATA": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
