"""What a trainer's `recompute` comes to on the engine of its model: how many parts of each program keep their activations.

How much fits is activations.py; here are the caps, what else stands under them, and what has been chosen before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from asynctile.errors import BudgetError
from asynctile.layers.activations import Activations, Room, kept_if, most_kept, sizes_of
from asynctile.layers.model import Model
from asynctile.layers.programs import PROGRAMS
from asynctile.layers.rows import Rows

T = TypeVar("T")


class Keeping:
    """Chooses for `model`. recompute: as in Trainer."""

    def __init__(self, model: Model, recompute: bool | str) -> None:
        self._model = model
        self._engine = model.engine
        self._recompute = recompute
        #: for "auto", by kind, batch and caps; those chosen last, as there are programs
        self._chosen: dict[Hashable, int] = {}

    async def run(self, kind: str, rows: Rows, run: Callable[[int], Awaitable[T]]) -> T:
        """On the device's loop: `run` a program in which that many parts keep their activations.

        "auto" chooses once for a batch and caps, whatever of them is lent meanwhile: so steps repeat. Where other tiles have
        come since then and the program is refused, nothing is kept from now on.
        """
        if isinstance(self._recompute, bool):
            return await run(kept_if(self._recompute, self._model.config))
        arenas = [tier.arena for tier in self._engine.tiers.from_the_top()]
        rooms = tuple(Room(arena.cap, arena.alignment) for arena in arenas)
        key = kind, rows.batch, rows.length, rows.micro_batches, rooms
        if key not in self._chosen:
            self._choose(key, await self._most_kept(kind, rows, rooms))
        try:
            return await run(self._chosen[key])
        except BudgetError:
            if not self._chosen[key]:
                raise
        self._choose(key, 0)
        return await run(0)

    def _choose(self, key: Hashable, kept: int) -> None:
        self._chosen[key] = kept
        if len(self._chosen) > PROGRAMS:
            del self._chosen[next(iter(self._chosen))]

    async def _most_kept(self, kind: str, rows: Rows, rooms: tuple[Room, ...]) -> int:
        model, engine = self._model, self._engine
        async with engine.exclusive():  # what is alive during a job is not there then
            found = {residency.tile for tier in engine.tiers.from_the_top() for residency in tier.ledger.resident}

        def most() -> int:
            standing = set(model.standing())
            left = [room.without(found - standing) for room in rooms]
            activations = Activations(kind, model.config, model.tiling, rows, engine.precision)
            return most_kept(activations, sizes_of(standing), left)

        return await engine.compute(most)
