"""One engine of a run with everything it has yielded: what ``run.json`` and the tables say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcnn_bench.engine import Engine
from pcnn_bench.results import LayerRow, MemoryRow
from pcnn_bench.timing import TimingRecord, layer_rows, sequential_doubt
from pcnn_bench.training import TrainingRecord


@dataclass(slots=True)
class Contender:
    """One engine of a run and what it has yielded so far."""

    engine: Engine
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What its entry says of its plan."""
    status: str = "interrupted"
    """What is true of the engine if the run ends now."""
    training: TrainingRecord = field(default_factory=TrainingRecord)
    timing: TimingRecord = field(default_factory=TimingRecord)
    memory: list[MemoryRow] = field(default_factory=list)

    @property
    def label(self) -> str:
        """``baseline`` or ``cuda-naive``: part of its files' names."""
        return f"{self.engine.name}-{self.engine.rung}" if self.engine.rung else self.engine.name

    @property
    def test_accuracy(self) -> float | None:
        """Of the last epoch that ended well."""
        known = [row.test_accuracy for row in self.training.epochs if row.status == "ok"]
        return known[-1] if known else None

    @property
    def doubt(self) -> str:
        """Why the times of the sequential engine are not what they should be; empty if nothing is wrong."""
        if self.engine.name != "baseline":
            return ""
        return sequential_doubt(self.training.cpu_over_wall, self.timing.cpu_over_wall)

    def layer_rows(self, batch_size: int) -> list[LayerRow]:
        """Its rows of layers.csv; none before its timing pass."""
        if not self.timing.samples:
            return []
        status = "ok" if self.timing.ended_by else self.status
        return layer_rows(self.engine, self.timing, batch_size, status)

    def entry(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        training = self.training
        return {
            "engine": self.engine.name,
            "device": self.engine.device,
            "rung": self.engine.rung,
            "status": self.status,
            "totals": {
                "train_s": training.train_s or None,
                "eval_s": training.eval_s,
                "compile_s": self.engine.compile_s,
                "transfer_s": training.transfer_s,
            },
            "test_accuracy": self.test_accuracy,
            "train_images": training.image_count,
            "cpu_over_wall": training.cpu_over_wall,
            "timing_cpu_over_wall": self.timing.cpu_over_wall,
            **self.plan,
        }
