"""Scenario `cancel`: programs and every public coroutine disturbed at random moments, over and over.

To disturb a call is to cancel it, let it time out, or end the loop that it runs on (disturb.py). A cancelled program is run
again from the beginning. The moment is a number of turns of the caller's loop or a time, so that it falls into every wait of
caller and engine. Covers programs; lives.py covers all calls, steps among them, and opening and closing.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial

from asynctile.cli.stress.disturb import Reached, disturbed, draw_disturbance, thrown_away
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.lives import play_calls, play_lives
from asynctile.cli.stress.place import MOST_DEVICES, draw_place
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.work import Outcome
from asynctile.cli.stress.writer import write_program

__all__ = ["play"]

_TURNS = 40


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    with thrown_away() as ignored:
        await round.chance.choices(list(PLAYS), list(PLAYS.values()))[0](round)
        gc.collect()
    if ignored:
        raise Finding("failed", f"coroutines that were discarded with their loop failed: {'; '.join(ignored)}")
    return True


async def play_program(round: Round) -> None:
    """Disturb the runs of a program."""
    work = write_program(round.chance)
    expected = work.interpret(work.values)
    place = draw_place(round.chance, work.demand, devices=MOST_DEVICES)
    work = work.over(place.devices, round.chance)
    async with round.engine(place) as engine:
        await work.store(engine)
        began = time.monotonic()
        await work.run(engine)
        usual_s = time.monotonic() - began
        for _ in range(3):
            await work.store(engine)
            # Here, at a turn or at a time: that covers all waits of the caller.
            how = replace(draw_disturbance(round.chance, 0, usual_s, _TURNS), elsewhere=False)
            if how.how == "loop ends":
                how = replace(how, how="cancel")
            landed = await disturbed(partial(work.run, engine), how, Reached(0))
            round.tally.disturb("Runtime.start", how.how, landed, place.kind)
        await work.store(engine)
        outcome: Outcome = await work.run(engine)
        (await work.read(engine, outcome)).expect(expected)
        await work.release(engine)


#: Plays of a round, with the weight of each in the draw.
PLAYS = {play_program: 2, play_calls: 6, play_lives: 2}
