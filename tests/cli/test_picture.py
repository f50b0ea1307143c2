"""The picture of a running training: when it is drawn, that nobody waits for it, and the effect of a failure.

Its content is tested in tests/layers/test_plot.py.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asynctile.cli import picture as pictures
from asynctile.cli.picture import Picture
from asynctile.layers.entropy import bigram_loss
from tests.cli.conftest import Program
from tests.settle import HANG_S


class Drawing:
    """A stand-in for `loss_curve` that waits for permission and counts its calls."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = self.done = 0
        self.threads = set[threading.Thread]()
        self.error: Exception | None = None

    def __call__(self, metrics: Path, png: Path, *, bigram_loss: float) -> Path:
        self.begun += 1
        self.threads.add(threading.current_thread())
        assert self.may_end.wait(HANG_S)
        self.done += 1
        if self.error is not None:
            raise self.error
        return png


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Drawing:
    drawing = Drawing()
    monkeypatch.setattr(pictures, "loss_curve", drawing)
    return drawing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(pictures, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def picture(tmp_path: Path) -> Picture:
    folder: Any = SimpleNamespace(path=tmp_path, metrics=SimpleNamespace(path=tmp_path / "metrics.jsonl"))
    corpus: Any = SimpleNamespace(training=np.array([1, 2, 1, 2, 3, 1] * 9, np.uint16), tokenizer=SimpleNamespace(vocab_size=4),
                                  held_out=np.array([1, 2, 1, 2, 3], np.uint16))
    return Picture(folder, corpus)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  (of a thread)
        await asyncio.sleep(0)


async def test_the_picture_is_drawn_beside_the_run_and_once_at_a_time(
    tmp_path: Path, drawing: Drawing, clock: SimpleNamespace
) -> None:
    drawn = picture(tmp_path)
    drawn.refresh()
    drawn.refresh()
    await until(lambda: drawing.begun == 1)
    drawn.refresh()
    drawing.may_end.set()
    await drawn.ended()
    assert drawing.begun == drawing.done == 1
    assert threading.current_thread() not in drawing.threads


async def test_a_picture_that_takes_long_is_drawn_seldom_and_the_last_one_always(
    tmp_path: Path, drawing: Drawing, clock: SimpleNamespace
) -> None:
    drawn = picture(tmp_path)
    drawn.refresh()
    await until(lambda: drawing.begun == 1)
    clock.now += 2.0
    drawing.may_end.set()
    await drawn.ended()
    for later, count in ((39.0, 1), (2.0, 2), (0.0, 3)):
        clock.now += later
        drawn.refresh()
        await drawn.ended()
        assert drawing.done == count
    drawing.may_end.clear()
    drawn.refresh()
    await until(lambda: drawing.begun == 4)
    last = asyncio.create_task(drawn.last())
    for _ in range(5):
        await asyncio.sleep(0)
    assert drawing.begun == 4, "it waits for the one under way"
    drawing.may_end.set()
    path, bigrams = await last
    assert drawing.done == 5 and path == tmp_path / "loss.png"
    assert bigrams == bigram_loss(np.array([1, 2, 1, 2, 3, 1] * 9), np.array([1, 2, 1, 2, 3]), 4)


async def test_a_failing_picture_on_the_way_ends_nothing_and_the_last_one_says_why(tmp_path: Path, drawing: Drawing) -> None:
    drawn = picture(tmp_path)
    drawing.error = OSError("no room")
    drawing.may_end.set()
    drawn.refresh()
    await drawn.ended()
    with pytest.raises(OSError, match="no room"):
        await drawn.last()


@pytest.mark.laws
def test_a_backend_that_is_not_installed_ends_no_run(text: Path, shape: Path, tmp_path: Path) -> None:
    """Jupyter sets its own backend for the programs that it starts, which may run in another environment."""
    command = [sys.executable, "-m", "asynctile", "train", "--data", text, "--model", shape, "--device", "cpu", "--steps", "1",
               "--out", tmp_path / "run"]  # fmt: skip
    environment = os.environ | {"MPLBACKEND": "no_such_backend"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_matplotlib_a_run_says_what_to_install(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, out, _ = train("--out", tmp_path / "run", "--steps", 1)
    assert status == 0 and (tmp_path / "run" / "loss.svg").exists()
    assert "pip install 'asynctile[plot]'" in out


def test_a_run_that_fails_has_the_picture_of_its_validations(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(
        "from asynctile.callbacks import Callback\n\nclass Failing(Callback):\n    def step(self, report):\n"
        "        assert report.step < 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    assert train("--out", run, "--validate-every", 2, "--callback", "failing:Failing")[0] == 2
    assert [path.name for path in run.glob("loss.*")] in (["loss.png"], ["loss.svg"])


async def test_only_the_beginning_of_a_long_text_gives_the_bigram_loss(
    tmp_path: Path, drawing: Drawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing.may_end.set()
    monkeypatch.setattr(pictures, "BIGRAM_TOKENS", 3)
    assert (await picture(tmp_path).last())[1] == bigram_loss(np.array([1, 2, 1]), np.array([1, 2, 1]), 4)
    monkeypatch.setattr(pictures, "BIGRAM_TOKENS", 5)
    assert (await picture(tmp_path).last())[1] == bigram_loss(np.array([1, 2, 1, 2, 3]), np.array([1, 2, 1, 2, 3]), 4)
