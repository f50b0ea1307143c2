"""The arrangement of a trainer's steps on its model's engine: their passes, and the outcome of `recompute`.

arrangement.py finds the best one. This module supplies the caps and the other tiles under them, and remembers choices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from asynctile.errors import BudgetError
from asynctile.layers.activations import Room, sizes_of
from asynctile.layers.arrangement import Arrangement, Recorded, Surroundings, arrange
from asynctile.layers.model_state import ModelState
from asynctile.layers.nodes import Nodes
from asynctile.layers.programs import PROGRAMS
from asynctile.layers.rows import Rows
from asynctile.schedule.schedule import RAM

T = TypeVar("T")


class Keeping:
    """The choices for `model`, the same on all `nodes`. recompute: as in Trainer."""

    def __init__(self, model: ModelState, recompute: bool | str, nodes: Nodes) -> None:
        self._nodes = nodes
        self._model = model
        self._runtime = model.runtime
        self._recompute = recompute
        #: the latest choices by kind, batch and caps, at most as many as there are programs
        self._chosen: dict[Hashable, Arrangement] = {}

    async def run(self, kind: str, rows: Rows, update: str, run: Callable[[Rows, int], Awaitable[T]]) -> T:
        """Call `run` with the rows in their passes and the number of parts that keep activations; return its result.

        Runs on the device's loop. update: as in Trainer.

        The choice is made once for a batch and caps, whatever part of the caps is lent out meanwhile, so steps repeat. If other
        tiles have come since and the program is refused, "auto" keeps no activations from then on.
        """
        arenas = [tier.arena for tier in self._runtime.tiers.from_the_top()[: RAM + 1]]  # other devices are like the first
        rooms = tuple(Room(arena.cap, arena.alignment) for arena in arenas)
        tuning = self._model.parameters.tuning
        key = tuning, kind, update, rows.shape, rooms
        if key not in self._chosen:
            self._choose(key, await self._nodes.arrangement(await self._arranged(kind, rows, update, rooms)))
        chosen = self._chosen[key]
        try:
            return await run(rows.in_passes(chosen.passes), chosen.kept)
        except BudgetError:
            if not chosen.kept or isinstance(self._recompute, bool) or self._nodes.count > 1:
                raise
        self._choose(key, Arrangement(chosen.passes, 0))
        return await run(rows.in_passes(chosen.passes), 0)

    def _choose(self, key: Hashable, arrangement: Arrangement) -> None:
        self._chosen[key] = arrangement
        if len(self._chosen) > PROGRAMS:
            del self._chosen[next(iter(self._chosen))]

    async def _arranged(self, kind: str, rows: Rows, update: str, rooms: tuple[Room, ...]) -> Arrangement:
        model, runtime = self._model, self._runtime
        async with runtime.exclusive():  # so no other job's temporaries are counted
            found = {residency.tile for tier in runtime.tiers.from_the_top() for residency in tier.ledger.resident}

        def chosen() -> Arrangement:
            share = rows.on_one(self._nodes.devices, model.tiling.row_tokens)
            standing = set(model.standing())
            around = Surroundings(
                rooms=[room.without(found - standing) for room in rooms],
                standing=sizes_of(standing),
                spills=runtime.tiers.spill is not None,
                cores=1 if runtime.tiers.device.workers is None else runtime.tiers.device.workers.threads,
                rates=runtime.tiers.rates,
                copies=runtime.device.name == "emulated",
                update=update,
            )
            recorded = Recorded(kind, model.parameters)
            best = arrange(recorded, share, around, precision=runtime.life.precision, recompute=self._recompute)
            if share is rows:  # one device carries all, so the step is the one that was compared
                whole = rows.in_passes(best.passes)
                model.keep_program(recorded.latest(whole, best.kept), kind, whole, best.kept)
            return best

        return await runtime.compute(chosen)
