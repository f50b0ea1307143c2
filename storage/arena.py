"""The arena of a tier: how its cap is cut into slots, and which slots are free.

Pure bookkeeping. The memory itself belongs to the device (asynctile/device), who stands in a slot is decided by
storage/ledger.py. Slots have one of a few fixed sizes ("pools"), so that there is no fragmentation: any free slot
of a pool takes any tile of that pool. The way not taken, a general allocator, either moves tiles about to make
room or cannot promise that a budget at the floor works.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from asynctile.storage.demand import ALIGNMENT, Demand
from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size


class Slot:
    """A fixed place in the arena. `guard` holds what its next owner must wait for (events; opaque here)."""

    __slots__ = ("pool", "index", "guard")

    def __init__(self, pool: Pool, index: int) -> None:
        self.pool = pool
        self.index = index
        self.guard: tuple[object, ...] = ()


class Pool:
    """Slots of one size; lowest index first, so that untouched memory stays untouched.

    limit: number of slots; None: as many as the arena's cap in bytes allows. made: slots that exist, used or free.
    expected: slots that it will come to, as far as is known: memory for as many may be taken at once.

    Free slots wait in two rows. Those of dead tiles go first to tiles that will be overwritten whole, newest first: compute has
    just been there. Those of evicted tiles go first to loads, oldest first: their write-back is the most likely to have ended.
    """

    __slots__ = ("arena", "slot_nbytes", "limit", "expected", "memory", "used", "made", "_dead", "_evicted", "_dropped")

    def __init__(self, arena: Arena, slot_nbytes: int, limit: int | None) -> None:
        self.arena = arena
        self.slot_nbytes = slot_nbytes
        self.limit = limit
        self.expected = limit or 0
        self.memory: Any = None
        self.used = 0
        self.made = 0
        self._dead: deque[Slot] = deque()
        self._evicted: deque[Slot] = deque()
        #: slots whose memory was let go, to be made again first
        self._dropped: list[Slot] = []

    @property
    def free(self) -> int | None:
        """How many slots can be taken; None: unbounded."""
        return None if self.limit is None else self.limit - self.used

    def take(self, *, for_load: bool) -> Slot | None:
        """A free slot, or None when there is none."""
        if for_load and self._evicted:
            slot = self._evicted.popleft()
        elif self._dead:
            slot = self._dead.popleft() if for_load else self._dead.pop()
        elif self._evicted:
            slot = self._evicted.popleft()
        elif self.made < self.limit if self.limit is not None else self.arena.may_grow(self.slot_nbytes):
            slot = self._dropped.pop() if self._dropped else Slot(self, self.made)
            self.made += 1
            self.arena.made_nbytes += self.slot_nbytes
        else:
            return None
        self.used += 1
        self.arena.used_nbytes += self.slot_nbytes
        return slot

    def give(self, slot: Slot, *, evicted: bool) -> None:
        self.used -= 1
        self.arena.used_nbytes -= self.slot_nbytes
        (self._evicted if evicted else self._dead).append(slot)

    def claim(self, slot: Slot) -> None:
        """Take this slot, which is free: it was given too early, or work that was written down looks for a tile there."""
        (self._evicted if slot in self._evicted else self._dead).remove(slot)
        self.used += 1
        self.arena.used_nbytes += self.slot_nbytes

    def free_slots(self) -> list[Slot]:
        """The slots that exist and are nobody's."""
        return [*self._dead, *self._evicted]

    def drop_free(self) -> list[Slot]:
        """Forget the free slots, so that the cap has room for other sizes; nothing may be in flight on them."""
        slots = self.free_slots()
        self._dead.clear()
        self._evicted.clear()
        self._dropped += slots
        self.made -= len(slots)
        self.arena.made_nbytes -= len(slots) * self.slot_nbytes
        self.expected = self.made
        return slots


class Arena:
    """All pools of one tier, largest last, under one cap in bytes (None: no cap).

    A cap that holds everything has a pool for each size, which grows while the cap allows. Otherwise, if tiles can leave
    (`evictable`), the arena is `divided` between two pools, so that a tile of either size can always push out another
    of its size.

    alignment: of every slot. argument: what gave the cap, for messages; remedy: how it is raised, if not by that.
    lent_nbytes: of the cap, to whoever borrowed it.
    rigid: memory cannot be let go slot by slot; where free slots of one size stand in the way of another, all is cut anew.
    """

    def __init__(
        self,
        cap: int | None,
        *,
        evictable: bool,
        alignment: int = ALIGNMENT,
        argument: str = "device_memory",
        remedy: str = "",
        rigid: bool = False,
    ) -> None:
        self.cap = cap
        self.rigid = rigid
        self.evictable = evictable
        self.alignment = alignment
        self.argument = argument
        self.remedy = remedy or f"raise {argument}"
        self.divided = False
        self.pools: list[Pool] = []
        self.used_nbytes = 0
        self.made_nbytes = 0
        self.lent_nbytes = 0
        self._promised_nbytes = 0

    @property
    def held_nbytes(self) -> int:
        """Of slots that are taken, and lent."""
        return self.used_nbytes + self.lent_nbytes

    @property
    def available(self) -> int | None:
        """The cap without what is lent."""
        return None if self.cap is None else self.cap - self.lent_nbytes

    def may_grow(self, nbytes: int) -> bool:
        return self.available is None or self.made_nbytes + nbytes <= self.available

    def lend(self, nbytes: int) -> bool:
        """Set `nbytes` of the cap aside, if the programs that it was cut for do not need them."""
        needed = max(self._promised_nbytes, self.made_nbytes) + nbytes
        if self.divided or (self.available is not None and needed > self.available):
            return False
        self.lent_nbytes += nbytes
        return True

    def pool_for(self, nbytes: int) -> Pool:
        """The smallest pool whose slots take `nbytes`."""
        for pool in self.pools:
            if nbytes <= pool.slot_nbytes:
                return pool
        raise BudgetError(
            f"a tile of {format_size(nbytes)} fits no slot here: {self.argument} is cut into slots of "
            f"{', '.join(format_size(pool.slot_nbytes) for pool in self.pools) or 'no size yet'}; "
            "reserve slots of that size first",
            floor=nbytes,
        )

    def free_slots(self) -> list[Slot]:
        """Those of all pools that exist and are nobody's."""
        return [slot for pool in self.pools for slot in pool.free_slots()]

    def fits(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether the present cut already serves `demand`. foreign: as in `check`."""
        have = [pool.slot_nbytes for pool in self.pools]
        if not self.divided:
            exact = demand.exact.keys() <= set(have) and self._grown_nbytes(demand, foreign) <= self._room()
            self._promise(demand, foreign, exact)
            return exact
        if demand.sizes[-1] > have[-1]:
            return False
        assert self.cap is not None
        # Large slots are what is left when the small ones are paid for: their floor is enough.
        wanted = [count for _, count in demand.divide(self.cap, self.argument)[:-1]] + [demand.floor[-1]]
        needed = dict.fromkeys(have, 0)
        places = [min(slot for slot in have if size <= slot) for size in demand.sizes]
        for place, count in zip(places, wanted, strict=True):
            needed[place] += count
        # A tile above the small size must not find itself in a pool that was counted for small ones.
        if any(self.pool_for(size).slot_nbytes != places[-1] for size in demand.exact if size > demand.small):
            return False
        return all(needed[pool.slot_nbytes] <= (pool.limit or 0) for pool in self.pools)

    def is_cut_for(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether the present cut is the one that `cut` would make."""
        if not self.divided or self.cap is None or _everything(demand, foreign) <= self._room():
            return not self.divided and self.fits(demand, foreign)
        return [(pool.slot_nbytes, pool.limit) for pool in self.pools] == demand.divide(self.cap, self.argument)

    def holds(self, demand: Demand) -> bool:
        """Whether every tile of `demand` can stay at once."""
        if not self.divided:
            return True
        needed = dict.fromkeys((pool.slot_nbytes for pool in self.pools), 0)
        for size, count in demand.exact.items():
            needed[self.pool_for(size).slot_nbytes] += count
        return all(needed[pool.slot_nbytes] <= (pool.limit or 0) for pool in self.pools)

    def check(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> None:
        """BudgetError if the cap is below what `demand` needs: its floor, or everything where nothing can leave.

        foreign: tiles by size that are resident and not among the demand's.
        """
        if self.cap is None:
            return
        needed = _everything(demand, foreign)
        if self.evictable and needed > self._room():
            demand.check(self.cap, self.argument, self.remedy)
        elif needed > self.cap:
            raise BudgetError(
                f"{self.argument} of {format_size(self.cap)} is below the floor of {format_size(needed)} ({needed} bytes): "
                f"every tile that is alive at once must find a place in RAM; {self.remedy} or give spill a folder on a "
                "fast disk",
                floor=needed,
            )

    def keeps_all(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether nothing need leave: the arena is not divided and the cap holds everything."""
        return not self.divided and _everything(demand, foreign) <= self._room()

    def has_room_for(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether `cut` would take away no slot."""
        return not self.divided and self._grown_nbytes(demand, foreign) <= self._room()

    def must_be_empty(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether tiles must leave before `cut`: the pools that there are will not stay."""
        stuck = self.rigid and self._grown_nbytes(demand, foreign) > self._room()
        return bool(self.pools) and (stuck or not self.keeps_all(demand, foreign))

    def cut(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> list[Pool]:
        """Make pools for `demand`; returns the new ones. Raises BudgetError when the cap is below the floor."""
        self.check(demand, foreign)
        if self.must_be_empty(demand, foreign):
            self.forget_pools()
        if _everything(demand, foreign) <= self._room():
            have = {pool.slot_nbytes for pool in self.pools}
            new = [Pool(self, size, None) for size in demand.exact.keys() - have]
            self.pools = sorted(self.pools + new, key=lambda pool: pool.slot_nbytes)
            self._promise(demand, foreign, True)
            return new
        assert self.cap is not None and self.evictable and not self.lent_nbytes
        self.divided = True
        self.pools = [Pool(self, size, count) for size, count in demand.divide(self.cap, self.argument)]
        return self.pools

    def forget_pools(self) -> None:
        """As before the first cut."""
        assert self.used_nbytes == 0, "an arena with tiles in it cannot be divided again"
        self.pools, self.divided, self.made_nbytes = [], False, 0

    def drop_free(self) -> list[Slot]:
        """Forget the free slots of all pools; their memory is the caller's to return."""
        return [slot for pool in self.pools for slot in pool.drop_free()]

    def withdraw(self, pools: list[Pool]) -> None:
        """Undo a `cut` whose pools got no memory."""
        self.pools = [pool for pool in self.pools if pool not in pools]
        self.divided = self.divided and bool(self.pools)

    def make_room(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> list[Slot]:
        """Free slots to let go of, so that pools can grow as `demand` wants; their memory is the caller's to return."""
        return [] if self.must_be_empty(demand, foreign) or self.has_room_for(demand, foreign) else self.drop_free()

    def _room(self) -> float:
        return math.inf if self.available is None else self.available

    def _promise(self, demand: Demand, foreign: Mapping[int, int] | None, kept: bool) -> None:
        if not kept:
            return
        self._promised_nbytes = self._grown_nbytes(demand, foreign)
        for pool in self.pools:
            size = pool.slot_nbytes
            pool.expected = max(pool.expected, demand.exact.get(size, 0) + (foreign or {}).get(size, 0))

    def _grown_nbytes(self, demand: Demand, foreign: Mapping[int, int] | None) -> int:
        """Bytes of the pools of an undivided arena grown to `demand`. Rigid memory is there once it is expected."""
        made, others = {pool.slot_nbytes: max(pool.made, pool.expected * self.rigid) for pool in self.pools}, foreign or {}
        sizes = {*made, *demand.exact}
        return sum(size * max(made.get(size, 0), demand.exact.get(size, 0) + others.get(size, 0)) for size in sizes)


def _everything(demand: Demand, foreign: Mapping[int, int] | None) -> int:
    """Bytes of every tile of `demand` and of those that are there already."""
    return demand.resident_nbytes + sum(size * count for size, count in (foreign or {}).items())
