"""The limit of one BLAS thread counts, whichever threads have set limits before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from threadpoolctl import OpenBLASController, threadpool_limits

from asynctile import Engine
from asynctile.blas_threads import hold_one_thread, let_go
from tests.test_lifetime import blas


@pytest.fixture
def two() -> Iterator[list[int]]:
    """Let products use two threads, as this thread says."""
    OpenBLASController.clear_controlling_thread(force=True)
    limits = threadpool_limits(2, user_api="blas")
    yield blas()
    OpenBLASController.clear_controlling_thread(force=True)
    limits.restore_original_limits()


class Parked:
    """A thread that stays alive after its work: threadpoolctl takes limits from a new thread once the old one has ended."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._done, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work: Callable[[], None]) -> None:
        work()
        self._done.set()
        self._end.wait()

    def __enter__(self) -> None:
        self._thread.start()
        self._done.wait()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_a_limit_set_in_another_thread_counts_and_a_third_thread_undoes_it(two: list[int]) -> None:
    assert set(two) == {2}
    for _ in range(2):
        with Parked(hold_one_thread):
            assert set(blas()) == {1}
            with Parked(let_go):
                assert blas() == two


async def test_an_engine_multiplies_in_one_thread_after_its_caller_has_chosen_two(two: list[int]) -> None:
    async with Engine("cpu"):
        assert set(blas()) == {1}
    assert blas() == two
