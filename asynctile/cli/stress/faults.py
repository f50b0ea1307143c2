"""Scenario `faults`: one disk fault at a random transfer of a random program or of a training.

A fault that can be survived must be, with every byte right. Any other must end in a typed error that names tile, tier, file and
offset; then the engine must close, and the last checkpoint must load and continue. No byte may be silently wrong. Covers both
kinds of work; storage/faults.py makes the faults.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from asynctile import Engine
from asynctile.cli.stress.finding import Finding, expect_bytes
from asynctile.cli.stress.models import (
    TILE,
    State,
    batch,
    draw_recipe,
    draw_training_place,
    expect_state,
    loaded_trainer,
    new_trainer,
    state_of,
)
from asynctile.cli.stress.place import MOST_DEVICES, draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.work import Outcome, Workload
from asynctile.cli.stress.writer import write_program
from asynctile.errors import AsynctileError, TierError
from asynctile.layers import Trainer
from asynctile.measure.statistics import Statistics
from asynctile.share import runtime_of
from asynctile.storage.container import ALIGNMENT
from asynctile.storage.demand import align
from asynctile.storage.faults import FAULTS, SURVIVED, SURVIVED_LASTING, Faults

__all__ = ["is_named", "play"]

#: Shares of the rounds that train, and of the faults that last.
TRAINED, _LASTING = 0.2, 0.3
_STEPS, _SAVED = 5, (2, 4)
#: The tile, what failed, the tier, the file and the offset.
_SENTENCE = re.compile(r"tile \S+: cannot (read|write) .+ in the spill tier, spill file in .+, offset \d+: ")


class _Trial:
    """One fault: drawn, armed, and judged by its outcome."""

    def __init__(self, round: Round) -> None:
        chance = round.chance
        self.round = round
        self.faults = Faults(chance.getrandbits(32), delay_s=0.001)
        self.kind = chance.choice(sorted(FAULTS))
        self.lasting = chance.random() < _LASTING
        self.error: AsynctileError | None = None

    def arm(self, before: Statistics, after: Statistics, nbytes: int) -> None:
        """Arm the fault at a random transfer, of at most `nbytes`, among as many as there were between two moments."""
        moved = {"read": after.spill_read_bytes - before.spill_read_bytes,
                 "write": after.spill_written_bytes - before.spill_written_bytes}
        transfers = sum(moved[direction] for direction in FAULTS[self.kind].to) // align(nbytes, ALIGNMENT)
        self.faults.arm(self.kind, after=self.round.chance.randrange(max(transfers, 1)), lasting=self.lasting)

    async def meet(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` until its end or a typed error."""
        try:
            await work()
        except AsynctileError as error:
            self.error = error

    def judge(self) -> None:
        """Count the outcome; Finding if it must not happen."""
        tally = self.round.tally
        hit = self.faults.injected.total()
        if self.error is None:
            tally.survived += bool(hit)
            return
        what = f"{'lasting ' if self.lasting else ''}{self.kind} at one of {hit} transfers"
        if not hit:
            raise Finding("failed", f"there was an error without a fault: {self.error}") from self.error
        if self.kind in (SURVIVED_LASTING if self.lasting else SURVIVED):
            raise Finding("failed", f"{what} can be survived, but was not: {self.error}") from self.error
        if not is_named(self.error):
            raise Finding("failed", f"{what} led to an error that does not name tile, tier, file and offset: "
                                    f"{type(self.error).__name__}: {self.error}") from self.error
        tally.reported += 1


async def play(round: Round) -> bool:
    """Play a round. Every round counts, even if its fault met no transfer."""
    trial = _Trial(round)
    try:
        await (_train(trial) if round.chance.random() < TRAINED else _program(trial))
    finally:
        round.tally.injected.update(trial.faults.injected)
        round.tally.faulted += bool(trial.faults.injected)
    trial.judge()
    return True


async def _program(trial: _Trial) -> None:
    """Run a program three times: once to warm up, once to count its transfers, once with the fault."""
    round = trial.round
    work = write_program(round.chance)
    place = draw_place(round.chance, work.demand, spill=True, devices=MOST_DEVICES)
    work = work.over(place.devices, round.chance)
    expected = work.interpret(work.interpret(work.interpret(work.values).tiles).tiles)
    async with round.engine(place, wrap_spill=trial.faults.wrap) as engine:
        await work.store(engine)
        await work.run(engine)
        before = engine.statistics()
        round.tally.run((await work.run(engine)).played)
        trial.arm(before, engine.statistics(), max(work.demand.sizes))

        async def again() -> None:
            outcome = await work.run(engine)
            (await work.read(engine, outcome)).expect(expected)

        await trial.meet(again)
        if trial.error is not None:
            await _read_constants(engine, work, expected)
        trial.faults.disarm()
        await work.release(engine)


async def _read_constants(engine: Engine, work: Workload, expected: Outcome) -> None:
    """Check that after an error, tiles that no operation writes are unchanged, or that the tier reports them."""
    for tile in work.values.keys() - work.changed():
        try:
            found = await runtime_of(engine).read(tile)
        except AsynctileError:
            continue
        expect_bytes(f"tile {tile.name}, read after an error,", found, expected.tiles[tile])


async def _train(trial: _Trial) -> None:
    """Do a step, save, and do more steps with the fault; after an error another engine continues from the checkpoint.

    Finding if the last states differ from those of an undisturbed training.
    """
    round = trial.round
    recipe = draw_recipe(round.chance)
    place = draw_training_place(round.chance, recipe, spill=True)
    states, _ = await round.course.follow(recipe, _STEPS)
    checkpoint = round.folder / "checkpoint"
    async with round.engine(place, wrap_spill=trial.faults.wrap) as engine:
        trainer = await new_trainer(engine, recipe, place.update, round.tally)
        before = engine.statistics()
        await trainer.step(*batch(1))
        after = engine.statistics()
        await trainer.save(checkpoint)
        trial.arm(before, after, TILE * TILE * 4)
        await trial.meet(lambda: _go_on(trainer, states[_STEPS], checkpoint))
        trial.faults.disarm()
        await trainer.model.release()
    if trial.error is not None:
        place = draw_training_place(round.chance, recipe)
        async with round.engine(place) as engine:
            trainer = await loaded_trainer(engine, checkpoint, place.update, round.tally)
            await _go_on(trainer, states[_STEPS], checkpoint)
            await trainer.model.release()


async def _go_on(trainer: Trainer, last: State, checkpoint: Path) -> None:
    """Train to the last step, with a checkpoint on the way; Finding if anything differs from a run all in RAM."""
    while trainer.step_count < _STEPS:
        await trainer.step(*batch(trainer.step_count + 1))
        if trainer.step_count in _SAVED:
            await trainer.save(checkpoint)
    expect_state(await state_of(trainer), last, f"after step {_STEPS}")


def is_named(error: BaseException) -> bool:
    """Return whether a tier's error, or one that it caused, names all that a user needs to know."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TierError):
        cause = cause.__cause__
    return cause is not None and _SENTENCE.search(str(error)) is not None
