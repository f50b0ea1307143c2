"""The arena of a tier: how its cap is cut into slots of a few fixed sizes, or packed: any tile at any offset.

Pure bookkeeping. The memory itself belongs to the device (asynctile/device), who stands in a slot is decided by
storage/ledger.py, which slots of a size are free is known to storage/pool.py, and which bytes to storage/ground.py. A cap that
does not hold everything is cut into slots while what will run is not known: any free slot takes any tile of its pool, so a
budget at the floor works. Where a whole step is known, so are its addresses, and the arena is packed.
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
from asynctile.storage.tile import Tile


class Arena:
    """All pools of one tier, largest last, under one cap in bytes (None: no cap).

    A cap that holds everything has a pool for each size, which grows while the cap allows. Otherwise, if tiles can leave
    (`evictable`), the arena is `divided` between two pools, so that a tile of either size can always push out another
    of its size; or it is `packed`, and has none. Either way it has a `ground`, which stays while the cap does.

    alignment: of every slot. argument: what gave the cap, for messages; remedy: how it is raised, if not by that.
    lent_nbytes: of the cap, to whoever borrowed it.
    rigid: memory cannot be let go slot by slot; where free slots of one size stand in the way of another, all is cut anew.
    expected: where tiles that are neither here nor to be loaded will be written, while packed: offsets in bytes.
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
        self.expected: dict[Tile, int] = {}
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

    @property
    def counted_nbytes(self) -> int:
        """Of slots that are taken, as those count who hand them out."""
        taken = sum(pool.used * pool.slot_nbytes for pool in self.pools)
        return taken if self.ground is None else taken + self.ground.taken_nbytes

    def may_grow(self, nbytes: int) -> bool:
        return self.available is None or self.made_nbytes + nbytes <= self.available

    def may_lend(self, nbytes: int) -> bool:
        """Whether `nbytes` of the cap are not needed by the programs that it was cut for."""
        needed = max(self._promised_nbytes, self.made_nbytes) + nbytes
        return not self.divided and (self.available is None or needed <= self.available)

    def lend(self, nbytes: int) -> bool:
        """Set them aside, if they are not."""
        if not self.may_lend(nbytes):
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
        if self.packed:
            return False
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

    def may_stay_packed(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether it is packed, on all of its cap, which does not hold everything."""
        is_whole = self.ground is not None and self.ground.nbytes == self.cap
        return self.packed and is_whole and _everything(demand, foreign) > self._room()

    def has_room_for(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether `cut` would take away no slot."""
        return not self.divided and self._grown_nbytes(demand, foreign) <= self._room()

    def must_be_empty(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> bool:
        """Whether tiles must leave before `cut`: the pools that there are will not stay."""
        stuck = self.rigid and self._grown_nbytes(demand, foreign) > self._room()
        return self.packed or (bool(self.pools) and (stuck or not self.keeps_all(demand, foreign)))

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
            self.leave_ground()
            return new
        assert self.cap is not None
        return self.divide(demand.divide(self.cap, self.argument))

    def divide(self, sizes: Iterable[tuple[int, int]]) -> list[Pool]:
        """Pools of (slot bytes, count) each, side by side; there must be none yet."""
        assert not self.pools and not self.packed
        ground, start = self._lay_ground(), 0
        for nbytes, count in sizes:
            self.pools.append(Pool(self, nbytes, count, ground, start))
            start += nbytes * count
        return self.pools

    def pack(self) -> None:
        """From now on tiles stand where they are told to (`take_at`); until the next `cut`. It must hold none.

        Work may be in flight on the slots of a divided arena: whoever gets their bytes waits for it.
        """
        assert not self.used_nbytes, "an arena with tiles in it cannot be packed"
        self.expected.clear()
        if self.packed:
            return
        free, old = self.free_slots(), self.ground
        self.forget_pools()
        ground = self._lay_ground()
        if ground is old:
            ground.follow(free)
        self.packed = True

    def range_at(self, offset: int, nbytes: int) -> Slot:
        """The slot at `offset` that a tile of `nbytes` needs, not taken, and be it free or not. Of a packed arena."""
        assert self.packed and self.ground is not None and not offset % self.alignment
        return self.ground.range_at(offset, align(nbytes, self.alignment))

    def take_at(self, offset: int, nbytes: int) -> Slot:
        """`range_at`, which must be free, and taken."""
        slot = self.range_at(offset, nbytes)
        slot.pool.claim(slot)
        return slot

    def forget_pools(self) -> None:
        """As before the first cut, but for the ground; nothing may be in flight, or be said to who comes next (`pack`)."""
        assert self.used_nbytes == 0, "an arena with tiles in it cannot be divided again"
        self.pools, self.divided, self.packed, self.made_nbytes = [], False, False, 0
        self.expected.clear()
        if self.ground is not None:
            self.ground.forget()

    def leave_ground(self) -> None:
        """Let its memory go, whoever still knows a slot of it; nothing may be in flight there."""
        if self.ground is not None:
            self.ground.memory = None
            self.ground = None

    def drop_free(self) -> list[Slot]:
        """Forget the free slots of all pools; their memory is the caller's to return."""
        return [slot for pool in self.pools for slot in pool.drop_free()]

    def withdraw(self, pools: list[Pool]) -> None:
        """Undo a `cut` whose pools got no memory."""
        self.pools = [pool for pool in self.pools if pool not in pools]
        self.divided = self.divided and bool(self.pools)
        if not self.divided:
            self.leave_ground()

    def make_room(self, demand: Demand, foreign: Mapping[int, int] | None = None) -> list[Slot]:
        """Free slots to let go of, so that pools can grow as `demand` wants; their memory is the caller's to return."""
        return [] if self.must_be_empty(demand, foreign) or self.has_room_for(demand, foreign) else self.drop_free()

    def _lay_ground(self) -> Ground:
        """Be divided, on the ground that there is if it is as large as the cap."""
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
        """Bytes of the pools of an undivided arena grown to `demand`. Rigid memory is there once it is expected."""
        made, others = {pool.slot_nbytes: max(pool.made, pool.expected * self.rigid) for pool in self.pools}, foreign or {}
        sizes = {*made, *demand.exact}
        return sum(size * max(made.get(size, 0), demand.exact.get(size, 0) + others.get(size, 0)) for size in sizes)


def _everything(demand: Demand, foreign: Mapping[int, int] | None) -> int:
    """Bytes of every tile of `demand` and of those that are there already."""
    return demand.resident_nbytes + sum(size * count for size, count in (foreign or {}).items())
