"""A schedule bound to real tiers: which slot each of its places is, and whether that still holds.

A place is a number, and a ledger takes any free slot for a tile. So a schedule fits every cut of the caps that has
enough slots, without moving a byte, where the tiles stand as it begins (arrival.py). In a packed tier a place is a
range of bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from asynctile.errors import AsynctileError
from asynctile.execute.arrival import in_slots, stand, unknown
from asynctile.execute.template import Kernels, Template
from asynctile.execute.transfers import Transfers
from asynctile.launch.assembly import check_value
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.schedule.schedule import RAM, RESULT, TOP, Place, Schedule, Standing
from asynctile.storage.arena import Arena
from asynctile.storage.demand import align
from asynctile.storage.pool import Pool
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile, corner


class Bound:
    """A template on `tiers`, where its tiles stand as it begins. BudgetError if the spill file has too few blocks.

    slots: slot of each place.
    played: object that its runner is given.
    unwritten: its tiles that nobody had written before its first complete run.
    results: memory for its fetches, `results_nbytes` of it; others may use it between two runs.
    others_nbytes: by the number of the tier, bytes of slots that tiles of other programs have.
    numbers: numbers that kernels report, float64 by the program's indices.
    transfers: its transfers, which the host carries out.
    """

    def __init__(self, template: Template, tiers: Tiers, results: np.ndarray, unwritten: Collection[Tile] = ()) -> None:
        self.template = template
        self.tiers = tiers
        self.unwritten = unwritten
        self.slots: Mapping[Place, Slot] = _slots(self.schedule, tiers)
        self.numbers = template.numbers_on(tiers.device)
        self._results = _parts(results, self.schedule.program)
        # Not a method of self: `played` would then refer back to its owner.
        self.played: Any = template.bound(partial(_array, tiers, self.slots, self._results), self.numbers)
        self.transfers = Transfers(self.schedule, tiers, self.slots)
        #: arrays where the host writes inputs before a run, and at each mark; inputs that it writes to the spill file
        self._inputs = self._arrays(self.schedule.start)
        self._below = frozenset(self.schedule.inputs_below())
        self._rewritten = {mark: self._arrays(stands) for mark, stands in self.schedule.at.items()}
        self._is_at_seam = self.schedule.repeats
        stand(tiers, self.schedule.start, self.slots)
        self._look()

    @property
    def schedule(self) -> Schedule:
        return self.template.schedule

    async def fill(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Give the program's inputs values, by name.

        The last run must be over. TierError if the spill file does not take one.
        """
        events = []
        for name, value in inputs.items():
            tile = self.schedule.program.inputs[name]
            check_value(tile, value)
            if tile in self._inputs:
                np.copyto(self._inputs[tile], value)
            elif tile in self._below:
                events.append(self.transfers.fill(tile, value))
        for event in events:
            await self.tiers.run_ahead.settled(event)
        for event in events:
            if event.error is not None:
                await self.tiers.run_ahead.settle()  # so that nobody else meets the error
                raise event.error

    def put(self, mark: str, tile: Tile, value: np.ndarray) -> None:
        """Write `value` into an input tile at a mark, a named position at which the host looks at results.

        Call it when all work before the mark is over, and only for inputs that the program lists in `rewritten` there. Neither
        is checked. KeyError if the tile is not an input with a slot in RAM at that mark.
        """
        np.copyto(self._rewritten[mark][tile], value)

    def fetch(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Copy the results of the last run, which is over, to the host."""
        for number, fetch in enumerate(self.schedule.program.fetches):
            tile = fetch.tile
            target = outputs[fetch.key][fetch.index]
            target[...] = corner(self._results[number].view(tile.dtype).reshape(tile.shape), target.shape)

    def ended(self) -> None:
        """Record that a run has reached its end: all tiles of the program are written, and stand at its seam."""
        if self.unwritten or not self._is_at_seam:
            stand(self.tiers, self.schedule.end, self.slots)
            self.unwritten, self._is_at_seam = (), True
            self._look()

    def _arrays(self, stands: Iterable[Standing]) -> dict[Tile, np.ndarray]:
        """Return the arrays of the inputs that have slots in RAM."""
        tiers, inputs = self.tiers, set(self.schedule.program.inputs.values())
        found = in_slots((one for one in stands if one.tile in inputs), TOP if tiers.link is None else RAM)
        return {
            tile: tiers.host.memory.array(self.slots[one.place], tile.shape, tile.dtype)
            for tile, one in found.items() if one.place is not None
        }  # fmt: skip

    def holds(self, kernels: Kernels) -> bool:
        """Return whether the schedule can run again: `kernels` are those that its template was made with, and it `stands`."""
        same = all(kernels.get(name) is kernel for name, kernel in self.template.kernels.items())
        return self.schedule.repeats and same and self.stands()

    def stands(self) -> bool:
        """Return whether the tiles stand at the program's seam now, so that a schedule that begins there can run.

        This is so if nothing has moved since the last look, or if all tiles are in their slots and the other slots are free.
        """
        return self._is_at_seam and (self._stamp == _stamp(self.tiers) or self._stands_again())

    def _stands_again(self) -> bool:
        """Return whether all its tiles are in their slots and its other slots are free, although tiles have come or gone since.

        Always False where a tier is divided, since tiles come and go there.
        """
        tiers = self.tiers.from_the_top()
        if any(tier.arena.divided for tier in tiers) or not self.schedule.repeats:
            return False
        own = set()
        for one in self.schedule.start:
            residency = tiers[one.tier].of(one.tile)
            slot = None if one.place is None else self.slots[one.place]
            failed = residency.written is not None and residency.written.error is not None
            if failed or residency.state is not one.state or residency.slot is not slot:
                return False
            own.add(slot)
        free = {slot for tier in tiers for slot in tier.arena.free_slots()}
        if not free.issuperset(slot for slot in self.slots.values() if slot not in own):
            return False
        if unknown(self.tiers, self.schedule.start):
            return False
        self._look()
        return True

    def _look(self) -> None:
        """Remember the present state of the tiers, for `stands`, and the bytes of other programs there."""
        tiers = self.tiers.from_the_top()
        self.others_nbytes = [_others_nbytes(self.schedule, tier, number) for number, tier in enumerate(tiers)]
        self._stamp = _stamp(self.tiers)


def results_nbytes(program: Program) -> int:
    """Return how much memory the results of a program take, in bytes."""
    return sum(align(fetch.tile.nbytes) for fetch in program.fetches)


def _parts(results: np.ndarray, program: Program) -> list[np.ndarray]:
    """Return the part of the memory for each fetch, in order."""
    sizes = [fetch.tile.nbytes for fetch in program.fetches]
    ends = accumulate((align(size) for size in sizes), initial=0)
    return [results[begin : begin + size] for begin, size in zip(ends, sizes, strict=False)]


def _stamp(tiers: Tiers) -> tuple[Any, ...]:
    """Return a value that changes whenever a tile moves or a slot may be gone."""
    return tuple(
        (tier.ledger.history.count, tier.arena.made_nbytes, tier.arena.ground, *tier.arena.pools)
        for tier in tiers.from_the_top()
    )


def _others_nbytes(schedule: Schedule, tier: Tier, number: int) -> int:
    own = sum(one.place.nbytes for one in schedule.start if one.place is not None and one.tier == number)
    return tier.arena.used_nbytes - own


def _slots(schedule: Schedule, tiers: Tiers) -> dict[Place, Slot]:
    """Return the slot of each place: a standing tile's own slot, and any free slot for the others.

    In a packed tier, the slot is the place's range of bytes.
    """
    found: dict[Place, Slot] = {}
    others: dict[Pool, dict[Place, None]] = defaultdict(dict)
    from_the_top = tiers.from_the_top()
    for one in schedule.start:
        if one.place is not None and not from_the_top[one.tier].arena.packed:
            slot = from_the_top[one.tier].of(one.tile).slot
            assert slot is not None, f"{one.tile.name} does not stand where {schedule.program.name} begins"
            found[one.place] = slot
    for place in schedule.places():
        if place in found or place.tier < 0:
            continue
        arena = from_the_top[place.tier].arena
        if arena.packed:
            found[place] = arena.range_at(place.index, place.nbytes)
        else:
            others[_pool(arena, place)][place] = None
    for pool, places in others.items():
        pool.tidy()  # tiles that came or left have changed the order
        taken = [pool.take(for_load=False) for _ in places]
        free = [slot for slot in taken if slot is not None]
        for slot in reversed(free):
            pool.give(slot, evicted=False)
        if len(free) < len(places):
            raise AsynctileError(f"{len(free)} slots of {pool.slot_nbytes} bytes are free, but {schedule.program.name} needs "
                                 f"{len(places)}; this is a bug in asynctile")
        found.update(zip(places, free, strict=True))
    return found


def _pool(arena: Arena, place: Place) -> Pool:
    return next(pool for pool in arena.pools if pool.slot_nbytes == place.nbytes)


def _array(
    tiers: Tiers, slots: Mapping[Place, Slot], results: Sequence[np.ndarray], place: Place, shape: tuple[int, ...], dtype: Any
) -> Any:
    """Return the array at `place`, with this shape and dtype: on the device, in RAM, or in the memory for results."""
    if place.tier == RESULT:
        return results[place.index].view(dtype).reshape(shape)
    return tiers.from_the_top()[place.tier].memory.array(slots[place], shape, dtype)
