"""Accuracy of each rung less the baseline's, by seed: ``python tests/benchmarks/accuracy_over_seeds.py RESULTS``.

RESULTS holds run folders of one config with several seeds; a seed's baseline may lie in another folder than a rung's.
Prints mean and 95 % interval of the paired differences; exits 1 where the interval leaves 0 out and the mean exceeds
0.3 points.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t as student

from pcnn_bench.config import load_config

MOST = 0.003
CONFIDENCE = 0.95


def read(root: Path) -> dict[str, dict[int, float]]:
    """Rung (empty for the baseline) -> seed -> accuracy after the last epoch."""
    found: dict[str, dict[int, float]] = {}
    for document in sorted(root.glob("**/run.json")):
        seed = load_config(document.parent / "config.yaml", ()).training.seed
        for engine in json.loads(document.read_text())["engines"]:
            if engine["status"] == "ok" and engine["test_accuracy"] is not None:
                found.setdefault(engine["rung"], {})[seed] = engine["test_accuracy"]
    return found


def compare(
    accuracies: Mapping[int, float], baseline: Mapping[int, float]
) -> tuple[int, float, float, float]:
    """(seeds, mean difference, lower and upper end of its interval) over the seeds that both have."""
    differences = [
        accuracies[seed] - baseline[seed] for seed in sorted(accuracies) if seed in baseline
    ]
    count, middle = len(differences), mean(differences)
    if count < 2:
        return count, middle, float("-inf"), float("inf")
    half = student.ppf((1 + CONFIDENCE) / 2, count - 1) * stdev(differences) / count**0.5
    return count, middle, middle - half, middle + half


def main(root: Path) -> int:
    """Print a line for each rung."""
    found = read(root)
    baseline = found.pop("", {})
    if not baseline or not found:
        print(f"{root}: needs runs of the baseline and of a rung", file=sys.stderr)
        return 3
    low, high = min(baseline.values()), max(baseline.values())
    print(
        f"baseline: mean {mean(baseline.values()):.4f}, {low:.4f} to {high:.4f}, {len(baseline)} seeds"
    )
    failed = 0
    for rung, accuracies in found.items():
        count, middle, lower, upper = compare(accuracies, baseline)
        holds = lower <= 0 <= upper or abs(middle) <= MOST
        failed += not holds
        print(
            f"{rung}: mean difference {100 * middle:+.3f} points, 95 % interval {100 * lower:+.3f} to "
            f"{100 * upper:+.3f}, {count} seeds{'' if holds else ': DIFFERS'}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
