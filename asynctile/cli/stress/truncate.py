"""Scenario `truncate`: the spill file is cut during a training that uses it.

No byte may be silently wrong: either everything that was cut off was rewritten before it was read, or a typed error names tile,
tier, file and offset. Then the engine closes, and the next one continues from the checkpoint with the same folder.
"""

from __future__ import annotations

import asyncio
import os
import time

from asynctile.cli.stress.faults import is_named
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.errors import AsynctileError
from asynctile.storage.container import RawFile

__all__ = ["play"]

_STEPS = 6
#: Fewest and most cuts.
CUTS = (1, 3)


class Outsider:
    """Cuts the spill file behind the writer's back, as another process with the same file could."""

    def __init__(self) -> None:
        self._fd = -1

    def wrap(self, file: RawFile) -> RawFile:
        self._fd = file.fileno()  # type: ignore[attr-defined]
        return file

    def cut(self, part: float, *, back: bool) -> None:
        """Cut the file to a part of its length. back: then restore the length, with a hole for what was cut off."""
        nbytes = os.fstat(self._fd).st_size
        os.ftruncate(self._fd, int(part * nbytes))
        if back:
            os.ftruncate(self._fd, nbytes)


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    training, outsider = StressTraining(round, _STEPS, spill=True), Outsider()
    await training.begin()
    error: AsynctileError | None = None
    async with training.on_engine(wrap_spill=outsider.wrap) as (_, trainer):
        await trainer.save(training.checkpoint)
        await training.step(trainer)  # slower than later steps, because its plan is decided
        began_s = time.monotonic()
        await training.step(trainer)
        cutting = asyncio.create_task(_cut(round, outsider, (_STEPS - 2) * (time.monotonic() - began_s)))
        try:
            await training.go_on(trainer, saving=True)
        except AsynctileError as found:
            error = found
        finally:
            cutting.cancel()
            await asyncio.wait([cutting])
        if not cutting.cancelled():
            cutting.result()
    _judge(round, error)
    if error is not None:
        await training.resume(spill=True)
    return True


async def _cut(round: Round, outsider: Outsider, within_s: float) -> None:
    """Cut the file a few times within so many seconds."""
    chance = round.chance
    moments = sorted(chance.uniform(0, within_s) for _ in range(chance.randint(*CUTS)))
    parts = [(chance.choice((0.0, chance.random())), chance.random() < 0.3) for _ in moments]
    began_s = time.monotonic()
    for moment, (part, back) in zip(moments, parts, strict=True):
        await asyncio.sleep(began_s + moment - time.monotonic())
        await asyncio.to_thread(outsider.cut, part, back=back)
        round.tally.injected["truncated"] += 1


def _judge(round: Round, error: AsynctileError | None) -> None:
    """Count the outcome; Finding for an error that does not name the file that was cut."""
    tally = round.tally
    tally.faulted += 1
    if error is None:
        tally.survived += 1
        return
    if not is_named(error):
        raise Finding("failed", f"a cut spill file led to an error that does not name tile, tier, file and offset: "
                                f"{type(error).__name__}: {error}") from error
    tally.reported += 1
