"""Run folders made of known numbers, for the tests of reading and drawing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pcnn_bench import stats
from pcnn_bench.results import CheckRow, EpochRow, LayerRow, MemoryRow, RunFolder, SampleRow

LAYERS = ("conv2d1", "tanh1", "avgpool2d1", "flatten1", "dense1", "loss")
WITH_PARAMETERS = ("conv2d", "dense")


@dataclass
class EngineRows:
    """One engine's part of a synthetic run; stage times are ``base_us`` times 1, 2, 3 ... in order."""

    engine: str = "baseline"
    device: str = "cpu"
    rung: str = ""
    base_us: float = 100.0
    stages: tuple[tuple[str, ...], ...] = tuple((name,) for name in LAYERS)
    status: str = "ok"
    stage_status: dict[str, str] = field(default_factory=dict)
    sample_count: int = 20
    noise: float = 0.05
    epochs: int = 5
    epoch_status: dict[int, str] = field(default_factory=dict)
    images_per_s: float = 1000.0
    cpu_over_wall: float | None = 1.0
    timing_cpu_over_wall: float | None = 1.0

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.engine, self.device, self.rung)


def baseline(**changes: Any) -> EngineRows:
    return replace(EngineRows(), **changes)


def cuda(**changes: Any) -> EngineRows:
    made = EngineRows("cuda", "gpu", "naive", base_us=10.0, images_per_s=20_000.0)
    return replace(made, **changes)


def emulated(**changes: Any) -> EngineRows:
    return cuda(**{"device": "emulated", "base_us": 250.0, "images_per_s": 400.0, **changes})


def make_run(
    parent: Path,
    *engines: EngineRows,
    name: str = "20260102T030405Z-lenet5-abc1234",
    batch_size: int = 64,
    train_images: int = 4000,
    has_accuracy: bool = True,
    info: dict[str, Any] | None = None,
) -> Path:
    """A complete run folder; ``info`` changes keys of its run.json."""
    folder = RunFolder.create(parent, name)
    layers: list[LayerRow] = []
    samples: list[SampleRow] = []
    epochs: list[EpochRow] = []
    rng = np.random.default_rng(1)
    for one in engines:
        rows, taken = _timing(one, batch_size, rng)
        layers += rows
        samples += taken
        epochs += _epochs(one, train_images, has_accuracy)
    folder.write_table("layers", layers)
    folder.write_table("samples", samples)
    folder.write_table("epochs", epochs)
    folder.write_table(
        "memory",
        [MemoryRow(*one.key, "input", "", "x", 3136, None, None, 0) for one in engines]
        + [
            MemoryRow(*one.key, "parameters", stage, "weight", 4800, None, None, 0)
            for one in engines
            for stage in ("+".join(layers) for layers in one.stages)
            if any(name.startswith(WITH_PARAMETERS) for name in stage.split("+"))
        ],
    )
    folder.write_table(
        "checks",
        [CheckRow(*one.key, "dense1", "y", "(64, 10)", 1e-7, 1e-5, "ok") for one in engines],
    )
    folder.write_json("environment.json", {"python": "3.11"})
    folder.write_json("run.json", {**_info(engines, train_images, has_accuracy), **(info or {})})
    return folder.path


def _timing(
    one: EngineRows, batch_size: int, rng: np.random.Generator
) -> tuple[list[LayerRow], list[SampleRow]]:
    rows, samples = [], []
    parts: list[tuple[str, tuple[str, ...], str, float]] = [("*", LAYERS, "step", one.base_us * 30)]
    for index, layers in enumerate(one.stages, start=1):
        has_update = any(name.startswith(WITH_PARAMETERS) for name in layers)
        for phase, factor in (("forward", 1.0), ("backward", 2.0), ("update", 0.1)):
            if phase != "update" or has_update:
                parts.append(("+".join(layers), layers, phase, one.base_us * index * factor))
    for stage, layers, phase, time_us in parts:
        times = time_us * (1 + one.noise * rng.uniform(-1, 1, one.sample_count))
        first = SampleRow(*one.key, stage, phase, batch_size, 0, 1, True, 50 * time_us, "")
        samples.append(first)
        samples += [
            replace(first, repeat=repeat, is_warmup=False, time_us=float(value))
            for repeat, value in enumerate(times)
        ]
        low, high = stats.quartiles(times)
        rows.append(
            LayerRow(
                *one.key,
                stage=stage,
                layers="+".join(layers),
                op="" if stage == "*" else "op",
                direction="",
                phase=phase,
                batch_size=batch_size,
                sample_count=one.sample_count,
                warmup_count=1,
                median_us=stats.median(times),
                mad_us=stats.mad(times),
                min_us=float(times.min()),
                p25_us=low,
                p75_us=high,
                first_us=50 * time_us,
                compile_ms=None,
                flop_count=None,
                byte_count=None,
                gflop_per_s=None,
                gbyte_per_s=None,
                clock="device" if one.device == "gpu" and stage != "*" else "host",
                flags="",
                status=one.stage_status.get(stage, "ok"),
            )
        )
    return rows, samples


def _epochs(one: EngineRows, train_images: int, has_accuracy: bool) -> list[EpochRow]:
    rows = []
    for epoch in range(1, one.epochs + 1):
        wall_s = train_images / one.images_per_s * (1 + 0.02 * epoch)
        rows.append(
            EpochRow(
                *one.key,
                epoch=epoch,
                train_loss=2.3 * 0.6**epoch,
                test_loss=2.3 * 0.6**epoch + 0.05,
                test_accuracy=1 - 0.5 * 0.7**epoch if has_accuracy else None,
                wall_s=wall_s,
                images_per_s=train_images / wall_s,
                status=one.epoch_status.get(epoch, "ok"),
            )
        )
    return rows


def _info(engines: tuple[EngineRows, ...], train_images: int, has_accuracy: bool) -> dict[str, Any]:
    device = next((one.device for one in engines if one.engine == "cuda"), "cpu")
    names = {"gpu": "NVIDIA H200", "emulated": "2 cores of a CPU, emulated", "cpu": "no GPU"}
    return {
        "schema": 1,
        "status": "ok",
        "message": "",
        "name": "lenet5",
        "argv": ["run", "lenet5.yaml"],
        "started_utc": "2026-01-02T03:04:05Z",
        "package_version": "0.1.0",
        "commit": "abc1234def5678",
        "device": {"kind": device, "name": names[device]},
        "data": {
            "set": "mnist-5k",
            "sha256": "0" * 64,
            "train_count": train_images,
            "test_count": 1000,
            "has_accuracy": has_accuracy,
        },
        "engines": [
            {
                "engine": one.engine,
                "device": one.device,
                "rung": one.rung,
                "status": one.status,
                "totals": {
                    "train_s": sum(row.wall_s for row in _epochs(one, train_images, True)) or None,
                    "eval_s": 0.1 * one.epochs * train_images / one.images_per_s,
                    "compile_s": 0.0 if one.engine == "baseline" else 1.5,
                    "transfer_s": None,
                },
                "test_accuracy": 0.9 if has_accuracy else None,
                "train_images": one.epochs * train_images,
                "cpu_over_wall": one.cpu_over_wall,
                "timing_cpu_over_wall": one.timing_cpu_over_wall,
            }
            for one in engines
        ],
        "agreement": {"predictions_equal": None, "accuracy_difference": None},
        "peak_memory_bytes": 3 << 28,
    }
