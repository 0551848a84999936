"""Figures: what they show is what the rows say, and nothing runs into anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import LAYERS, EngineRows, baseline, cuda, emulated, make_run

from pcnn_bench.figures import end_to_end, layer_speedups, layer_times, loss_accuracy
from pcnn_bench.figures.common import (
    COLORS,
    NothingToDrawError,
    count_range,
    format_ratio,
    format_us,
    plain,
)
from pcnn_bench.pairing import Series, baseline_of, stage_pairs
from pcnn_bench.results import load_results
from pcnn_bench.results_reading import Results

# isort: split
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

CUDA = Series("cuda", "gpu", "naive")
EMULATED = Series("cuda", "emulated", "naive")
BASELINE = Series("baseline", "cpu", "")
LONG = tuple(
    (f"convolution_block_{i:02d}_with_a_very_long_name" if i % 3 else f"a$b_{i}^2$<i>&{i}",)
    for i in range(30)
)
FUSED = (("conv2d1", "tanh1", "avgpool2d1"), ("flatten1",), ("dense1",), ("loss",))


def results_of(tmp_path: Path, *engines: EngineRows, **changes: Any) -> Results:
    return load_results(make_run(tmp_path, *engines, **changes))


def figures_of(results: Results) -> Iterator[Figure]:
    """Every figure that the rows allow."""
    others = [s for s in (CUDA, EMULATED) if (results.layers["device"] == s.device).any()]
    draws: list[Callable[[], Figure]] = [
        lambda: end_to_end.draw(results),
        lambda: loss_accuracy.draw(results),
        lambda: layer_times.draw(results, (others or [BASELINE])[0]),
        lambda: layer_speedups.draw(results, (others or [BASELINE])[0]),
    ]
    for draw in draws:
        try:
            yield draw()
        except NothingToDrawError:
            continue


def tick_labels(axes: Axes) -> Iterator[Text]:
    """The tick labels that are drawn: those inside the limits."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted(limits)
        for tick in axis.get_major_ticks():
            if low <= tick.get_loc() <= high:
                yield tick.label1


def drawn_texts(figure: Figure) -> list[Text]:
    """Every text that a reader sees, in its final place."""
    figure.draw_without_rendering()
    texts = list(figure.texts)
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, *tick_labels(axes)]
        texts += [text for text in axes.findobj(Text) if text.get_text() == axes.get_title("left")]
    unique = {id(text): text for text in texts if text.get_visible() and text.get_text().strip()}
    return list(unique.values())


def all_text(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in drawn_texts(figure))


def title_of(figure: Figure) -> str:
    return figure.texts[0].get_text().replace("\n", " ")


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


CASES: dict[str, tuple[tuple[EngineRows, ...], dict[str, Any]]] = {
    "slower": ((baseline(), cuda(base_us=700.0, images_per_s=100.0)), {}),
    "far_faster": ((baseline(base_us=3e6), cuda(base_us=0.8, images_per_s=1e6)), {}),
    "both_sides": ((baseline(), cuda(base_us=90.0, noise=0.8)), {}),
    "emulated": ((baseline(), emulated()), {}),
    "baseline_alone": ((baseline(),), {}),
    "one_layer_and_epoch": (
        (baseline(stages=(("fc",),), epochs=1), cuda(stages=(("fc",),), epochs=1)),
        {"has_accuracy": False},
    ),
    "fused": ((baseline(), cuda(stages=FUSED)), {}),
    "diverged": (
        (baseline(), emulated(status="diverged", epochs=2, epoch_status={2: "diverged"})),
        {"info": {"status": "diverged"}},
    ),
    "long_names": (
        (baseline(stages=LONG), cuda(stages=LONG)),
        {
            "name": "20260102T030405Z-" + "long-name-" * 12,
            "info": {"name": "W" * 300, "device": {"kind": "gpu", "name": "NVIDIA " + "W" * 99}},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_text_is_clipped_or_runs_into_another(tmp_path: Path, case: str) -> None:
    engines, changes = CASES[case]
    drawn = 0
    for figure in figures_of(results_of(tmp_path, *engines, **changes)):
        drawn += 1
        assert figure.get_figwidth() == 7.0
        boxes = [(text.get_text(), text.get_window_extent()) for text in drawn_texts(figure)]
        assert len(boxes) > 5
        for words, box in boxes:
            assert box.x0 >= 0, words
            assert box.y0 >= 0, words
            assert box.x1 <= figure.bbox.width, words
            assert box.y1 <= figure.bbox.height, words
        for (one, a), (other, b) in combinations(boxes, 2):
            width = min(a.x1, b.x1) - max(a.x0, b.x0)
            height = min(a.y1, b.y1) - max(a.y0, b.y0)
            # A box has the height of the line: two px of 200 per inch are its empty margin.
            assert width <= 0 or height <= 2, (one, other)
    assert drawn >= 3


def test_emulated_figures_say_so_and_never_speedup(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), emulated())
    figures = list(figures_of(results))
    assert len(figures) == 4
    for figure in figures:
        assert "emulated" in title_of(figure)
        assert "speedup" not in all_text(figure).lower()
        assert "as fast" not in all_text(figure)
    ratios = figures[3]
    assert "emulated/baseline" in all_text(ratios)
    for figure in (figures[0], figures[2], ratios):
        hatched = [bar for axes in figure.axes for bar in bars(axes) if bar.get_hatch()]
        assert hatched
        assert {to_hex(bar.get_facecolor()).upper() for bar in hatched} == {COLORS["cuda"]}


def test_gpu_figures_are_not_hatched_and_do_not_say_emulated(tmp_path: Path) -> None:
    for figure in figures_of(results_of(tmp_path, baseline(), cuda())):
        assert "emulated" not in all_text(figure)
        assert not [bar for axes in figure.axes for bar in bars(axes) if bar.get_hatch()]


def test_emulated_ratio_is_emulated_over_baseline(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(noise=0.0), emulated(base_us=250.0, noise=0.0))
    figure = layer_speedups.draw(results, EMULATED)
    ends = {round(bar.get_x() + bar.get_width(), 9) for axes in figure.axes for bar in bars(axes)}
    assert ends == {2.5}
    assert "2.50x" in all_text(figure)


def test_axes_name_what_they_show_and_its_unit(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda())
    total, learning, times, speedups = figures_of(results)
    assert [axes.get_xlabel() for axes in total.axes] == [
        "seconds: training, evaluation (paler), compilation (palest)",
        "speedup over baseline, log scale",
    ]
    assert [axes.get_xlabel() for axes in learning.axes[2:]] == [
        "epoch",
        "seconds of training (evaluation excluded), log scale",
    ]
    assert [axes.get_ylabel() for axes in learning.axes[::2]] == [
        "loss (mean per image)",
        "test accuracy (fraction)",
    ]
    assert times.axes[1].get_xlabel() == "time per training step of 64 images, log scale"
    assert speedups.axes[1].get_xlabel() == "speedup over baseline, log scale"


def test_bars_of_layer_times_end_at_the_medians(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda())
    figure = layer_times.draw(results, CUDA)
    forward = figure.axes[0]
    assert forward.get_title("left") == "forward"
    assert forward.get_xscale() == "log"
    ends = [bar.get_x() + bar.get_width() for bar in bars(forward)]
    expected = [
        side.median_us
        for pair in stage_pairs(results, CUDA)
        if pair.phase == "forward"
        for side in (pair.baseline, pair.other)
        if side
    ]
    assert ends == pytest.approx(expected)
    assert len(ends) == 2 * len(LAYERS)
    labels = [label.get_text() for label in forward.get_yticklabels()]
    assert labels == list(LAYERS)
    assert forward.get_ylim()[0] > forward.get_ylim()[1]  # the first layer on top


def test_bars_of_layer_speedups_start_at_one_and_end_at_the_ratio(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(noise=0.0), cuda(base_us=4.0, noise=0.0))
    figure = layer_speedups.draw(results, CUDA)
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        assert any(np.array_equal(line.get_xdata(), [1.0, 1.0]) for line in axes.get_lines())
        for bar in bars(axes):
            assert bar.get_x() == 1.0
            assert bar.get_width() == pytest.approx(24.0)
    assert "25.0x as fast (25.0x to 25.0x)" in title_of(figure)


def test_intervals_are_drawn_and_vanish_with_the_samples(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(), cuda())

    def intervals() -> int:
        figure = layer_speedups.draw(load_results(run), CUDA)
        return sum(line.get_marker() == "|" for axes in figure.axes for line in axes.get_lines())

    pairs = [pair for pair in stage_pairs(load_results(run), CUDA) if pair.speedup]
    assert intervals() == len(pairs) > 0
    (run / "samples.csv").unlink()
    assert intervals() == 0


def test_failed_stage_is_not_drawn_but_named_absent(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda(stage_status={"dense1": "failed"}))
    speedups = layer_speedups.draw(results, CUDA)
    assert [text.get_text() for axes in speedups.axes for text in axes.texts].count(" n/a") == 3
    assert "3 of 14 n/a" in all_text(speedups)
    assert "A training step" not in title_of(speedups)
    times = layer_times.draw(results, CUDA)
    assert [text.get_text() for axes in times.axes for text in axes.texts].count(" n/a") == 3


@pytest.mark.parametrize("series", [CUDA, BASELINE])
def test_no_ratio_at_all_is_no_figure_but_a_reason(tmp_path: Path, series: Series) -> None:
    results = results_of(tmp_path, cuda() if series == CUDA else baseline())
    with pytest.raises(NothingToDrawError, match=r"no ratio: (the run has no|only the) baseline"):
        layer_speedups.draw(results, series)
    assert layer_times.draw(results, series).axes


def test_captions_name_device_commit_and_sample_counts(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(sample_count=18), cuda(sample_count=31))
    for figure in figures_of(results):
        assert "device: NVIDIA H200" in all_text(figure)
        assert "commit abc1234def" in all_text(figure)
    assert "18 to 31 samples" in all_text(layer_speedups.draw(results, CUDA))
    times = all_text(layer_times.draw(results, CUDA))
    assert "baseline: 18 samples, host clock" in times
    assert "cuda naive: 31 samples, device clock" in times


def test_colours_are_the_same_in_every_figure(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda())
    expected = {COLORS["baseline"], COLORS["cuda"]}
    for figure in (end_to_end.draw(results), layer_times.draw(results, CUDA)):
        found = {to_hex(bar.get_facecolor()).upper() for axes in figure.axes for bar in bars(axes)}
        assert found == expected
    curves = loss_accuracy.draw(results).axes[0].get_lines()
    assert {str(line.get_color()) for line in curves} == expected


def test_end_to_end_ratio_is_that_of_the_totals(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(images_per_s=1000.0), cuda(images_per_s=12_000.0))
    figure = end_to_end.draw(results)
    assert title_of(figure) == (
        "Training lenet5 end to end: cuda naive is 12.0x as fast as the baseline"
    )
    times, ratios = figure.axes
    (bar,) = bars(ratios)
    assert bar.get_x() + bar.get_width() == pytest.approx(12.0)
    assert "training 21.2 s" in [text.get_text().strip() for text in times.texts]
    assert end_to_end.faults(results) == []


def test_end_to_end_shows_the_cold_start_and_every_epoch(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(epochs=3), cuda(epochs=3))
    ratios = end_to_end.draw(results).axes[1]
    marks = {line.get_marker(): np.asarray(line.get_xdata()) for line in ratios.get_lines()}
    first, second = results.runs[0].engines
    assert first.train_s is not None
    assert second.train_s is not None
    assert marks["D"] == pytest.approx([first.train_s / (second.train_s + 1.5)])
    assert marks["o"] == pytest.approx([20.0] * 3)


def test_end_to_end_of_epochs_alone_where_run_json_is_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline(), cuda())
    (run / "run.json").unlink()
    results = load_results(run)
    assert "20.0x as fast" in title_of(end_to_end.draw(results))


@pytest.mark.parametrize(
    ("engines", "reason"),
    [
        ((baseline(), cuda(status="diverged")), "cuda naive: diverged"),
        ((baseline(status="interrupted"), cuda()), "baseline: interrupted"),
        ((baseline(epochs=3), cuda()), "did not train equally many images"),
        ((cuda(),), "the run has no baseline"),
    ],
)
def test_end_to_end_gives_no_ratio_that_would_mislead(
    tmp_path: Path, engines: tuple[EngineRows, ...], reason: str
) -> None:
    results = results_of(tmp_path, *engines)
    (fault,) = end_to_end.faults(results)
    assert reason in fault
    figure = end_to_end.draw(results)
    assert "as fast" not in title_of(figure)
    assert " n/a" in [text.get_text() for text in figure.axes[1].texts]


def test_seconds_are_cumulated_over_epochs(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda())
    rows = loss_accuracy.curves(results)[CUDA]
    assert rows["seconds"].tolist() == pytest.approx(rows["wall_s"].cumsum().tolist())
    curve = [
        line
        for line in loss_accuracy.draw(results).axes[1].get_lines()
        if line.get_color() == COLORS["cuda"] and line.get_marker() == "o"
    ]
    assert np.asarray(curve[0].get_xdata()) == pytest.approx(rows["seconds"].to_numpy())


def test_seconds_after_a_lost_epoch_are_unknown(tmp_path: Path) -> None:
    run = make_run(tmp_path, baseline())
    lines = (run / "epochs.csv").read_text().splitlines(keepends=True)
    (run / "epochs.csv").write_text("".join(lines[:2] + lines[3:]))
    rows = loss_accuracy.curves(load_results(run))[BASELINE]
    assert rows["epoch"].tolist() == [1, 3, 4, 5]
    assert rows["seconds"].isna().tolist() == [False, True, True, True]


def test_one_epoch_is_drawn_as_marks(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(epochs=1), cuda(epochs=1))
    for line in loss_accuracy.draw(results).axes[0].get_lines():
        assert line.get_marker() not in ("", "None")


def test_without_accuracies_the_loss_is_drawn_alone(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda(), has_accuracy=False)
    figure = loss_accuracy.draw(results)
    assert len(figure.axes) == 2
    assert "accuracy" not in all_text(figure)


def test_diverged_epoch_is_marked_and_named(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(), cuda(epochs=3, epoch_status={3: "diverged"}))
    figure = loss_accuracy.draw(results)
    assert "cuda naive: diverged in epoch 3." in all_text(figure).replace("\n", " ")
    dotted = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert [float(np.asarray(line.get_xdata())[0]) for line in dotted] == [3.0]


def test_no_epoch_is_no_figure_but_a_reason(tmp_path: Path) -> None:
    results = results_of(tmp_path, baseline(epochs=0))
    with pytest.raises(NothingToDrawError, match="no loss"):
        loss_accuracy.draw(results)
    with pytest.raises(NothingToDrawError, match="training time"):
        end_to_end.draw(results)


def test_markup_in_names_is_shown_as_it_is(tmp_path: Path) -> None:
    stages = (("$\\frac{1}{2}$",), ("a_b^c",), ("<b>&amp;",), ("100%",))
    results = results_of(
        tmp_path, baseline(stages=stages), cuda(stages=stages), info={"name": "$x$ {} %s"}
    )
    figure = layer_times.draw(results, CUDA)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [layers[0] for layers in stages]
    assert "$x$ {} %s" in title_of(figure)

    def parses(artist: Artist) -> bool:
        return isinstance(artist, Text) and "$" in artist.get_text() and artist.get_parse_math()

    assert not figure.findobj(parses)


def test_baseline_of_a_run_without_one_is_none(tmp_path: Path) -> None:
    assert baseline_of(results_of(tmp_path, cuda())) is None


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.01234, "0.0123x"), (1.0, "1.00x"), (24.06, "24.1x"), (99.96, "100x"), (1234.4, "1230x")],
)
def test_ratios_have_three_digits(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0123, "12.3 ns"),
        (0.87, "870 ns"),
        (0.9999, "1.00 µs"),
        (12.34, "12.3 µs"),
        (999.4, "999 µs"),
        (999.9, "1.00 ms"),
        (4560, "4.56 ms"),
        (7.891e6, "7.89 s"),
        (1.2345e8, "123 s"),
    ],
)
def test_times_have_three_digits_and_the_unit_that_fits(time_us: float, text: str) -> None:
    assert format_us(time_us) == text


def test_long_and_unprintable_text_is_made_fit() -> None:
    assert plain("abc", 3) == "abc"
    assert plain("abcdefgh", 5) == "ab…gh"
    assert plain("a\nb\x1b", 9) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


def test_counts_are_a_number_or_a_range() -> None:
    assert count_range([20]) == count_range([20, 20, 20]) == "20"
    assert count_range([31, 18, 20]) == "18 to 31"
