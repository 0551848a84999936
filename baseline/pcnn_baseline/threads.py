"""One BLAS thread: what makes the baseline sequential, verified and not only asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_info, threadpool_limits

from pcnn_bench.errors import UnavailableError

PoolInfo = dict[str, Any]
"""name, version, architecture and num_threads of one thread pool."""


def thread_pools() -> list[PoolInfo]:
    """The thread pools of this process's numerical libraries, as ``environment.json`` records them.

    Empty where the BLAS is not one that threadpoolctl knows (Apple's Accelerate): then nothing can be
    said of its threads, and the list says so by being empty.
    """
    return [
        {
            "name": pool["internal_api"],
            "version": pool.get("version"),
            "architecture": pool.get("architecture"),
            "num_threads": pool["num_threads"],
        }
        for pool in threadpool_info()
    ]


def require_one_thread() -> list[PoolInfo]:
    """The pools, all of which have one thread.

    Raises:
        UnavailableError: one has more.
    """
    pools = thread_pools()
    for pool in pools:
        if pool["num_threads"] != 1:
            raise UnavailableError(
                f"baseline: {pool['name']} {pool['version'] or ''} runs {pool['num_threads']} threads, "
                "but a sequential engine needs 1; set OPENBLAS_NUM_THREADS, MKL_NUM_THREADS and "
                "OMP_NUM_THREADS to 1"
            )
    return pools


@contextmanager
def one_blas_thread() -> Iterator[list[PoolInfo]]:
    """Hold every loaded thread pool to one thread in the body; yields what the pools then say.

    The limit belongs to the process, so whoever drives the baseline enters this around all that it
    does. Libraries loaded in the body are not held; NumPy's BLAS is loaded before.

    Raises:
        UnavailableError: a pool keeps more than one thread.
    """
    with threadpool_limits(limits=1):
        yield require_one_thread()
