"""The process that scenario `kill` kills: it trains with checkpoints and tells when saves begin and end, and its result.

Covers one process, forked by killer.py. A run that finds checkpoints resumes from the newest, as `asynctile train --resume`.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from asynctile.cli.stress.models import Recipe, batch, draw_training_place, new_trainer, state_of
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.round import WATCHDOG_S
from asynctile.layers import Trainer
from asynctile.storage.beside import recover_folders, remove_folder
from asynctile.storage.inside import Folder

__all__ = ["RECIPE", "STEPS", "train"]

STEPS = 6
_SAVE_EVERY, _KEEP = 2, 2
RECIPE = Recipe(replicas=2)


def train(folder: Path, seed: int | None, pipe: int) -> None:
    """Train to the last step in the place that `seed` draws, or with None all in RAM. Writes lines to `pipe`."""
    chance = random.Random(seed)
    place = EngineSetup(device="cpu", spill=False) if seed is None else draw_training_place(chance, RECIPE)
    asyncio.run(_train(folder, place, chance, pipe))


async def _train(folder: Path, place: EngineSetup, chance: random.Random, pipe: int) -> None:
    checkpoints, spill = folder / "checkpoints", folder / "spill"
    checkpoints.mkdir(exist_ok=True)
    with Folder.open(checkpoints) as inside:
        recover_folders(inside)
    spill.mkdir(exist_ok=True)
    async with StressEngine(place, spill, watchdog=WATCHDOG_S) as engine:
        whole = sorted(checkpoints.glob("step-*"))
        trainer = await (Trainer.load(engine, whole[-1], update=place.update) if whole else
                         new_trainer(engine, RECIPE, place.update))
        tell(pipe, f"begin {trainer.step_count}")
        while trainer.step_count < STEPS:
            await _step(trainer, pipe)
            if trainer.step_count % _SAVE_EVERY == 0:
                await _save(trainer, checkpoints, pipe, wait=chance.random() < 0.5)
        await trainer.saved()
        state = await state_of(trainer)
        tell(pipe, f"done {xxh3_128_hexdigest(b''.join(value.tobytes() for value in state.values()))}")
        await trainer.model.release()


async def _step(trainer: Trainer, pipe: int) -> None:
    report = await trainer.step(*batch(trainer.step_count + 1))
    tell(pipe, f"step {report.step} {'played' if report.played else 'by coroutines'}")


async def _save(trainer: Trainer, checkpoints: Path, pipe: int, *, wait: bool) -> None:
    """Save a checkpoint, at once or during the next steps; then remove older ones."""
    await trainer.saved()
    tell(pipe, "save")
    await trainer.save(checkpoints / f"step-{trainer.step_count:06d}", wait=wait)
    if not wait and trainer.step_count < STEPS:
        await _step(trainer, pipe)
    await trainer.saved()
    tell(pipe, "saved")
    with Folder.open(checkpoints) as inside:
        for old in sorted(checkpoints.glob("step-*"))[:-_KEEP]:
            remove_folder(inside, old.name)


def tell(pipe: int, what: str) -> None:
    os.write(pipe, f"{what}\n".encode())
