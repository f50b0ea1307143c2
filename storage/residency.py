"""The residency ledger: which tile stands in which slot, and what must move so that an operation can run.

Decides, moves nothing: `admit` and `prefetch` append moves to a list that asynctile/memory/tier.py carries out. Decisions
follow program order only, never the clock, so a program under a budget always moves the same bytes. The victim is the
tile whose next use is furthest away (Belady's MIN), found in a heap that forgets stale entries lazily.

Nobody ever waits for a slot here: a slot may change hands while work on it is still under way, because its next
owner waits, on the streams, for the events of the last one. So an operation can run whenever its own tiles fit
together, and two operations cannot starve each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asynctile.storage.arena import Arena, Pool, Slot
from asynctile.storage.errors import AsynctileError, BudgetError
from asynctile.storage.sizes import format_size
from asynctile.storage.tile import NEVER, Tile


class Backing(Protocol):
    """The tier below: hands out places for tiles and takes them back."""

    def take(self, tile: Tile) -> Any: ...

    def give(self, tile: Tile) -> None: ...


@dataclass(slots=True, eq=False)
class Load:
    """Copy the tile from its backing into `slot`."""

    tile: Tile
    slot: Slot


@dataclass(slots=True, eq=False)
class Place:
    """The tile will be written whole in `slot`: nothing to copy."""

    tile: Tile
    slot: Slot


@dataclass(slots=True, eq=False)
class Evict:
    """The tile leaves `slot`; `write_back`: copy it to its backing first. was_valid: `valid_below` before."""

    tile: Tile
    slot: Slot
    write_back: bool
    was_valid: bool


Move = Load | Place | Evict


class Ledger:
    """Residency of one tier. `backing` None: there is no tier below, nothing can be evicted.

    Invariants: a slot belongs to at most one tile; a tile with a slot is on the device; a dirty tile's only newest
    copy is on the device; a dead temporary has neither slot nor backing.
    """

    def __init__(self, arena: Arena, backing: Backing | None) -> None:
        self.arena = arena
        self.backing = backing
        self.peak_nbytes = 0
        #: all and only tiles that have a slot
        self.resident: set[Tile] = set()
        self._heaps: dict[Pool, list[tuple[int, int, Tile]]] = {}
        self._order = 0

    def admit(self, tiles: Sequence[Tile], access: str, moves: list[Move]) -> None:
        """Give each tile of an operation a slot, all or none; append moves in the order in which to issue them.

        access: one letter a tile, "r", "u" (bytes needed) or "w" (overwritten). BudgetError if they cannot fit;
        moves already decided then stand and must still be carried out.
        """
        for tile in tiles:
            if tile.slot is None:
                break
        else:
            return
        self._check_room(tiles)
        for tile, how in zip(tiles, access, strict=True):
            if tile.slot is None and how != "w" and not tile.valid_below:
                raise never_written(tile)
        held = set(tiles)
        for tile, how in zip(tiles, access, strict=True):
            if tile.slot is None:
                slot = self._slot_for(tile, held, moves, beyond=-1, for_load=how != "w")
                assert slot is not None
                self._settle(tile, slot, how != "w", moves)

    def prefetch(self, tile: Tile, needed_at: int, moves: list[Move]) -> bool:
        """Bring `tile` in ahead of position `needed_at`; False if that would push out a tile needed sooner."""
        slot = self._slot_for(tile, (), moves, beyond=needed_at, for_load=True)
        if slot is None:
            return False
        self._settle(tile, slot, True, moves)
        return True

    def evict_ahead(self, pool: Pool, beyond: int, moves: list[Move]) -> bool:
        """Free the slot of the tile used furthest away, before anyone needs it; False if none is used after `beyond`."""
        victim = self._victim(pool, (), beyond)
        if victim is None:
            return False
        moves.append(self._evict(victim, victim.slot, give=True))
        return True

    def used(self, tile: Tile, next_use: int, wrote: bool) -> None:
        """Record a use that was just issued and the next one."""
        tile.next_use = next_use
        if wrote:
            tile.dirty = True
        pool = tile.slot.pool
        if pool.limit is not None:
            self._push(pool, tile)

    def release(self, tile: Tile) -> Slot | None:
        """The tile is dead: free its slot (returned, so that its guard can be set) and its backing."""
        slot: Slot | None = tile.slot
        if slot is not None:
            tile.slot = None
            self.resident.discard(tile)
            slot.pool.give(slot, evicted=False)
        if tile.backing is not None and self.backing is not None:
            self.backing.give(tile)
            tile.backing = None
        tile.valid_below = tile.dirty = False
        return slot

    def evict(self, tile: Tile) -> Evict:
        """Move one tile off the device now (to change it below, or to cut the arena anew)."""
        slot: Slot = tile.slot
        return self._evict(tile, slot, give=True)

    def forget_pools(self) -> None:
        """The arena was cut anew: nothing is resident, and the old pools are gone."""
        self._heaps.clear()

    def undo(self, move: Move) -> None:
        """Take back a move that was decided and not made; of several, the last one first."""
        tile, slot = move.tile, move.slot
        if isinstance(move, Evict):
            slot.pool.take_back(slot)
            tile.slot, tile.dirty, tile.valid_below = slot, move.write_back or tile.dirty, move.was_valid
            self.resident.add(tile)
            if slot.pool.limit is not None:
                self._push(slot.pool, tile)
        else:
            tile.slot, tile.dirty = None, False
            self.resident.discard(tile)
            slot.pool.give(slot, evicted=True)

    def _settle(self, tile: Tile, slot: Slot, load: bool, moves: list[Move]) -> None:
        tile.slot = slot
        tile.dirty = not load
        self.resident.add(tile)
        moves.append(Load(tile, slot) if load else Place(tile, slot))
        used = self.arena.used_nbytes + self.arena.lent_nbytes
        if used > self.peak_nbytes:
            self.peak_nbytes = used
        if slot.pool.limit is not None:
            self._push(slot.pool, tile)

    def _slot_for(self, tile: Tile, held: Any, moves: list[Move], *, beyond: int, for_load: bool) -> Slot | None:
        """A free slot, or that of the tile used furthest away, if that lies beyond position `beyond`."""
        pool = self.arena.pool_for(tile.nbytes)
        slot = pool.take(for_load=for_load)
        if slot is not None:
            return slot
        victim = self._victim(pool, held, beyond)
        if victim is None:
            if beyond >= 0:
                return None
            raise self._no_room(tile, pool)
        slot = victim.slot
        moves.append(self._evict(victim, slot, give=False))
        return slot

    def _evict(self, victim: Tile, slot: Slot, give: bool) -> Evict:
        needed = victim.persistent or victim.next_use < NEVER
        write_back, was_valid = victim.dirty and needed, victim.valid_below
        if write_back:
            if self.backing is None:
                raise self._no_room(victim, slot.pool)
            if victim.backing is None:
                victim.backing = self.backing.take(victim)
            victim.valid_below = True
        victim.slot = None
        victim.dirty = False
        self.resident.discard(victim)
        if give:
            slot.pool.give(slot, evicted=True)
        return Evict(victim, slot, write_back, was_valid)

    def _victim(self, pool: Pool, held: Any, beyond: int) -> Tile | None:
        heap = self._heaps.get(pool, [])
        aside = []
        found = None
        while heap:
            entry = heap[0]
            tile = entry[2]
            if tile.slot is None or tile.slot.pool is not pool or tile.next_use != -entry[0]:
                heapq.heappop(heap)
            elif tile in held:
                aside.append(heapq.heappop(heap))
            else:
                found = tile if tile.next_use > beyond else None
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return found

    def _push(self, pool: Pool, tile: Tile) -> None:
        heap = self._heaps.setdefault(pool, [])
        self._order += 1
        heapq.heappush(heap, (-tile.next_use, self._order, tile))
        if len(heap) > 64 + 8 * pool.used:
            live = [entry for entry in heap if entry[2].slot is not None and entry[2].next_use == -entry[0]]
            heap[:] = {entry[2]: entry for entry in live}.values()
            heapq.heapify(heap)

    def _check_room(self, tiles: Sequence[Tile]) -> None:
        """Refuse before anything moves: do the tiles of one operation fit together?"""
        if self.arena.cap is None:
            return
        wanted: dict[Pool, int] = {}
        for tile in set(tiles):
            pool = self.arena.pool_for(tile.nbytes)
            wanted[pool] = wanted.get(pool, 0) + 1
        for pool, count in wanted.items():
            if pool.limit is not None and count > pool.limit:
                raise self._no_room(max(tiles, key=lambda tile: tile.nbytes), pool, count)

    def _no_room(self, tile: Tile, pool: Pool, count: int | None = None) -> BudgetError:
        limit = pool.made
        wanted = count if count is not None else limit + 1
        nbytes = wanted * pool.slot_nbytes
        return BudgetError(
            f"tile {tile.name} needs a slot of {format_size(pool.slot_nbytes)}; all {limit} that {self.arena.argument} "
            f"of {format_size(self.arena.cap or 0)} allows are held"
            + (f" by its operation, which needs {count}" if count is not None else " and nothing can leave them")
            + f"; {self.arena.remedy} or choose a smaller tile",
            floor=nbytes,
        )


def never_written(tile: Tile) -> AsynctileError:
    """What to raise when bytes are asked for that nobody has made."""
    return AsynctileError(f"tile {tile.name} was never written: store or compute it before reading it")
