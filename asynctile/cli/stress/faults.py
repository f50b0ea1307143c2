"""Scenario `faults`: one disk fault at a random transfer of a random program or of a training.

A fault that can be survived must be, with every byte right. Any other must end in a typed error that names tile, tier, file and
offset; then the engine must close, and the last checkpoint must load and continue. No byte may be silently wrong. Covers both
kinds of work; storage/faults.py makes the faults.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial

from asynctile import Engine
from asynctile.cli.stress.finding import Finding, expect_bytes
from asynctile.cli.stress.models import TILE
from asynctile.cli.stress.place import MOST_DEVICES, draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.training import StressTraining
from asynctile.cli.stress.work import Outcome, Workload
from asynctile.cli.stress.writer import write_program
from asynctile.errors import AsynctileError, TierError
from asynctile.measure.statistics import Statistics
from asynctile.share import runtime_of
from asynctile.storage.container import ALIGNMENT
from asynctile.storage.demand import align
from asynctile.storage.faults import FAULTS, SURVIVED, SURVIVED_LASTING, Faults

__all__ = ["is_named", "play"]

#: Shares of the rounds that train, and of the faults that last.
TRAINED, _LASTING = 0.2, 0.3
_STEPS = 5
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
    training = StressTraining(trial.round, _STEPS, spill=True)
    await training.begin()
    async with training.on_engine(wrap_spill=trial.faults.wrap) as (engine, trainer):
        before = engine.statistics()
        await training.step(trainer)
        after = engine.statistics()
        await trainer.save(training.checkpoint)
        trial.arm(before, after, TILE * TILE * 4)
        await trial.meet(partial(training.go_on, trainer, saving=True))
        trial.faults.disarm()
    if trial.error is not None:
        await training.resume()


def is_named(error: BaseException) -> bool:
    """Return whether a tier's error, or one that it caused, names all that a user needs to know."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TierError):
        cause = cause.__cause__
    return cause is not None and _SENTENCE.search(str(error)) is not None
