"""What a worker of Ray Train does with the options of the run. Ray itself is not needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.ray import worker


@pytest.mark.parametrize(("left_s", "most_s"), [(None, None), (60.0, 60.0), (-60.0, 0.0)])
def test_the_time_of_a_run_counts_over_all_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left_s: float | None, most_s: float | None
) -> None:
    given = {}

    async def train(options: Mapping[str, Any], interrupt: object) -> int:
        given.update(options)
        return 0

    alone = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: alone))
    monkeypatch.setattr(worker, "train", train)
    options = {"out": str(tmp_path / "run")} | ({} if left_s is None else {"max_time": 90.0})
    worker.work({"given": options, "folder": "", "end_s": None if left_s is None else time.time() + left_s})
    if most_s is None:
        assert "max_time" not in given
    else:
        assert 0 <= given["max_time"] <= most_s
