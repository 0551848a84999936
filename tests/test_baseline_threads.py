"""The baseline's one thread: asked for, verified, given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pytest

from pcnn_baseline import threads
from pcnn_bench.errors import UnavailableError

TWO_THREADS = [{"internal_api": "openblas", "version": "0.3", "num_threads": 2}]


def _pools(monkeypatch: pytest.MonkeyPatch, pools: list[dict[str, Any]]) -> None:
    """Let the process have these pools, which no limit moves."""

    @contextmanager
    def ignore(limits: int) -> Iterator[None]:
        yield

    monkeypatch.setattr(threads, "threadpool_info", lambda: pools)
    monkeypatch.setattr(threads, "threadpool_limits", ignore)


def test_every_pool_has_one_thread_in_the_body_and_its_own_number_after_it() -> None:
    before = threads.thread_pools()
    with threads.one_blas_thread() as pools:
        assert pools == threads.thread_pools()
        assert [pool["num_threads"] for pool in pools] == [1] * len(before)
    assert threads.thread_pools() == before


def test_a_pool_that_keeps_its_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _pools(monkeypatch, TWO_THREADS)
    with (
        pytest.raises(
            UnavailableError, match=r"openblas 0\.3 runs 2 threads.*OPENBLAS_NUM_THREADS"
        ),
        threads.one_blas_thread(),
    ):
        pytest.fail("the body ran")


def test_a_blas_that_cannot_be_seen_is_told_by_an_empty_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pools(monkeypatch, [])
    with threads.one_blas_thread() as pools:
        assert pools == []


def test_processor_time_does_not_exceed_wall_time() -> None:
    a = np.random.default_rng(0).standard_normal((400, 400))
    with threads.one_blas_thread():
        cpu_start, start = process_time(), perf_counter()
        while perf_counter() - start < 0.2:
            a @ a
        cpu_s, wall_s = process_time() - cpu_start, perf_counter() - start
    assert cpu_s <= 1.1 * wall_s
