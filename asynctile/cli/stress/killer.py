"""The process of scenario `kill`: it forks trainings, kills them, and resumes them.

Started with `python -m asynctile.cli.stress.killer FOLDER`. It reads one seed per line and answers each with a line of JSON. It
is a process of its own, because a fork of stress itself would copy its threads' locks. It imports everything and loads every
kernel before the first fork, so that a training begins in milliseconds. It starts no thread, and ends when its input does.
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from asynctile.cli.stress import victim
from asynctile.cli.stress.finding import Kind
from asynctile.kernels.cpu import warm

__all__ = ["Killed", "Life", "live", "main"]

#: Time limit of a training, which takes a second. One that takes this long is hung.
DEADLINE_S = 60.0
#: Share of rounds whose kill must come inside a save, and share of those that kill the resumed training too.
_IN_SAVE, _TWICE = 0.4, 0.3


@dataclass
class Killed:
    """The outcome of a round. played: of each step, whether it was played. failure: (kind, sentence), or None."""

    kills: int = 0
    in_save: int = 0
    played: list[bool] = field(default_factory=list)
    failure: tuple[Kind, str] | None = None


@dataclass
class Life:
    """One training: what it told and when (time.monotonic), and how it ended."""

    lines: list[tuple[str, float]] = field(default_factory=list)
    took_s: float = 0.0
    killed: bool = False
    status: int = 0

    def times(self, line: str) -> list[float]:
        return [when for said, when in self.lines if said == line]

    @property
    def in_save(self) -> bool:
        return self.killed and len(self.times("save")) > len(self.times("saved"))

    @property
    def played(self) -> list[bool]:
        """For each step that was told, whether it was played."""
        return [said.endswith(" played") for said, _ in self.lines if said.startswith("step ")]

    @property
    def digest(self) -> str | None:
        return next((said.partition(" ")[2] for said, _ in self.lines if said.startswith("done ")), None)

    @property
    def end(self) -> str:
        said = self.lines[-1][0] if self.lines else "nothing"
        return f"ended with status {self.status}; its last line was {said!r}"


def main(folder: Path) -> None:
    """Play a round for each seed from stdin, and print its outcome as a line of JSON, until stdin ends.

    A round kills a training once or twice, resumes it to its end, and compares it with an undisturbed one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stress handles Ctrl-C and then closes this stdin
    warm()
    whole: Life | None = None
    for line in sys.stdin:
        seed = int(line)
        if whole is None:
            whole = live(partial(victim.train, _fresh(folder / "whole"), None))
            shutil.rmtree(folder / "whole")
        place = _fresh(folder / f"round-{seed}")
        print(json.dumps(asdict(_round(place, random.Random(f"kill {seed}"), whole))), flush=True)
        shutil.rmtree(place)


def _round(folder: Path, chance: random.Random, whole: Life) -> Killed:
    """Kill a training, perhaps twice, resume it to the end, and compare."""
    killed = Killed()
    if whole.digest is None:
        killed.failure = "failed", f"an undisturbed training {whole.end}"
        return killed
    for _ in range(2 if chance.random() < _TWICE else 1):
        life = live(partial(victim.train, folder, chance.getrandbits(32)), _Moment(chance, whole))
        killed.kills += life.killed
        killed.in_save += life.in_save
        killed.played += life.played
        spill = folder / "spill"
        if left := os.listdir(spill) if spill.is_dir() else []:
            killed.failure = "leaked", f"a killed training left {', '.join(left)} in its spill folder"
            return killed
    life = live(partial(victim.train, folder, chance.getrandbits(32)))
    killed.played += life.played
    killed.failure = _judge(life, whole, folder)
    return killed


def _judge(life: Life, whole: Life, folder: Path) -> tuple[Kind, str] | None:
    """Return the kind and description of a fault in a training that was resumed after a kill; None if it has none."""
    if life.killed:
        return "hung", f"a training resumed after a kill did not end within {DEADLINE_S:g} s; it {life.end}"
    if life.digest is None:
        return "failed", f"a training resumed after a kill {life.end}"
    if life.digest != whole.digest:
        return "lost", f"weights and moments have the digest {life.digest} after a kill, but {whole.digest} without one"
    if litter := [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]:
        return "leaked", f"a resumed training left {', '.join(litter)} among the checkpoints"
    return None


class _Moment:
    """When to kill: at any time of the run, or of one of its saves."""

    def __init__(self, chance: random.Random, whole: Life) -> None:
        begun, ended = whole.times("save"), whole.times("saved")
        self.save = chance.randrange(len(begun)) if chance.random() < _IN_SAVE else None
        self.after_s = chance.uniform(0, whole.took_s if self.save is None else ended[self.save] - begun[self.save])

    def due_s(self, life: Life, began_s: float) -> float:
        """Return the moment on the clock of time.monotonic; infinity while it is not known yet."""
        if self.save is None:
            return began_s + self.after_s
        begun = life.times("save")
        return begun[self.save] + self.after_s if len(begun) > self.save else math.inf


def live(train: Callable[[int], None], moment: _Moment | None = None) -> Life:
    """Fork a training, listen to it, and kill it at `moment`. train: writes lines to the descriptor that it is given."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_trained(train, writer)
    os.close(writer)
    life = Life()
    try:
        _listen(reader, child, life, moment)
    finally:
        os.close(reader)
    return life


def _be_trained(train: Callable[[int], None], pipe: int) -> NoReturn:
    """Train in the fork, where no code of the killer may run any more, whatever happens."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        train(pipe)
        status = 0
    except BaseException as error:
        victim.tell(pipe, f"failed {error!r} in {traceback.extract_tb(error.__traceback__)[-1]}".replace("\n", " "))
    finally:
        os._exit(status)


def _listen(reader: int, child: int, life: Life, moment: _Moment | None) -> None:
    """Record the child's lines until it ends or its moment comes; then the lines that it had written before."""
    began_s = time.monotonic()
    text = b""
    while True:
        due_s = began_s + DEADLINE_S
        if moment is not None:
            due_s = min(due_s, moment.due_s(life, began_s))
        rest_s = due_s - time.monotonic()
        if rest_s <= 0 and not life.killed:
            os.kill(child, signal.SIGKILL)
            life.killed = True
        if not select.select([reader], [], [], None if life.killed else max(rest_s, 0.0))[0]:
            continue
        more = os.read(reader, 1 << 16)
        if not more:
            break
        *lines, text = (text + more).split(b"\n")
        life.lines += [(line.decode(), time.monotonic()) for line in lines]
    life.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    life.killed = life.status == -signal.SIGKILL
    life.took_s = time.monotonic() - began_s


def _fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
