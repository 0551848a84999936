"""Push against pull and ring against tile, block by block: ``python tests/benchmarks/blocks.py OUTPUT.csv``.

Each shape is one convolution with its activation and its pooling, whose input's gradient is asked for. All variants of
a shape take turns in every round; medians of device times are written, of the sum where the block is several stages.
``--profile`` runs every variant once instead, for ``ncu --csv --page raw -k regex:'conv2d|pool2d|tanh|relu|sigmoid'``,
whose output ``--counters`` joins to a table made before.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from pcnn_bench.errors import PcnnError
from pcnn_bench.layers import SPECS, LayerSpec
from pcnn_bench.layers.mean_squared_error import MeanSquaredErrorSpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import Device
from pcnn_cuda.devices import open_device
from pcnn_cuda.engine import CudaEngine, sources_of
from pcnn_cuda.plan import Plan

ROUNDS, WARMUP_ROUNDS = 30, 3
OPTIMIZER = SgdSpec(learning_rate=1e-6)
DIRECTIONS: tuple[Literal["push", "pull"], ...] = ("push", "pull")
RUNGS = ("tuned", "fused", "ring", "graph")
KEYS = ("shape", "rung", "direction", "phase")
COUNTERS = {
    "time_us": "gpu__time_duration.sum",
    "dram_bytes": "dram__bytes.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "shared_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "fma_pipe_percent": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
"""Column -> metric of Nsight Compute, summed over a phase's launches; of the last two the largest is taken."""
LARGEST = ("occupancy_percent", "fma_pipe_percent", "registers")


@dataclass(frozen=True, slots=True)
class Shape:
    """A block and a batch for it."""

    name: str
    batch: int
    x_shape: tuple[int, int, int]
    conv: dict[str, Any]
    after: tuple[dict[str, Any], ...]

    def network(self) -> Network:
        """The block below a loss, its input's gradient wanted."""
        layers: list[dict[str, Any]] = [
            {"kind": "conv2d", **self.conv},
            *self.after,
            {"kind": "flatten"},
        ]
        specs: list[LayerSpec] = [SPECS[each["kind"]].model_validate(each) for each in layers]
        loss = MeanSquaredErrorSpec()
        return Network(self.x_shape, specs, loss, needs_grad_x=True)


def _pool(kind: str, size: int = 2, stride: int | None = None) -> dict[str, Any]:
    return {"kind": f"{kind}pool2d", "size": size, **({"stride": stride} if stride else {})}


TANH, RELU, SIGMOID = ({"kind": kind} for kind in ("tanh", "relu", "sigmoid"))
SHAPES = (
    Shape("lenet5-1", 1024, (1, 28, 28), {"out_channels": 6, "kernel": 5, "padding": 2}, (TANH, _pool("avg"))),
    Shape("lenet5-2", 1024, (6, 14, 14), {"out_channels": 16, "kernel": 5}, (TANH, _pool("avg"))),
    Shape("lenet5-2-small", 64, (6, 14, 14), {"out_channels": 16, "kernel": 5}, (TANH, _pool("avg"))),
    Shape("cifar-quick-2", 256, (32, 16, 16), {"out_channels": 32, "kernel": 5, "padding": 2}, (RELU, _pool("avg"))),
    Shape("pointwise", 64, (64, 28, 28), {"out_channels": 96, "kernel": 1}, (RELU, _pool("max"))),
    Shape("wide-3x3", 8, (128, 28, 28), {"out_channels": 256, "kernel": 3, "padding": 1}, (RELU, _pool("max"))),
    Shape("vgg-3x3", 16, (64, 56, 56), {"out_channels": 64, "kernel": 3, "padding": 1}, (RELU, _pool("max"))),
    Shape("strided-7x7", 16, (3, 224, 224), {"out_channels": 16, "kernel": 7, "stride": 2, "padding": 3},
          (RELU, _pool("max", 3, 2))),
    Shape("tall-3x3", 4, (8, 512, 512), {"out_channels": 8, "kernel": 3, "padding": 1}, (RELU, _pool("max"))),
    Shape("tall-5x5", 8, (1, 512, 512), {"out_channels": 4, "kernel": 5, "padding": 2}, (TANH, _pool("avg"))),
    Shape("tall-7x7", 8, (4, 256, 256), {"out_channels": 4, "kernel": 7, "padding": 3}, (SIGMOID, _pool("max"))),
)  # fmt: skip


class Variant:
    """One shape under one rung and direction, with an engine of its own."""

    def __init__(
        self, shape: Shape, rung: str, direction: Literal["push", "pull"], device: Device
    ) -> None:
        self.shape, self.rung, self.direction = shape, rung, direction
        self.network = shape.network()
        self.engine = CudaEngine(
            self.network, batch_size=shape.batch, optimizer=OPTIMIZER, device=device,
            rung=rung, direction=direction, keeps_data=False,
        )  # fmt: skip
        block = {layer.name for layer in self.network.layers if layer.kind != "flatten"}
        self.stages = [
            each for each in self.engine.plan.stages if block.issuperset(each.info.layers)
        ]
        rng = np.random.default_rng(0)
        x = rng.standard_normal((shape.batch, *shape.x_shape), dtype=np.float32)
        self.engine.load_parameters(self.network.initial_parameters(0))
        self.engine.set_batch(x, np.zeros(shape.batch, np.int32))
        self._clock = self.engine.make_clock()
        self.times: dict[str, list[float]] = {"forward": [], "backward": []}

    def measure(self) -> None:
        """One step, timed."""
        self.engine.step(self._clock)
        names = {stage.info.name for stage in self.stages}
        spans = [span for span in self._clock.drain() if span[0] in names]
        for phase, times in self.times.items():
            times.append(sum(time_us for _, of, time_us in spans if of == phase))

    def launches(self) -> Iterator[tuple[str, str]]:
        """(phase, kernel) of the block's launches, in order."""
        step = self.engine._bind(self.shape.batch)
        block = [each for each in step.stages if each.stage in self.stages]
        for each in block:
            yield from (("forward", launch.kernel_name) for launch in each.forward)
        for each in reversed(block):
            yield from (("backward", launch.kernel_name) for launch in each.backward + each.aside)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a phase."""
        conv, *_ = self.network.layers
        for phase, times in self.times.items():
            steady = times[WARMUP_ROUNDS:]
            middle = median(steady)
            works = [dict(stage.info.work(self.shape.batch)).get(phase) for stage in self.stages]  # type: ignore[call-overload]
            work = [each for each in works if each]
            yield {
                "shape": self.shape.name, "rung": self.rung, "direction": self.direction, "phase": phase,
                "batch": self.shape.batch, "channels": conv.x_shape[0], "height": conv.x_shape[1],
                "width": conv.x_shape[2], "maps": conv.y_shape[0], "kernel": self.shape.conv["kernel"],
                "layers": "+".join(layer.kind for stage in self.stages for layer in stage.op.layers),
                "op": "+".join(stage.info.op for stage in self.stages),
                "median_us": round(middle, 3), "mad_us": round(median(abs(t - middle) for t in steady), 3),
                "sample_count": len(steady), "flop_count": sum(each.flop_count for each in work),
                "byte_count": sum(each.byte_count for each in work),
            }  # fmt: skip


def _variants(shape: Shape, device: Device) -> Iterator[Variant]:
    for rung in RUNGS:
        for direction in DIRECTIONS[: 1 if rung == "tuned" else None]:
            try:
                yield Variant(shape, rung, direction, device)
            except PcnnError as error:
                print(f"{shape.name} {rung} {direction}: {error}", file=sys.stderr)


def _chosen(names: list[str], device: Device) -> list[Shape]:
    """The shapes of these names, or all; everything they need is compiled side by side."""
    shapes = [shape for shape in SHAPES if not names or shape.name in names]
    plans = []
    for shape in shapes:
        for rung in RUNGS:
            for direction in DIRECTIONS:
                with suppress(PcnnError):
                    plans.append(
                        Plan(
                            shape.network(), rung=rung, batch_size=shape.batch, optimizer=OPTIMIZER,
                            direction=direction,
                        )
                    )  # fmt: skip
    device.prefetch(sources_of(plans))
    return shapes


def _measure(device: Device, names: list[str]) -> list[dict[str, Any]]:
    """Every variant of a shape in every round, so that drift favours none."""
    rows: list[dict[str, Any]] = []
    for shape in _chosen(names, device):
        variants = list(_variants(shape, device))
        for _ in range(WARMUP_ROUNDS + ROUNDS):
            for variant in variants:
                variant.measure()
        for variant in variants:
            rows += variant.rows()
            variant.engine.close()
            print(shape.name, variant.rung, variant.direction, len(variant.stages), "stages",
                  *(f"{row['phase']} {row['median_us']} us" for row in rows[-2:]), flush=True)  # fmt: skip
    return rows


def _profile(device: Device, names: list[str]) -> None:
    """Launch the forward and the backward of each variant's block once, and say which kernels these are."""
    for shape in _chosen(names, device):
        for variant in _variants(shape, device):
            variant.engine.step(
                variant.engine.make_clock()
            )  # one by one, also on a rung that records
            for phase, kernel in variant.launches():
                print(
                    "profiled", shape.name, variant.rung, variant.direction, phase, kernel, sep=","
                )
            variant.engine.close()


def _join(table: Path, log: Path) -> None:
    """Add the counters of ``log``, made under ncu with ``--profile``, to the rows of ``table``."""
    lines = log.read_text().splitlines()
    launches = [line.split(",")[1:] for line in lines if line.startswith("profiled,")]
    _units, *profiled = csv.DictReader(line for line in lines if line.startswith('"'))
    if [launch[4] for launch in launches] != [row["Kernel Name"] for row in profiled]:
        raise SystemExit(
            f"{log}: {len(launches)} launches but {len(profiled)} profiles, or others; profile anew"
        )
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for launch, row in zip(launches, profiled, strict=True):
        sums = found.setdefault(tuple(launch[:4]), {})
        for column, metric in COUNTERS.items():
            value = float(row[metric].replace(",", ""))
            old = sums.get(column, 0.0)
            sums[column] = max(old, value) if column in LARGEST else old + value
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    _write(table, [{**row, **found.get(tuple(row[key] for key in KEYS), {})} for row in rows])


def _write(table: Path, rows: list[dict[str, Any]]) -> None:
    columns = dict.fromkeys(column for row in rows for column in row)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    """Measure, profile, or join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", action="append", default=[], metavar="SHAPE")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--counters", type=Path, metavar="LOG")
    given = parser.parse_args()
    if given.counters:
        _join(given.output, given.counters)
        return 0
    device = open_device(given.device, nvcc_flags=(), say=print)
    try:
        if given.profile:
            _profile(device, given.only)
        else:
            _write(given.output, _measure(device, given.only))
    finally:
        device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
