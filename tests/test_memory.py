"""Memory of the host: what the baseline needs is known from shapes, and refused before it is taken."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcnn_baseline.engine import BaselineEngine, required_bytes
from pcnn_bench import datasets, engines, environment
from pcnn_bench.cli import exit_code_of
from pcnn_bench.engines import BaselineType, make_baseline, require_memory
from pcnn_bench.errors import DataError, UnavailableError
from pcnn_bench.layers import LOSSES, SPECS
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec

SGD = SgdSpec(learning_rate=0.1, momentum=0.5)
LAYERS: list[dict[str, Any]] = [
    {"kind": "conv2d", "out_channels": 4, "kernel": 3, "padding": 1},
    {"kind": "relu"},
    {"kind": "maxpool2d", "size": 2, "stride": 1},
    {"kind": "conv2d", "out_channels": 5, "kernel": [3, 2], "stride": [2, 1], "padding": [0, 2]},
    {"kind": "sigmoid"},
    {"kind": "avgpool2d", "size": [2, 3]},
    {"kind": "flatten"},
    {"kind": "dense", "out_features": 30},
    {"kind": "tanh"},
    {"kind": "dense", "out_features": 7},
]
FREE, TOTAL = 20 << 20, 64 << 20
QUICKSTART = str(Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml")


def network(loss: str = "softmax_cross_entropy", layers: list[dict[str, Any]] = LAYERS) -> Network:
    specs = [SPECS[each["kind"]].model_validate(each) for each in layers]
    return Network((2, 17, 15), specs, LOSSES[loss](kind=loss))


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with little memory."""
    monkeypatch.setattr(environment, "memory_bytes", lambda: (FREE, TOTAL))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layers", [LAYERS, LAYERS[1:], LAYERS[2:], LAYERS[5:]])
def test_what_is_required_covers_what_every_layer_holds(
    loss: str, dtype: BaselineType, layers: list[dict[str, Any]]
) -> None:
    built = network(loss, layers)
    rows = BaselineEngine(built, batch_size=65, optimizer=SGD, dtype=dtype).memory()
    required = required_bytes(built, 65, dtype)
    held = dict.fromkeys(required, 0)
    for row in rows:
        if row.category != "peak":
            held[row.stage or "input"] += row.byte_count
    assert {name for name in held if held[name] > required[name]} == set()
    del required["input"], held["input"]  # the batch also counts where others hold it
    assert sum(required.values()) < 1.5 * sum(held.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_training_evaluating_and_saving_stay_within_what_is_required(dtype: BaselineType) -> None:
    built = network()
    images = np.ones((256, *built.input_shape), np.float32)
    labels = np.zeros(256, np.int32)
    tracemalloc.start()
    try:
        engine = BaselineEngine(built, batch_size=256, optimizer=SGD, dtype=dtype)
        engine.set_batch(images[np.arange(256)], labels)
        engine.step()
        engine.evaluate(images, labels)
        saved = [engine.parameters(), engine.parameters()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    required = sum(required_bytes(built, 256, dtype).values())
    assert len(saved) == 2
    assert peak <= required + 200_000  # Python's own objects
    assert required < 1.3 * peak


@pytest.mark.parametrize("dtypes", [[np.float32], [np.float64], [np.float32, np.float64]])
def test_too_large_a_batch_is_refused_with_the_largest_that_fits(
    little: None, dtypes: list[BaselineType]
) -> None:
    pattern = (
        r"out of memory: the baseline \([a-z0-9 ]+\) needs [\d,.]+ MiB for batch_size 100000, of "
        r"which layer \w+ needs [\d,.]+; 20\.0 of 64\.0 MiB are available; "
        r"the largest batch_size that fits is (\d+)"
    )
    with pytest.raises(UnavailableError) as caught:
        require_memory(network(), 100_000, dtypes)
    match = re.fullmatch(pattern, str(caught.value))
    assert match
    fits = int(match[1])
    require_memory(network(), fits, dtypes)
    with pytest.raises(UnavailableError):
        require_memory(network(), fits + 2, dtypes)  # + 1 may be lost in rounding


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_engine_that_does_not_fit_is_not_begun(
    little: None, dtype: BaselineType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(BaselineEngine, "__init__")
    with pytest.raises(UnavailableError, match="batch_size 100000"):
        make_baseline(network(), batch_size=100_000, optimizer=SGD, dtype=dtype)


def test_a_layer_that_never_fits_is_named(little: None) -> None:
    large = [*LAYERS[:-1], {"kind": "dense", "out_features": 2**31 - 1}]
    with pytest.raises(UnavailableError, match=r"no batch_size fits; make layer dense2 smaller$"):
        require_memory(network(layers=large), 64, [np.float32])


@pytest.mark.parametrize("command", ["run", "verify"])
def test_every_command_refuses_a_network_that_does_not_fit(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environment, "memory_bytes", lambda: (16, TOTAL))
    monkeypatch.setattr(engines, "prefetch", lambda *args, **given: None)
    monkeypatch.chdir(tmp_path)
    assert exit_code_of([command, QUICKSTART, "--device", "emulated"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("out of memory: the baseline (float")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("set_name", ["synthetic", "mnist-5k"])
def test_images_that_do_not_fit_are_refused(set_name: str, little: None) -> None:
    def load(train_count: int, edge: int) -> datasets.Dataset:
        return datasets.load_dataset(
            set_name,
            folder=None,
            train_count=train_count,
            test_count=10,
            transpose=False,
            input_shape=(1, edge, edge),
            seed=0,
            class_count=10,
        )

    assert len(load(100, 28).train_images) == 100
    with pytest.raises(DataError, match=r"20\.0 are available; lower data\.train_count"):
        load(100, 20_000)
    if set_name == "synthetic":
        with pytest.raises(DataError, match="2147483657 images of 1 x 28 x 28 need 8,0"):
            load(2**31 - 1, 28)
