"""The process that scenario `kill` kills: it trains with checkpoints and tells when saves begin and end, and its result.

Covers one process, forked by killer.py. A run that finds checkpoints resumes from the newest, as `asynctile train --resume`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from asynctile.cli.stress.models import Recipe, State, batch, draw_training_place, new_trainer, state_of
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.round import WATCHDOG_S
from asynctile.layers import Trainer
from asynctile.storage.beside import recover_folders, remove_folder
from asynctile.storage.inside import Folder

__all__ = ["RECIPE", "STEPS", "Moment", "digest_of", "tell", "train"]

STEPS = 6
_SAVE_EVERY, _KEEP = 2, 2
RECIPE = Recipe(replicas=2)


@dataclass(frozen=True)
class Moment:
    """When a training is killed: so many seconds after it began, or after its save of this number did."""

    save: int | None
    after_s: float

    def wait(self) -> None:
        """Let the system kill this process after that time, by a signal that nothing handles."""
        signal.setitimer(signal.ITIMER_REAL, max(self.after_s, 1e-6))


def train(folder: Path, seed: int | None, end: Moment | None = None) -> None:
    """Train to the last step in the place that `seed` draws, or with None all in RAM. Writes lines to stdout."""
    chance = random.Random(seed)
    place = EngineSetup(device="cpu", spill=False) if seed is None else draw_training_place(chance, RECIPE)
    if end is not None and end.save is None:
        end.wait()
    asyncio.run(_train(folder, place, chance, end))


async def _train(folder: Path, place: EngineSetup, chance: random.Random, end: Moment | None) -> None:
    checkpoints, spill = folder / "checkpoints", folder / "spill"
    checkpoints.mkdir(exist_ok=True)
    with Folder.open(checkpoints) as inside:
        recover_folders(inside)
    spill.mkdir(exist_ok=True)
    async with StressEngine(place, spill, watchdog=WATCHDOG_S) as engine:
        whole = sorted(checkpoints.glob("step-*"))
        trainer = await (Trainer.load(engine, whole[-1], update=place.update) if whole else
                         new_trainer(engine, RECIPE, place.update))
        saves = 0
        while trainer.step_count < STEPS:
            await _step(trainer)
            if trainer.step_count % _SAVE_EVERY == 0:
                if end is not None and end.save == saves:
                    end.wait()
                await _save(trainer, checkpoints, wait=chance.random() < 0.5)
                saves += 1
        await trainer.saved()
        state = await state_of(trainer)
        tell(f"done {digest_of(state)}")
        await trainer.model.release()


async def _step(trainer: Trainer) -> None:
    report = await trainer.step(*batch(trainer.step_count + 1))
    tell(f"step {'played' if report.played else 'by coroutines'}")


async def _save(trainer: Trainer, checkpoints: Path, *, wait: bool) -> None:
    """Save a checkpoint, at once or during the next steps; then remove older ones."""
    await trainer.saved()
    tell("save")
    began_s = time.monotonic()
    await trainer.save(checkpoints / f"step-{trainer.step_count:06d}", wait=wait)
    if not wait and trainer.step_count < STEPS:
        await _step(trainer)
    await trainer.saved()
    tell(f"saved {time.monotonic() - began_s}")
    with Folder.open(checkpoints) as inside:
        for old in sorted(checkpoints.glob("step-*"))[:-_KEEP]:
            remove_folder(inside, old.name)


def digest_of(state: State) -> str:
    """Return a digest of weights and moments."""
    return xxh3_128_hexdigest(b"".join(value.tobytes() for value in state.values()))


def tell(what: str) -> None:
    """Write a line to stdout, at once and as a whole."""
    os.write(1, f"{what}\n".encode())
