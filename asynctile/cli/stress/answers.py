"""The answers of a process beside stress: it reads one seed per line and answers each with a line of JSON.

Covers the side of that process, which is the same for all: killer.py, saver.py, signaller.py, breaker.py and
inputs/attacker.py. Each is started with `python -m MODULE FOLDER` and has a class that plays rounds in FOLDER. partner.py is
the side of stress.

It is a process of its own, because a fork of stress itself would copy its threads' locks. It imports everything and loads every
kernel before the first fork, so that a command begins in milliseconds. It starts no thread, and ends when its input does.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from asynctile.cli.stress.finding import Kind
from asynctile.kernels.cpu import warm

__all__ = ["Answer", "answer_seeds"]

#: Modules that commands import when they need them.
_IMPORTED = ("asynctile.cli.evaluate", "asynctile.cli.generate", "asynctile.cli.plan", "asynctile.cli.train")
#: Made to look missing: drawing with it would take half of the time of a run, and pictures are written like all other files.
_DONE_WITHOUT = "matplotlib"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outcome of a round.

    failure: (kind, sentence), or None. counts: what to add to the counters of a Tally, by name. most: to what to raise its
    largest values, by name and key. case: the arguments of Harmed.add, for a case of damage.
    """

    failure: tuple[Kind, str] | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    most: dict[str, dict[str, float]] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)


class SeedPlayer(Protocol):
    """A player of rounds, all of whose randomness comes from the seed."""

    def play(self, seed: int) -> Answer: ...


def answer_seeds(make: Callable[[Path], SeedPlayer]) -> None:
    """Play a round for each seed from stdin, until there are no more. make: called with the folder to work in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stress handles Ctrl-C and then closes this stdin
    for name in _IMPORTED:
        importlib.import_module(name)
    sys.modules[_DONE_WITHOUT] = None  # type: ignore[assignment]
    warm()
    player = make(Path(sys.argv[1]).absolute())
    for line in sys.stdin:
        print(json.dumps(vars(player.play(int(line)))), flush=True)
