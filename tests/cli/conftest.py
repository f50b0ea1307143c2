"""A text, a model of a few hundred numbers, and the program called in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from asynctile.cli import main
from asynctile.cli.display import PlainDisplay
from asynctile.layers import StepReport

#: status, stdout, stderr
Result = tuple[int, str, str]
Program = Callable[..., Result]
#: How every PNG begins.
PNG = b"\x89PNG\r\n\x1a\n"
#: Tokens of the sample at the end of a run: enough to leave the window of the fixture `shape` behind.
SAMPLE_TOKENS = 20


def after_each_step(patch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Call `act` with the number of each step, once it is shown."""
    show = PlainDisplay.step

    def shown(self: PlainDisplay, report: StepReport) -> None:
        show(self, report)
        act(report.step)

    patch.setattr(PlainDisplay, "step", shown)


class Timer:
    """A timer that is over as soon as it starts, or never."""

    is_over = False

    def __init__(self, seconds: float, tell: Callable[[], None]) -> None:
        self.tell = tell

    def start(self) -> None:
        if self.is_over:
            self.tell()

    def cancel(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Timer]:
    """Replace the second after which `plan` says what it is doing: on a busy machine any plan takes longer."""
    monkeypatch.setattr("asynctile.cli.plan.Timer", Timer)
    monkeypatch.setattr(Timer, "is_over", False)
    return Timer


@pytest.fixture(autouse=True)
def drawn_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a PNG without a drawing: matplotlib takes most of the time of so small a training.

    Processes that tests start do draw (test_picture.py); what is drawn is tests/layers/test_plot.py.
    """
    monkeypatch.setattr("asynctile.layers.plot.png", lambda curves, figure: PNG)


@pytest.fixture(autouse=True)
def short_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a short sample at the end of a run: the usual one takes longer than so small a training."""
    monkeypatch.setattr("asynctile.cli.summary.SAMPLE_TOKENS", SAMPLE_TOKENS)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}: the tile moved from {n * 7 % 11} to {n * 5 % 13}\n" for n in range(400)))
    return path


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256}))
    return path


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Program:
    def call(*words: object) -> Result:
        try:
            status = main([str(word) for word in words])
        except SystemExit as leaving:  # argparse
            status = int(leaving.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def train(program: Program, text: Path, shape: Path) -> Program:
    """Return a function that runs `asynctile train` on that text and model; further words replace options."""
    usual = {"--data": text, "--model": shape, "--device": "cpu", "--batch-size": 4, "--steps": 6}

    def call(*words: object) -> Result:
        said = {str(word).partition("=")[0] for word in words}
        return program("train", *chain.from_iterable(item for item in usual.items() if item[0] not in said), *words)

    return call
