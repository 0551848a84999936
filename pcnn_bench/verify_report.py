"""What ``verify`` prints: a line for each rung, and for each comparison that failed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any, TextIO

from pcnn_bench.random_networks import as_config
from pcnn_bench.reporting import WIDTH, number
from pcnn_bench.results import CheckRow

if TYPE_CHECKING:
    from pcnn_bench.verify import Verification


def summarise_verification(
    found: Sequence[tuple[str, Verification]], device: str
) -> dict[str, Any]:
    """What was verified of each rung, as JSON takes it; an error that is no number is None.

    A mismatch in a random network has its ``seed``; ``configs`` holds the config of each such network by its seed.
    """
    failed = {case.seed: case for _, verification in found for case in verification.failed}
    return {
        "device": device,
        "is_good": bool(found) and all(verification.is_good for _, verification in found),
        "rungs": [
            {
                "rung": rung,
                "case_count": verification.case_count,
                "random_count": len(verification.random),
                "comparison_count": verification.comparison_count,
                "kernels": list(verification.kernels),
                "unverified": list(verification.unverified),
                "mismatches": [
                    *_mismatches(verification.rows, None),
                    *(
                        mismatch
                        for case, rows in verification.random
                        for mismatch in _mismatches(rows, case.seed)
                    ),
                ],
            }
            for rung, verification in found
        ],
        "configs": {str(seed): as_config(case) for seed, case in sorted(failed.items())},
    }


def _mismatches(rows: Sequence[CheckRow], seed: int | None) -> Iterator[dict[str, Any]]:
    """The comparisons that failed; NaN and infinity are no JSON."""
    for row in rows:
        if row.status != "ok":
            error = row.max_abs_error if isfinite(row.max_abs_error) else None
            yield {**asdict(row), "max_abs_error": error, "seed": seed}


def print_verification(summary: dict[str, Any], stream: TextIO | None = None) -> None:
    """A line for each rung, and for each comparison that failed."""
    stream = stream or sys.stdout
    for rung in summary["rungs"]:
        mismatches = rung["mismatches"]
        for row in mismatches:
            error = number(row["max_abs_error"], ".3g")
            where = "" if row["seed"] is None else f"random network of seed {row['seed']}: "
            print(
                f"{where}{row['stage']} {row['quantity']} {row['shape']}: off by {error}, "
                f"allowed {row['allowed_error']:.3g}",
                file=stream,
            )
        for kernel in rung["unverified"]:
            print(f"{kernel}: never launched", file=stream)
        print(textwrap.fill(", ".join(rung["kernels"]), WIDTH), file=stream)
        drawn = f" and {rung['random_count']} random networks" if rung["random_count"] else ""
        print(
            f"rung {rung['rung']} ({summary['device']}): {len(rung['kernels'])} kernels on "
            f"{rung['case_count']} shapes{drawn}, {rung['comparison_count']} comparisons, "
            f"{len(mismatches)} mismatches",
            file=stream,
        )
    for seed, config in summary["configs"].items():
        print(f"\nThe network of seed {seed}, again with --random 1 --seed {seed}:\n", file=stream)
        print(config, end="", file=stream)
