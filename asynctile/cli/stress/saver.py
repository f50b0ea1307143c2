"""The process of scenario `saves`: it forks trainings and kills each at another call of a save.

Started with `python -m asynctile.cli.stress.saver FOLDER`. It reads one seed per line and answers each with a line of JSON.
A training loads what the previous kill left, does a step and saves in the same place. Calls that count are those of a C
function of `posix`, `fcntl` or a file, in any thread, that may change the disk: a kill after any other call leaves the same
bytes as before it. Of the many writes in a row that fill a file, the first, second, fourth, eighth and so on count.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from xxhash import xxh3_128_hexdigest

from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.killer import Killed, Life, live
from asynctile.cli.stress.models import CONFIG, batch, state_of
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.round import WATCHDOG_S
from asynctile.cli.stress.victim import tell
from asynctile.kernels.cpu import warm
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.storage.inside import Folder

__all__ = ["main"]

_FILES = (io.FileIO, io.BufferedIOBase, io.TextIOWrapper)
#: Functions that change nothing on the disk.
_LOOKS = {
    "fspath", "_path_normpath", "getpid", "stat", "lstat", "fstat", "fstatvfs", "statvfs", "listdir", "scandir", "readlink",
    "access", "lseek", "read", "readinto", "readall", "readline", "pread", "preadv", "seek", "tell", "fileno", "isatty",
    "seekable", "readable", "writable", "urandom",
}  # fmt: skip
#: Above the number of calls in a save, and above the number of those after the swap, each of which advances the training a
#: step.
_MOST_CALLS, _MOST_STEPS = 500, 100


class Countdown:
    """Kills the process right after the `most`-th call that counts, in any thread that starts after this object was made.

    A call counts if it may change the disk, as the module's docstring says, and if `open` is True at that time.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._writes = 0
        self._lock = threading.Lock()
        self.open = False
        threading.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, called: Any) -> None:
        is_exchange = event == "return" and frame.f_code is Folder.exchange.__code__  # called through ctypes
        if self.open and (is_exchange or (event == "c_return" and _changes(called))):
            with self._lock:
                self._count(event == "c_return" and called is os.pwrite)

    def _count(self, is_write: bool) -> None:
        self._writes = self._writes + 1 if is_write else 0
        if self._writes & (self._writes - 1):  # not a power of two
            return
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def _changes(called: Any) -> bool:
    is_file = isinstance(getattr(called, "__self__", None), _FILES)
    return (is_file or getattr(called, "__module__", None) in ("posix", "fcntl")) and called.__name__ not in _LOOKS


def main(folder: Path) -> None:
    """Play a round for each seed from stdin, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stress handles Ctrl-C and then closes this stdin
    warm()
    gc.freeze()  # a collection in a fork would copy every page it visits
    digests: list[str] = []
    for line in sys.stdin:
        digests = digests or _said(live(_train), "after")
        (place := folder / f"round-{int(line)}").mkdir()
        print(json.dumps(asdict(_round(place, random.Random(f"saves {int(line)}"), digests))), flush=True)
        shutil.rmtree(place)


def _round(folder: Path, chance: random.Random, digests: list[str]) -> Killed:
    """Kill a training after each of its calls, one after another, until a save completes.

    digests: of the training's states, by step.
    """
    killed, step, wait = Killed(), 0, chance.random() < 0.5
    live(partial(_save, folder / "checkpoint", _MOST_CALLS, wait))
    for number in range(1, _MOST_CALLS):
        life = live(partial(_save, folder / "checkpoint", number, wait))
        found = [step for step, digest in enumerate(digests) if [digest] == _said(life, "loaded")]
        killed.failure = _judge(life, found, step, number)
        if killed.failure is not None or not life.killed:
            return killed
        step, killed.kills, killed.in_save = found[0], killed.kills + 1, killed.in_save + 1
    killed.failure = "hung", f"a save did not end within {_MOST_CALLS} calls"
    return killed


def _judge(life: Life, found: list[int], step: int, number: int) -> tuple[Kind, str] | None:
    """Return the kind and description of a fault in a training after a kill before call `number`; None if it has none.

    Its state must be that of `step` or of the next step. found: the steps whose states fit.
    """
    where = f"after a kill after call {number - 1} of a save"
    if not _said(life, "loaded"):
        return "lost", f"{where}, no checkpoint loads: a training {life.end}"
    if not found or found[0] not in (max(step, 1), step + 1):
        return "lost", f"{where}, weights and moments are neither those of step {step} nor of the next; they fit steps {found}"
    if not life.killed and life.status:
        return "failed", f"{where}, a training {life.end}"
    if not life.killed and (litter := _said(life, "beside")):
        return "leaked", f"{where} and one complete save, {', '.join(litter)} is left beside the checkpoint"
    return None


def _said(life: Life, what: str) -> list[str]:
    return [said.partition(" ")[2] for said, _ in life.lines if said.partition(" ")[0] == what]


def _run(work: Callable[[StressEngine], Any]) -> None:
    async def run() -> None:
        async with StressEngine(EngineSetup(device="cpu", spill=False), Path(), watchdog=WATCHDOG_S) as engine:
            await work(engine)

    asyncio.run(run())


async def _new_trainer(engine: StressEngine) -> Trainer:
    """Return a trainer of a model with few rows, because each row is a write."""
    return Trainer(await GPT2.create(engine, replace(CONFIG, n_embd=4, n_head=1), seed=1), AdamW(lr=1e-2))


async def _digest(trainer: Trainer) -> str:
    state = await state_of(trainer)
    return xxh3_128_hexdigest(b"".join(value.tobytes() for value in state.values()))


def _train(pipe: int) -> None:
    """Train without saves, and tell the digest of the state before the first step and after each."""

    async def train(engine: StressEngine) -> None:
        trainer = await _new_trainer(engine)
        tell(pipe, "after nothing")
        for number in range(1, _MOST_STEPS):
            await trainer.step(*batch(number))
            tell(pipe, f"after {await _digest(trainer)}")
        await trainer.model.release()

    _run(train)


def _save(path: Path, number: int, wait: bool, pipe: int) -> None:
    """Do a step from the checkpoint and save there, until the process is killed at that call."""
    calls = Countdown(number)

    async def save(engine: StressEngine) -> None:
        if any(path.parent.iterdir()):
            trainer = await Trainer.load(engine, path)
            tell(pipe, f"loaded {await _digest(trainer)}")
        else:
            trainer = await _new_trainer(engine)
        await trainer.step(*batch(trainer.step_count + 1))
        calls.open = True
        await trainer.save(path, wait=wait)
        await trainer.saved()
        calls.open = False
        for name in os.listdir(path.parent):
            if name != path.name:
                tell(pipe, f"beside {name}")
        await trainer.model.release()

    _run(save)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
