"""The arena of one tier: how its cap is cut into slots of a few sizes, or packed, with tiles at any offset.

Pure bookkeeping. The memory itself belongs to the device (asynctile/device). storage/ledger.py decides which tile gets a slot,
storage/pool.py knows the free slots of one size, and storage/ground.py knows which bytes are taken. An arena works in one of
three ways:
- Its cap holds everything: one pool for each tile size, growing as needed.
- Its cap is too small and the next work is unknown: it is divided. Any free slot of a pool fits, so a cap at the floor works.
- Its cap is too small and a whole step is known: it is packed. The plan gives every tile its address.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from asynctile.storage.demand import ALIGNMENT, Demand, align
from asynctile.storage.errors import BudgetError
from asynctile.storage.ground import Ground
from asynctile.storage.pool import Pool
from asynctile.storage.sizes import format_size
from asynctile.storage.slot import Slot


class Arena:
    """All pools of one tier, by ascending slot size, under one cap in bytes (None: no cap).

    If the cap holds everything, pools grow within it. Otherwise, if tiles can be evicted (`evictable`), the arena is `divided`
    between at most two pools, so that a tile of either size can always evict one of its size, or it is `packed` and has no
    pools. In both cases it has a `ground`, which is kept as long as the cap stays the same.

    alignment: of every slot, in bytes. argument, remedy: the option that set the cap, and how to raise the cap, for messages.
    lent_nbytes: the part of the cap that is lent. rigid: memory cannot be released slot by slot; if free slots of one size
    block another size, the whole arena is cut anew.
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
        self.packed = False
        self.ground: Ground | None = None
        self.pools: list[Pool] = []
        self.used_nbytes = 0
        self.made_nbytes = 0
        self.lent_nbytes = 0
        self._promised_nbytes = 0

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots that are taken, plus the bytes that are lent."""
        return self.used_nbytes + self.lent_nbytes

    @property
    def available(self) -> int | None:
        """The cap in bytes minus the bytes that are lent; None if there is no cap."""
        return None if self.cap is None else self.cap - self.lent_nbytes

    @property
    def counted_nbytes(self) -> int:
        """Bytes of the taken slots, counted anew from the pools and the ground (a check on `used_nbytes`)."""
        taken = sum(pool.used * pool.slot_nbytes for pool in self.pools)
        return taken if self.ground is None else taken + self.ground.taken_nbytes

    def may_grow(self, nbytes: int) -> bool:
        return self.available is None or self.made_nbytes + nbytes <= self.available

    def may_lend(self, nbytes: int) -> bool:
        """Return whether the programs that the arena was cut for can spare `nbytes` of the cap."""
        needed = max(self._promised_nbytes, self.made_nbytes) + nbytes
        return not self.divided and (self.available is None or needed <= self.available)

    def lend(self, nbytes: int) -> bool:
        """Set `nbytes` of the cap aside for a borrower; return False, and do nothing, if the programs need them."""
        if not self.may_lend(nbytes):
            return False
        self.lent_nbytes += nbytes
        return True

    def pool_for(self, nbytes: int) -> Pool:
        """Return the pool with the smallest slots that hold `nbytes`; BudgetError if there is none."""
        for pool in self.pools:
            if nbytes <= pool.slot_nbytes:
                return pool
        raise BudgetError(
            f"a tile of {format_size(nbytes)} fits no slot: {self.argument} is cut into slots of "
            f"{', '.join(format_size(pool.slot_nbytes) for pool in self.pools) or 'no size yet'}; "
            "reserve slots of that size first",
            floor=nbytes,
        )

    def free_slots(self) -> list[Slot]:
        """Return the free slots of all pools."""
        return [slot for pool in self.pools for slot in pool.free_slots()]

    def fits(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether the pools, as they are, already serve `demand`. foreign: as in `check`."""
        if self.packed:
            return False
        have = [pool.slot_nbytes for pool in self.pools]
        if not self.divided:
            exact = demand.exact.keys() <= set(have) and self._grown_nbytes(demand, foreign) <= self._room()
            self._promise(demand, foreign, exact)
            return exact
        if demand.sizes[-1] > have[-1]:
            return False
        assert self.cap is not None
        # The large pool gets the bytes that the small pool leaves, so here only its floor is required.
        wanted = [count for _, count in demand.divide(self.cap, self.argument)[:-1]] + [demand.floor[-1]]
        needed = dict.fromkeys(have, 0)
        places = [min(slot for slot in have if size <= slot) for size in demand.sizes]
        for place, count in zip(places, wanted, strict=True):
            needed[place] += count
        # A tile above the small size must not land in a pool that was sized for small tiles.
        if any(self.pool_for(size).slot_nbytes != places[-1] for size in demand.exact if size > demand.small):
            return False
        return all(needed[pool.slot_nbytes] <= (pool.limit or 0) for pool in self.pools)

    def is_cut_for(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether the present cut is the one that `cut` would make."""
        if not self.divided or self.cap is None or _everything(demand, foreign) <= self._room():
            return not self.divided and self.fits(demand, foreign)
        return [(pool.slot_nbytes, pool.limit) for pool in self.pools] == demand.divide(self.cap, self.argument)

    def check(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> None:
        """Raise BudgetError if the cap is below the floor of `demand` or, if nothing can be evicted, below its total size.

        foreign: resident tiles that are not part of the demand, {size: count}.
        """
        if self.cap is None:
            return
        needed = _everything(demand, foreign)
        if self.evictable and needed > self._room():
            demand.check(self.cap, self.argument, self.remedy)
        elif needed > self.cap:
            raise BudgetError(
                f"{self.argument} of {format_size(self.cap)} is below the floor of {format_size(needed)} ({needed} bytes): "
                f"all tiles that are alive at the same time need a place in RAM; {self.remedy} or give spill a folder on a "
                "fast disk",
                floor=needed,
            )

    def keeps_all(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether nothing has to be evicted: the arena is not divided, and the cap holds everything."""
        return not self.divided and _everything(demand, foreign) <= self._room()

    def may_stay_packed(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether the arena is packed over its whole cap, and the cap still does not hold everything."""
        is_whole = self.ground is not None and self.ground.nbytes == self.cap
        return self.packed and is_whole and _everything(demand, foreign) > self._room()

    def has_room_for(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether `cut` would remove no slot."""
        return not self.divided and self._grown_nbytes(demand, foreign) <= self._room()

    def must_be_empty(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Return whether all tiles must be evicted before `cut`, because the present pools will not survive it."""
        stuck = self.rigid and self._grown_nbytes(demand, foreign) > self._room()
        return self.packed or (bool(self.pools) and (stuck or not self.keeps_all(demand, foreign)))

    def cut(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> list[Pool]:
        """Make pools for `demand` and return the new ones. Raises BudgetError if the cap is below the floor."""
        self.check(demand, foreign)
        if self.must_be_empty(demand, foreign):
            self.forget_pools()
        if _everything(demand, foreign) <= self._room():
            have = {pool.slot_nbytes for pool in self.pools}
            new = [Pool(self, size, None) for size in demand.exact.keys() - have]
            self.pools = sorted(self.pools + new, key=lambda pool: pool.slot_nbytes)
            self._promise(demand, foreign, True)
            self.leave_ground()
            return new
        assert self.cap is not None
        return self.divide(demand.divide(self.cap, self.argument))

    def divide(self, sizes: Iterable[tuple[int, int]]) -> list[Pool]:
        """Divide the arena, still without pools (asserted), into pools of (slot bytes, count), side by side on the ground."""
        assert not self.pools and not self.packed
        ground, start = self._lay_ground(), 0
        for nbytes, count in sizes:
            self.pools.append(Pool(self, nbytes, count, ground, start))
            start += nbytes * count
        return self.pools

    def pack(self) -> None:
        """Pack the arena: until the next `cut`, tiles stand in the ranges of `range_at`.

        It must hold no tile (asserted), and nothing may be in flight on its slots.
        """
        self.forget_pools()
        self._lay_ground()
        self.packed = True

    def range_at(self, offset: int, nbytes: int) -> Slot:
        """Return a slot at `offset` for a tile of `nbytes`, free or not, and do not claim it. Packed arenas only."""
        assert self.packed and self.ground is not None and not offset % self.alignment
        return self.ground.range_at(offset, align(nbytes, self.alignment))

    def forget_pools(self) -> None:
        """Return to the state before the first cut, but keep the ground. Nothing may be in flight on the slots."""
        assert self.used_nbytes == 0, "an arena with tiles in it cannot be cut anew"
        self.pools, self.divided, self.packed, self.made_nbytes = [], False, False, 0

    def leave_ground(self) -> None:
        """Release the memory of the ground, even if a slot there is referred to. Nothing may be in flight (not checked)."""
        if self.ground is not None:
            self.ground.memory = None
            self.ground = None

    def drop_free(self) -> list[Slot]:
        """Forget the free slots of all pools and return them; the caller releases their memory."""
        return [slot for pool in self.pools for slot in pool.drop_free()]

    def withdraw(self, pools: list[Pool]) -> None:
        """Undo a `cut` whose new `pools` got no memory."""
        self.pools = [pool for pool in self.pools if pool not in pools]
        self.divided = self.divided and bool(self.pools)
        if not self.divided:
            self.leave_ground()

    def make_room(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> list[Slot]:
        """Return the free slots to drop so that pools can grow as `demand` wants; the caller releases their memory."""
        return [] if self.must_be_empty(demand, foreign) or self.has_room_for(demand, foreign) else self.drop_free()

    def _lay_ground(self) -> Ground:
        """Mark the arena as divided and return its ground, the present one if it is as large as the cap."""
        assert self.cap is not None and self.evictable and not self.lent_nbytes
        if self.ground is None or self.ground.nbytes != self.cap:
            self.leave_ground()
            self.ground = Ground(self, self.cap)
        self.divided = True
        return self.ground

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
        """Return the bytes of an undivided arena's pools, grown to `demand`. Rigid memory counts as soon as it is expected."""
        made, others = {pool.slot_nbytes: max(pool.made, pool.expected * self.rigid) for pool in self.pools}, foreign or {}
        sizes = {*made, *demand.exact}
        return sum(size * max(made.get(size, 0), demand.exact.get(size, 0) + others.get(size, 0)) for size in sizes)


def _everything(demand: Demand, foreign: Mapping[int, int] | None) -> int:
    """Return the bytes of all tiles of `demand` and of the tiles in `foreign`."""
    return demand.resident_nbytes + sum(size * count for size, count in (foreign or {}).items())
