"""The reports of node 0 to Ray, which a stand-in takes here. Ray itself is not needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.ray.reports import Reports
from tests.settle import HANG_S


class Ray:
    """Takes one report at a time, once `workers` are there."""

    Checkpoint = staticmethod(Path)

    def __init__(self) -> None:
        self.workers = threading.Event()
        self.taken: list[tuple[int, str]] = []

    def report(self, metrics: dict[str, Any], checkpoint: Path) -> None:
        assert self.workers.wait(HANG_S)
        self.taken.append((metrics["step"], checkpoint.name))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    found = Ray()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(train=found))
    monkeypatch.setitem(sys.modules, "ray.train", found)
    yield found
    found.workers.set()


def test_steps_go_on_while_ray_waits_for_the_other_workers(ray: Ray) -> None:
    reports = Reports()
    reports.saved(2, Path("step-000002"))
    assert not ray.taken
    ray.workers.set()
    reports.saved(4, Path("step-000004"))
    assert ray.taken[0] == (2, "step-000002"), "the run may remove the older checkpoint now"
    reports.end("finished")
    assert ray.taken[1:] == [(4, "step-000004")]


def test_a_run_that_has_failed_does_not_wait_for_workers_that_may_be_gone(ray: Ray) -> None:
    reports = Reports()
    reports.saved(2, Path("step-000002"))
    reports.end("failed")
    assert not ray.taken


def test_the_best_model_so_far_is_not_reported(ray: Ray) -> None:
    ray.workers.set()
    reports = Reports()
    reports.saved(2, Path("best"))
    reports.end("finished")
    assert not ray.taken
