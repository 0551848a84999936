"""Which of the baseline's times a stage is held against, and when there is no ratio."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import LAYERS, baseline, cuda, make_run

from pcnn_bench.pairing import Pair, Series, all_series, baseline_of, stage_pairs, step_pair
from pcnn_bench.results import load_results
from pcnn_bench.results_reading import Results

CUDA = Series("cuda", "gpu", "naive")
FUSED = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1",), ("dense1",), ("loss",))


def pair_of(pairs: list[Pair], stage: str, phase: str) -> Pair:
    (found,) = [pair for pair in pairs if (pair.stage, pair.phase) == (stage, phase)]
    return found


def with_samples(results: Results, stage: str, engine: str, times: list[float]) -> Results:
    """The same with the steady forward samples of one stage replaced."""
    samples = results.samples
    there = (
        (samples["stage"] == stage)
        & (samples["engine"] == engine)
        & (samples["phase"] == "forward")
        & ~samples["is_warmup"]
    )
    kept = samples[~there]
    rows = samples[there].head(len(times)).assign(time_us=times)
    return replace(results, samples=pd.concat([kept, rows], ignore_index=True))


def test_series_are_named_with_the_baseline_first(tmp_path: Path) -> None:
    results = load_results(make_run(tmp_path, cuda(), baseline()))
    assert [series.label for series in all_series(results)] == ["baseline", "cuda naive"]
    assert baseline_of(results) == Series("baseline", "cpu", "")
    assert Series("cuda", "emulated", "naive").label == "cuda naive (emulated)"


def test_stages_come_in_the_order_of_the_network(tmp_path: Path) -> None:
    stages = tuple((name,) for name in reversed(LAYERS))
    results = load_results(make_run(tmp_path, baseline(), cuda(stages=stages)))
    names = list(dict.fromkeys(pair.stage for pair in stage_pairs(results, CUDA)))
    assert names == list(LAYERS)


def test_ratio_is_that_of_the_medians_of_the_steady_samples(tmp_path: Path) -> None:
    results = load_results(make_run(tmp_path, baseline(), cuda()))
    results = with_samples(results, "tanh1", "baseline", [100.0, 300.0, 200.0])
    results = with_samples(results, "tanh1", "cuda", [10.0, 10.0, 40.0, 20.0])
    pair = pair_of(stage_pairs(results, CUDA), "tanh1", "forward")
    assert pair.reason == ""
    assert pair.baseline is not None
    assert pair.other is not None
    assert (pair.baseline.median_us, pair.other.median_us) == (200.0, 15.0)
    assert (pair.baseline.sample_count, pair.other.sample_count) == (3, 4)
    assert (pair.baseline.clock, pair.other.clock) == ("host", "device")
    assert pair.speedup is not None
    low, ratio, high = pair.speedup
    assert ratio == 200 / 15
    assert low < ratio < high


def test_fused_stage_is_held_against_the_sum_within_each_repeat(tmp_path: Path) -> None:
    results = load_results(make_run(tmp_path, baseline(), cuda(stages=FUSED)))
    # The sum of the medians would be 10 + 10 + 10 = 30.
    results = with_samples(results, "conv2d1", "baseline", [1.0, 10.0, 100.0])
    results = with_samples(results, "tanh1", "baseline", [100.0, 1.0, 10.0])
    results = with_samples(results, "avgpool2d1", "baseline", [10.0, 100.0, 1.0])
    pair = pair_of(stage_pairs(results, CUDA), "conv2d1+tanh1+avgpool2d1", "forward")
    assert pair.layers == FUSED[0]
    assert pair.baseline is not None
    assert pair.baseline.median_us == 111.0
    assert pair.baseline.sample_count == 3


def test_fused_update_counts_the_layers_that_have_one(tmp_path: Path) -> None:
    results = load_results(make_run(tmp_path, baseline(noise=0.0), cuda(stages=FUSED)))
    pair = pair_of(stage_pairs(results, CUDA), "conv2d1+tanh1+avgpool2d1", "update")
    assert pair.baseline is not None
    assert pair.baseline.median_us == pytest.approx(10.0)  # of conv2d1 alone


def test_summaries_serve_where_samples_are_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(), cuda(stages=FUSED))
    expected = pair_of(stage_pairs(load_results(run), CUDA), "dense1", "forward")
    (run / "samples.csv").unlink()
    pairs = stage_pairs(load_results(run), CUDA)
    pair = pair_of(pairs, "dense1", "forward")
    assert pair.speedup is not None
    assert expected.speedup is not None
    assert pair.speedup[1] == pytest.approx(expected.speedup[1])
    assert np.isnan([pair.speedup[0], pair.speedup[2]]).all()
    assert pair.other is not None
    assert pair.other.sample_count == 0
    fused = pair_of(pairs, "conv2d1+tanh1+avgpool2d1", "forward")
    assert fused.baseline is not None
    assert np.isnan(fused.baseline.p25_us)


@pytest.mark.parametrize("status", ["failed", "mismatch", "", "OK", "oom"])
def test_stage_that_is_not_ok_enters_no_ratio(tmp_path: Path, status: str) -> None:
    run = make_run(tmp_path, baseline(), cuda(stage_status={"dense1": status}))
    results = load_results(run)
    pairs = stage_pairs(results, CUDA)
    for pair in pairs:
        if pair.stage == "dense1":
            assert pair.speedup is None
            assert pair.other is None
            assert pair.reason == f"cuda dense1: {status or 'no status'}"
        else:
            assert pair.speedup is not None
    step = step_pair(results, CUDA)
    assert step is not None
    assert step.speedup is None


def test_baseline_stage_that_is_not_ok_enters_no_ratio(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(stage_status={"tanh1": "failed"}), cuda(stages=FUSED))
    pair = pair_of(stage_pairs(load_results(run), CUDA), "conv2d1+tanh1+avgpool2d1", "forward")
    assert pair.speedup is None
    assert pair.reason == "baseline tanh1: failed"
    assert pair.other is not None


@pytest.mark.parametrize("diverged", ["baseline", "cuda"])
def test_engine_that_diverged_enters_no_ratio(tmp_path: Path, diverged: str) -> None:
    engines = [
        replace(one, status="diverged" if one.engine == diverged else "ok")
        for one in (baseline(), cuda())
    ]
    results = load_results(make_run(tmp_path, *engines))
    pairs = stage_pairs(results, CUDA)
    assert pairs
    assert all(pair.speedup is None and "diverged" in pair.reason for pair in pairs)
    step = step_pair(results, CUDA)
    assert step is not None
    assert step.speedup is None


def test_without_a_baseline_every_ratio_is_absent(tmp_path: Path) -> None:
    pairs = stage_pairs(load_results(make_run(tmp_path, cuda())), CUDA)
    assert {pair.reason for pair in pairs} == {"the run has no baseline"}
    assert all(pair.other is not None and pair.speedup is None for pair in pairs)


def test_baseline_is_not_held_against_itself(tmp_path: Path) -> None:
    results = load_results(make_run(tmp_path, baseline()))
    pairs = stage_pairs(results, Series("baseline", "cpu", ""))
    assert {pair.reason for pair in pairs} == {"only the baseline was timed"}
    assert all(pair.baseline is not None and pair.speedup is None for pair in pairs)


def test_layer_that_the_baseline_lacks_is_named(tmp_path: Path) -> None:
    some = tuple((name,) for name in LAYERS if name != "tanh1")
    run = make_run(tmp_path, baseline(stages=some), cuda(stages=FUSED))
    pair = pair_of(stage_pairs(load_results(run), CUDA), "conv2d1+tanh1+avgpool2d1", "forward")
    assert pair.speedup is None
    assert pair.reason == "the baseline has no forward time for tanh1 at batch 64"


def lose_row(run: Path, stage: str, phase: str, how: str) -> None:
    """Take one row of the baseline from layers.csv, or give it a time of 0, for which it is dropped."""
    lines = (run / "layers.csv").read_text().splitlines()
    start = f"baseline,cpu,,{stage},{stage},op,,{phase},"
    (index,) = [index for index, line in enumerate(lines) if line.startswith(start)]
    if how == "deleted":
        del lines[index]
    else:
        cells = lines[index].split(",")
        cells[lines[0].split(",").index("median_us")] = "0.0"
        lines[index] = ",".join(cells)
    (run / "layers.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("how", ["deleted", "of no time"])
@pytest.mark.parametrize("has_samples", [True, False])
@pytest.mark.parametrize(
    ("phase", "lost"),
    [
        ("forward", "tanh1"),
        ("backward", "conv2d1"),
        ("backward", "tanh1"),
        ("backward", "avgpool2d1"),
        ("update", "conv2d1"),
    ],
)
def test_a_lost_row_of_the_baseline_leaves_no_ratio_over_too_small_a_sum(
    tmp_path: Path, phase: str, lost: str, has_samples: bool, how: str
) -> None:
    run = make_run(tmp_path, baseline(), cuda(stages=FUSED))
    lose_row(run, lost, phase, how)
    if not has_samples:
        (run / "samples.csv").unlink()
    results = load_results(run)
    pairs = stage_pairs(results, CUDA)
    pair = pair_of(pairs, "conv2d1+tanh1+avgpool2d1", phase)
    assert (pair.speedup, pair.baseline) == (None, None)
    assert pair.reason == f"the baseline has no {phase} time for {lost} at batch 64"
    assert how == "deleted" or any("median_us" in warning for warning in results.warnings)
    others = [one for one in pairs if one.layers != pair.layers or one.phase != phase]
    assert others
    assert all(one.speedup is not None for one in others)


def test_one_of_two_lost_updates_is_not_taken_for_a_layer_without_parameters(
    tmp_path: Path,
) -> None:
    stages = (LAYERS,)
    run = make_run(tmp_path, baseline(), cuda(stages=stages))
    lose_row(run, "dense1", "update", "deleted")
    for has_samples in (True, False):
        if not has_samples:
            (run / "samples.csv").unlink()  # then memory.csv knows what dense1 holds
        pair = pair_of(stage_pairs(load_results(run), CUDA), "+".join(LAYERS), "update")
        assert pair.reason == "the baseline has no update time for dense1 at batch 64"


def test_layers_below_the_first_that_learns_need_no_backward(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(), cuda(stages=FUSED))
    (run / "samples.csv").unlink()
    lose_row(run, "conv2d1", "backward", "deleted")
    lose_row(run, "conv2d1", "update", "deleted")
    lines = (run / "memory.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("baseline,cpu,,parameters,conv2d1,")]
    assert len(kept) == len(lines) - 1
    (run / "memory.csv").write_text("\n".join(kept) + "\n")
    pair = pair_of(stage_pairs(load_results(run), CUDA), "conv2d1+tanh1+avgpool2d1", "backward")
    assert pair.speedup is not None


def test_other_batch_size_is_not_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(), cuda())
    text = (run / "layers.csv").read_text()
    lines = [
        line.replace(",64,", ",32,") if line.startswith("baseline") else line
        for line in text.splitlines()
    ]
    (run / "layers.csv").write_text("\n".join(lines) + "\n")
    results = load_results(run)
    pairs = stage_pairs(results, CUDA)
    assert all(p.speedup is None and "at batch 64" in p.reason for p in pairs)
    step = step_pair(results, CUDA)
    assert step is not None
    assert (step.speedup, step.reason) == (None, "the baseline's step was not timed")


def test_step_is_compared_with_the_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(base_us=100, noise=0.0), cuda(base_us=4, noise=0.0))
    step = step_pair(load_results(run), CUDA)
    assert step is not None
    assert step.speedup == pytest.approx((25.0, 25.0, 25.0))


def test_a_phase_that_does_part_of_another_is_paired_with_what_is_left_of_it(
    tmp_path: Path,
) -> None:
    results = load_results(make_run(tmp_path, baseline(), cuda()))
    apart = stage_pairs(results, CUDA)
    layers = results.layers.copy()
    merging = (
        (layers["stage"] == "dense1") & (layers["rung"] == "naive") & (layers["phase"] == "forward")
    )
    layers.loc[merging, "flags"] = "with:backward"
    pairs = stage_pairs(replace(results, layers=layers), CUDA)
    assert len(pairs) == len(apart) - 1
    assert not [pair for pair in pairs if (pair.stage, pair.phase) == ("dense1", "backward")]
    together = pair_of(pairs, "dense1", "forward")
    halves = [pair_of(apart, "dense1", phase) for phase in ("forward", "backward")]
    for side in ("baseline", "other"):
        found, expected = getattr(together, side), [getattr(half, side) for half in halves]
        assert found.median_us == pytest.approx(
            sum(times.median_us for times in expected), rel=0.02
        )
