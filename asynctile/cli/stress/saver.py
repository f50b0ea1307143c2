"""The process of scenario `saves`: it forks trainings and kills each after another call of a save.

A training loads what the previous kill left, does a step and saves in the same place. Calls that count are those of a C
function of `posix`, `fcntl` or a file, in any thread, that may change the disk: a kill after any other call leaves the same
bytes as before it. Of the many writes in a row that fill a file, the first, second, fourth, eighth and so on count.
The forks are those of inputs/trial.py, the answers those of answers.py.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from xxhash import xxh3_128_hexdigest

from asynctile.cli.stress.answers import Answer, answer_seeds
from asynctile.cli.stress.finding import Kind
from asynctile.cli.stress.inputs.trial import Bench, End
from asynctile.cli.stress.models import CONFIG, batch, state_of
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.round import WATCHDOG_S
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.storage.inside import Folder

__all__ = ["Saver"]

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
#: Time limit of a training, which takes less than a second.
_MOST_S = 60.0


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


class Saver:
    """Plays rounds in `folder`: it kills a training after each of its calls, one after another, until a save completes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bench = Bench(folder / "home", most_s=_MOST_S)
        #: of the training's states, by step
        self._digests = self._bench.run(_train).told("after")

    def play(self, seed: int) -> Answer:
        """Play one round."""
        (folder := self._folder / f"round-{seed}").mkdir()
        kills, failure = self._play(folder / "checkpoint", wait=random.Random(f"saves {seed}").random() < 0.5)
        shutil.rmtree(folder)
        return Answer(counts={"kills": kills, "kills_in_save": kills}, failure=failure)

    def _play(self, checkpoint: Path, *, wait: bool) -> tuple[int, tuple[Kind, str] | None]:
        """Return the number of kills, and the kind and description of a fault, None if there was none."""
        step = 0
        self._bench.run(partial(_save, checkpoint, _MOST_CALLS, wait))
        for number in range(1, _MOST_CALLS):
            end = self._bench.run(partial(_save, checkpoint, number, wait))
            found = [step for step, digest in enumerate(self._digests) if [digest] == end.told("loaded")]
            failure = _judge(end, found, step, number)
            if failure is not None or not end.killed:
                return number - 1, failure
            step = found[0]
        return number, ("hung", f"a save did not end within {_MOST_CALLS} calls")


def _judge(end: End, found: list[int], step: int, number: int) -> tuple[Kind, str] | None:
    """Return the kind and description of a fault in a training after a kill before call `number`; None if it has none.

    Its state must be that of `step` or of the next step. found: the steps whose states fit.
    """
    where = f"after a kill after call {number - 1} of a save"
    if not end.told("loaded"):
        return "lost", f"{where}, no checkpoint loads: a training ended with {end.words}"
    if not found or found[0] not in (max(step, 1), step + 1):
        return "lost", f"{where}, weights and moments are neither those of step {step} nor of the next; they fit steps {found}"
    if end.status and not end.killed:
        return "failed", f"{where}, a training ended with {end.words}"
    if not end.killed and (litter := end.told("beside")):
        return "leaked", f"{where} and one complete save, {', '.join(litter)} is left beside the checkpoint"
    return None


def _run(work: Callable[[StressEngine], Any]) -> None:
    async def run() -> None:
        async with StressEngine(EngineSetup(device="cpu", spill=False), Path(), watchdog=WATCHDOG_S) as engine:
            await work(engine)

    asyncio.run(run())


def _tell(what: str) -> None:
    """Write a line to stdout, at once and as a whole."""
    os.write(1, f"{what}\n".encode())


async def _digest(trainer: Trainer) -> str:
    state = await state_of(trainer)
    return xxh3_128_hexdigest(b"".join(value.tobytes() for value in state.values()))


async def _new_trainer(engine: StressEngine) -> Trainer:
    """Return a trainer of a model with few rows, because each row is a write."""
    return Trainer(await GPT2.create(engine, replace(CONFIG, n_embd=4, n_head=1), seed=1), AdamW(lr=1e-2))


def _train() -> None:
    """Train without saves, and tell the digest of the state before the first step and after each."""

    async def train(engine: StressEngine) -> None:
        trainer = await _new_trainer(engine)
        _tell("after nothing")
        for number in range(1, _MOST_STEPS):
            await trainer.step(*batch(number))
            _tell(f"after {await _digest(trainer)}")
        await trainer.model.release()

    _run(train)


def _save(path: Path, number: int, wait: bool) -> None:
    """Do a step from the checkpoint and save there, until the process is killed at that call."""
    calls = Countdown(number)

    async def save(engine: StressEngine) -> None:
        if any(path.parent.iterdir()):
            trainer = await Trainer.load(engine, path)
            _tell(f"loaded {await _digest(trainer)}")
        else:
            trainer = await _new_trainer(engine)
        await trainer.step(*batch(trainer.step_count + 1))
        calls.open = True
        await trainer.save(path, wait=wait)
        await trainer.saved()
        calls.open = False
        for name in os.listdir(path.parent):
            if name != path.name:
                _tell(f"beside {name}")
        await trainer.model.release()

    _run(save)


if __name__ == "__main__":
    answer_seeds(Saver)
