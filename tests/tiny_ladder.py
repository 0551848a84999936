"""A ladder of a network that takes a moment to train, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pcnn_bench.engines as packages
from pcnn_bench.cli import exit_code_of
from pcnn_bench.errors import DeviceMemoryError

LAYERS = """
    - {kind: conv2d, out_channels: 2, kernel: 3}
    - {kind: tanh}
    - {kind: avgpool2d, size: 2}
    - {kind: flatten}
    - {kind: dense, out_features: 4}
    - {kind: tanh}
    - {kind: dense, out_features: 3}
"""
DENSE = """
    - {kind: flatten}
    - {kind: dense, out_features: 3}
"""
Capture = pytest.CaptureFixture[str]


def write_config(folder: Path, layers: str = LAYERS) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(
        "schema: 1\nname: tiny\ndata: {set: synthetic, train_count: 37, test_count: 9}\n"
        f"network:\n  input: [1, 9, 8]\n  layers:{layers}"
        "training: {epochs: 2, batch_size: 8, optimizer: {kind: sgd, learning_rate: 0.1}}\n"
        "timing: {warmup_s: 0.0, warmup_count: 1, budget_s: 0.02}\n"
    )
    return file


def ladder(config: Path, output: Path, *argv: str) -> int:
    given = ("--device", "emulated", "--output", str(output), "--quiet")
    return exit_code_of(["ladder", str(config), *given, *argv])


def strict(text: str) -> Any:
    """What strict JSON says."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def refuse_rung(monkeypatch: pytest.MonkeyPatch, rung: str, above: int = 0) -> None:
    """Let this rung not fit into memory for batches larger than ``above``."""
    make = packages.make_cuda

    def refusing(*args: Any, **given: Any) -> Any:
        if given["rung"] == rung and given["batch_size"] > above:
            raise DeviceMemoryError(f"out of device memory: batch_size {given['batch_size']}")
        return make(*args, **given)

    monkeypatch.setattr(packages, "make_cuda", refusing)
