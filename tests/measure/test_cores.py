"""The probe of cores: what it measures, and when it measures nothing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.measure import cores
from asynctile.schedule.rates import CORES


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, "LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(cores, "MOST_NBYTES", 1 << 20)
    hold_one_thread()
    yield
    let_go()


def test_everything_of_cores_is_measured_but_the_disk_and_the_least_of_an_operation() -> None:
    found = cores.measure_cores()
    assert found is not None
    assert all(0 < getattr(found, field.name) < np.inf for field in fields(found))
    assert (found.disk_per_s, found.operation_s) == (CORES.disk_per_s, CORES.operation_s)
    assert found.up_per_s == found.down_per_s == found.copied_per_s


def test_the_fastest_of_several_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products take 4 s, 1 s, ..., AdamW and copies as long."""
    lengths = iter([4.0, 1.0, 2.0, 3.0, 5.0] * 3)
    now = [0.0]
    begun: list[bool] = []

    def clock() -> float:
        begun.append(True)
        now[0] += next(lengths) if len(begun) % 2 == 0 else 0.0
        return now[0]

    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    monkeypatch.setattr("time.thread_time", clock)
    found = cores.measure_cores()
    assert found is not None
    assert found.flops_per_s == cores.PRODUCTS * 2 * cores.EDGE**3
    parameters = (1 << 20) // cores.STATE_NBYTES
    assert (found.updated_per_s, found.copied_per_s) == (28 * parameters, 8 * parameters)


def test_time_in_which_other_processes_have_the_cores_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("it goes on meanwhile"))
    assert cores.measure_cores() is not None


def test_nothing_is_measured_without_room_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "spare_memory", lambda: 1 << 20)
    assert cores.measure_cores() is None
    monkeypatch.undo()

    def refused(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refused)
    assert cores.measure_cores() is None


def cache_of(cpus: Path, cpu: int, level: int, shared: str, size: str) -> None:
    folder = cpus / f"cpu{cpu}" / "cache" / f"index{level}"
    folder.mkdir(parents=True)
    for name, value in (("level", level), ("shared_cpu_list", shared), ("size", size)):
        (folder / name).write_text(f"{value}\n")


def test_caches_of_the_last_level_count_once_each_and_are_not_guessed(tmp_path: Path) -> None:
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        cache_of(tmp_path, cpu, 2, str(cpu), "1024K")
        cache_of(tmp_path, cpu, 3, shared, "32768K")
    assert cores.caches_nbytes(tmp_path) == 64 << 20
    (tmp_path / "cpu0" / "cache" / "index3" / "size").write_text("much")
    assert cores.caches_nbytes(tmp_path) == cores.caches_nbytes(tmp_path / "nowhere") == 0
