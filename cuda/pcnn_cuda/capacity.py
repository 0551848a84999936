"""How much of a device a plan needs, and the largest batch that fits."""

from __future__ import annotations

from pcnn_bench.environment import MEBIBYTE
from pcnn_cuda.plan import Plan


def refusal(plan: Plan, free: int, total: int) -> str:
    """What the plan needs, what needs most of it, and what would fit in ``free`` of ``total`` bytes."""
    largest = max(plan.tensors(), key=lambda tensor: tensor.byte_count)
    fits = largest_batch(plan, min(free, plan.byte_count - 1))
    remedy = f"the largest batch_size that fits is {fits}" if fits else "no batch_size fits"
    return (
        f"out of device memory: batch_size {plan.batch_size} needs "
        f"{plan.byte_count / MEBIBYTE:.1f} MiB, of which layer "
        f"{largest.stage or 'input'} needs {largest.byte_count / MEBIBYTE:.1f} for "
        f"{largest.name}; {free / MEBIBYTE:.1f} of {total / MEBIBYTE:.1f} MiB are free; {remedy}"
    )


def largest_batch(plan: Plan, free_bytes: int) -> int:
    """The largest batch size whose plan needs at most ``free_bytes``; 0 if none does."""

    def fits(batch_size: int) -> bool:
        smaller = Plan(
            plan.network,
            rung=plan.rung,
            batch_size=batch_size,
            optimizer=plan.optimizer,
            direction=plan.direction,
            history_images=plan.history_images,
        )
        return smaller.byte_count <= free_bytes

    low, high = 0, plan.batch_size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
