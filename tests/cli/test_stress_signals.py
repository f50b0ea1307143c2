"""Scenario `signals` finds planted bugs: a pair that loses a run, a second signal that ends nothing, a false line.

tests/cli/test_stress.py runs a round without a bug. tests/cli/test_interrupt.py tests the effect of signals on a run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynctile.cli.stress import signals
from tests.cli.conftest import Program

pytestmark = pytest.mark.laws

#: A stand-in for the process that sends signals: at the given distance, the first a little later in each round.
_PLANTED = """
import random, sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from asynctile.cli import interrupt, session, train
from asynctile.cli.stress import signaller

rounds = count(1)

class Chance(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.drawn = [{apart} / 3, 0.2 * (1 + next(rounds) % 4)]

    def uniform(self, least, most):
        return least + self.drawn.pop() * (most - least)

signaller.random = SimpleNamespace(Random=Chance)
{bug}
signaller.main(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("apart", "bug", "kind", "what"), [
    (0.5, "interrupt.AGAIN_S = 0", "lost", "apart ended it at once"),
    (2.5, "interrupt.AGAIN_S = 60", "hung", "did not end it"),
    (2.5, "train.last_words = session.last_words = lambda folder, newest: "
          "f'asynctile train: stopped at once; with --resume, {folder.path} starts at step 7'", "failed", "at step 7"),
], ids=["a pair that ends it at once", "a second signal that ends nothing", "a line that is not true"])  # fmt: skip
def test_a_planted_bug_is_found(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, bug: str, kind: str, what: str
) -> None:
    """Four rounds: in one of them the first signal comes while steps are done."""
    monkeypatch.setattr(signals, "PROGRAM", ("-c", _PLANTED.format(apart=apart, bug=bug)))
    report = tmp_path / "report.json"
    words = ("--scenario", "signals", "--rounds", 4, "--seed", 1, "--spill", tmp_path, "--report", report)
    assert program("stress", *words)[0] == 1
    failures = json.loads(report.read_text())["failures"]
    assert failures and all(failure["kind"] == kind and what in failure["what"] for failure in failures)
