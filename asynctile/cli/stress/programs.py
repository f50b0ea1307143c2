"""Scenario `random`: a random tile program under a budget of at most half of it, compared bitwise with plain arrays."""

from __future__ import annotations

from asynctile import Engine
from asynctile.cli.stress.place import MOST_DEVICES, EngineSetup, draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.work import Workload
from asynctile.cli.stress.writer import LEAST_OPERATIONS, write_program
from asynctile.share import runtime_of

__all__ = ["play"]

#: Share of rounds that launch operations one by one, each as a coroutine of its own, without a plan.
_LAUNCHED = 0.15
#: Runs after the first one; they are played if the program fetches nothing.
_REPEATED = 2


async def play(round: Round) -> bool:
    """Play a round; return whether it counts: enough operations, a working set of twice the budget, an eviction."""
    launched = round.chance.random() < _LAUNCHED
    work = write_program(round.chance, passing=not launched)
    place = draw_place(round.chance, work.demand, devices=1 if launched else MOST_DEVICES)
    work = work.over(place.devices, round.chance)
    expected = work.interpret(work.values)
    async with round.engine(place) as engine:
        await work.store(engine)
        before = _written(engine)
        outcome = await (work.launch(engine) if launched else work.run(engine))
        round.tally.run(outcome.played)
        counts = _strains(engine, work, place, evicted=_written(engine) > before)
        (await work.read(engine, outcome)).expect(expected)
        for _ in range(0 if launched else _REPEATED):
            expected, outcome = work.interpret(expected.tiles), await work.run(engine)
            round.tally.run(outcome.played)
            (await work.read(engine, outcome)).expect(expected)
        await work.release(engine)
    return counts


def _written(engine: Engine) -> int:
    """Return the bytes that all devices have written below them."""
    return sum(top.written_nbytes for top in runtime_of(engine).tiers.tops)


def _strains(engine: Engine, work: Workload, place: EngineSetup, *, evicted: bool) -> bool:
    wanted = work.demand.rounded(place.alignment).resident_nbytes
    operations = engine.statistics().operations
    return evicted and operations >= LEAST_OPERATIONS and place.budget is not None and wanted >= 2 * place.budget
