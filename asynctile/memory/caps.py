"""How much of each tier a program gets: caps are cut for its demand, blocks on the disk reserved, spare RAM lent.

Decisions about single tiles are made elsewhere: by schedules, and by storage/ledger.py for single launches. Everything
here happens between runs, on the device's loop. All devices are cut alike, for the same demand.

Long because cutting, packing, lending and reporting are about the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from asynctile.errors import BudgetError
from asynctile.events import Pressure
from asynctile.memory.tier import Tier
from asynctile.program.needs import demand_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand, align
from asynctile.storage.demands import demands, has_turns
from asynctile.storage.residency import ABSENT
from asynctile.storage.sizes import format_size
from asynctile.storage.spill import SpillTier
from asynctile.storage.tile import Tile
from asynctile.streams.run_ahead import RunAhead
from asynctile.streams.stall import who

#: Parts of a cap: pressure is reported above HIGH, and again only after use was below LOW.
HIGH, LOW = 0.9, 0.8
FULL = "work that does not fit into the rest will be refused; raise it, or release a model"
DIVIDED = "the working set is larger, so tiles are evicted and loaded again"


class Loan:
    """RAM that is set aside for `who`. nbytes: its size. Use it on the device's loop."""

    def __init__(self, caps: Caps, nbytes: int, who: str) -> None:
        self.nbytes = nbytes
        self.who = who
        self._caps = caps

    def give_back(self) -> None:
        """Give the RAM back; a second time does nothing."""
        self._caps.take_back(self)


class Caps:
    """The caps of a share, and how they are cut.

    tops: tiers of the devices. host: tier in RAM; the only top where RAM is the device.
    tiers: every tier once, from the top down, RAM last.
    spill: spill folder below RAM, or None.
    """

    def __init__(self, tops: Sequence[Tier], host: Tier, spill: SpillTier | None, run_ahead: RunAhead) -> None:
        self.tops = tops
        self.host = host
        self.has_link = host not in tops
        self.tiers = (*tops, host) if self.has_link else (host,)
        self.spill = spill
        self.run_ahead = run_ahead
        #: all and only the loans that are not given back, oldest first
        self.loans: dict[Loan, None] = {}
        self._returned: asyncio.Future[None] | None = None
        #: whether RAM was cut with slots that tiles take in turn
        self.in_turn = False
        #: the demand that the tiers are cut for
        self._cut_for: Demand | None = None
        #: names of the caps that were reported as nearly used up
        self._high: set[str] = set()
        self._peaks: dict[Tier, int] = {}
        #: the demand that the spill folder has blocks for
        self._reserved: Demand | None = None

    def check_floor(self, floor: Demand) -> None:
        """Raise BudgetError if a tier that tiles can leave has a smaller cap than `floor` needs of it."""
        for tier, wanted in self._wanted(floor).items():
            if tier.arena.cap is not None and tier.arena.evictable:
                wanted.check(tier.arena.cap, tier.arena.argument, tier.arena.remedy)

    def check_room(self, nbytes: int) -> None:
        """Raise BudgetError if RAM and the spill folder together cannot hold `nbytes`, however they are cut."""
        ram = self.host.arena.cap
        assert ram is not None, "an engine has a cap, be it that of the machine"
        disk = 0 if self.spill is None else self.spill.room_nbytes
        if nbytes > ram + disk:
            below = "and no spill folder" if self.spill is None else f"and {format_size(disk)} in the spill folder"
            disks = "name a folder on a large disk with spill" if self.spill is None else "use a larger disk"
            raise BudgetError(
                f"tiles of {format_size(nbytes)} in all must be kept, but there is only {format_size(ram)} of RAM for them "
                f"{below}; {self.host.arena.remedy}, {disks} or choose a smaller model",
                floor=nbytes - disk,
            )

    def have_room_for(self, demand: Demand) -> bool:
        """Return whether `demand` fits without evicting or releasing anything, and everything so far has fitted, too."""
        wanted = self._wanted(demand).items()
        return all(tier.arena.has_room_for(asked, self._foreign(tier, demand)) for tier, asked in wanted)

    async def cut_for_schedule(self, demand: Demand) -> None:
        """Cut the caps for `demand` as if nothing had been cut before, and pack the tiers that do not hold everything.

        Tiers that are packed already stay as they are, with their tiles. The tiles in slots of the others leave.
        """
        await self.cut(demand, exactly=True)
        for tier in self.tiers:  # from the top down, since tiles that leave the device come to RAM
            if tier.arena.divided and not tier.arena.packed:
                await self._pack(tier)

    async def cut(self, demand: Demand, *, exactly: bool = False) -> None:
        """Make the tiers serve `demand`. BudgetError, before anything moves, if a cap is below what the demand needs.

        exactly: cut as if nothing had been cut before; a packed tier stays packed where it would be divided, unless tiles come
            there from above. Otherwise a cut that serves more than this demand stays, and there are slots.
        """
        await self.run_ahead.settle()
        await self._called_back(demand)
        wanted, foreign = self._check(demand)
        self.in_turn = self.has_link and has_turns(demand, self.host.arena, foreign[self.host])
        for tier in self._from_the_packed():
            if exactly and self._may_stay_packed(tier, wanted, foreign):
                continue
            serves = tier.arena.is_cut_for if exactly else tier.arena.fits
            if not tier.arena.packed and serves(wanted[tier], foreign[tier]):
                tier.back()
                continue
            if tier.arena.must_be_empty(wanted[tier], foreign[tier]):
                tier.clear()
                await self.run_ahead.drain()
            tier.cut(wanted[tier], foreign[tier])
        self._cut_for = demand

    def _may_stay_packed(self, tier: Tier, wanted: Mapping[Tier, Demand], foreign: Mapping[Tier, Counter[int]]) -> bool:
        """Return whether the tier is packed and may stay so: it would be divided, and no tile comes there from above."""
        stays = tier.arena.may_stay_packed(wanted[tier], foreign[tier])
        if tier in self.tops or not stays:
            return stays
        leave = [top for top in self.tops if not self._may_stay_packed(top, wanted, foreign)]
        return not any(top.arena.must_be_empty(wanted[top], foreign[top]) for top in leave)

    async def _pack(self, tier: Tier) -> None:
        """Pack a tier, which is divided, until it is cut again: the tiles in its slots leave.

        If a tile fails to leave, the next reader of its bytes meets the error.
        """
        tier.clear()
        await self.run_ahead.settle()
        tier.pack()

    async def unpack(self) -> None:
        """Cut the packed tiers into slots again, for work that is not planned. Does nothing if no tier is packed."""
        if any(tier.arena.packed for tier in self.tiers):
            assert self._cut_for is not None
            await self.cut(self._cut_for)

    def _from_the_packed(self) -> Sequence[Tier]:
        """Return the tiers in the order in which to cut them: from the top down, but packed RAM first.

        A tile that leaves the device finds no place in RAM that is packed.
        """
        return (self.host, *self.tops) if self.has_link and self.host.arena.packed else self.tiers

    def _check(self, demand: Demand) -> tuple[dict[Tier, Demand], dict[Tier, Counter[int]]]:
        """Return each tier's part of `demand` and the other tiles there; BudgetError if that is too much.

        Also reserves blocks on the disk.
        """
        wanted = self._wanted(demand)
        foreign = {tier: self._foreign(tier, demand) for tier in self.tiers}
        for tier in self.tiers:
            tier.arena.check(wanted[tier], foreign[tier])
        self._reserve_spill(demand, wanted[self.host], foreign[self.host])
        return wanted, foreign

    def borrow(self, nbytes: int, who: str) -> Loan | None:
        """Set `nbytes` of RAM aside for the caller's own use; return None if the tiles will need it.

        who: the borrower, for messages.
        """
        arena = self.host.arena
        if not arena.lend(nbytes):
            text = f"{arena.argument} has no room for {format_size(nbytes)} for {who}, which goes on without it"
            self.press(arena.argument, arena.held_nbytes, arena.cap or 0, text)
            return None
        self.host.ledger.peak_nbytes = max(self.host.ledger.peak_nbytes, self.host.arena.held_nbytes)
        loan = Loan(self, nbytes, who)
        self.loans[loan] = None
        return loan

    def take_back(self, loan: Loan) -> None:
        """Take back a loan; a second time does nothing."""
        if loan in self.loans:
            del self.loans[loan]
            self.host.arena.lent_nbytes -= loan.nbytes
            if self._returned is not None:
                self._returned.set_result(None)
                self._returned = None

    async def cede(self, on_device: int, in_ram: int) -> None:
        """Give up this many bytes of each device's cap and of RAM's cap to a share.

        BudgetError, with the caps as before, if too little is left. Must not be cancelled. The smaller caps are cut anew for
        the tiles that stand in them.
        """
        await self.run_ahead.settle()
        await self.unpack()
        parts = self._parts(on_device, in_ram)
        for tier, nbytes in parts.items():
            self._check_spare(tier, nbytes)
        self._resize(parts, -1)
        try:
            await self._cut_again()
        except BaseException as error:
            self._resize(parts, 1)
            await self._cut_again()
            if isinstance(error, BudgetError):
                raise BudgetError(f"a share so large leaves too little to the engine: {error}", floor=error.floor) from error
            raise

    async def regain(self, on_device: int, in_ram: int) -> None:
        """Take back bytes that were ceded."""
        await self.run_ahead.settle()
        await self.unpack()
        self._resize(self._parts(on_device, in_ram), 1)
        await self._cut_again()

    def _parts(self, on_device: int, in_ram: int) -> dict[Tier, int]:
        return {tier: in_ram if tier is self.host else on_device for tier in self.tiers}

    def _resize(self, parts: Mapping[Tier, int], sign: int) -> None:
        for tier, nbytes in parts.items():
            assert tier.arena.cap is not None, "an engine has a cap on each tier"
            tier.arena.cap += sign * nbytes
        self._reserved = None

    async def _cut_again(self) -> None:
        """Cut the changed caps for the standing tiles. BudgetError, before anything moves, if these do not fit."""
        demand = self._standing()
        if demand is not None:
            self._check(demand)
        for tier in self.tiers:  # the devices first: tiles that leave them come to RAM
            arena = tier.arena
            if not arena.divided and arena.may_grow(0):
                continue
            if arena.evictable:
                tier.clear()
                await self.run_ahead.drain()
                tier.forget_pools()
            else:
                tier.let_go(arena.drop_free())
        # Not earlier: after a failure above, a tier may still be packed and must be cut for the old demand.
        self._cut_for = None
        if demand is not None:
            await self.cut(demand)

    def _standing(self) -> Demand | None:
        """Return the demand that the tiers were cut for if any of its tiles has bytes, else one of the tiles that stand here.

        None if no tile stands here.
        """
        old = self._cut_for
        tiles = self._tiles(*self.tiers)
        if old is not None:
            alive = any(top.of(tile).state is not ABSENT for tile in old.standing for top in self.tops)
            if alive:  # else its model is gone and needs no room
                return old
        return demand_of([], sorted(tiles, key=lambda tile: tile.name)) if tiles else None

    def _check_spare(self, tier: Tier, nbytes: int) -> None:
        arena = tier.arena
        assert arena.cap is not None, "an engine has a cap on each tier"
        kept = 0
        if not arena.evictable:
            tiles = self._tiles(*self.tiers)
            kept = sum(align(tile.nbytes, arena.alignment) for tile in tiles) + arena.lent_nbytes
        if nbytes >= arena.cap - kept:
            held = f" beside its tiles of {format_size(kept)}" if kept else ""
            raise BudgetError(
                f"{arena.argument} of {format_size(arena.cap)} cannot lend a share of {format_size(nbytes)}: the engine must "
                f"keep something for itself{held or ''}; ask for less",
                floor=nbytes + kept + 1,
            )

    def demands(self, demand: Demand) -> tuple[Demand, ...]:
        """Return the demand on each device and on RAM that `demand` leads to; on RAM alone where that is the device."""
        return demands(demand, [tier.arena for tier in self.tiers[-2:]], self._foreign(self.host, demand))

    def _wanted(self, demand: Demand) -> dict[Tier, Demand]:
        """Return the demand on each tier that `demand` leads to."""
        found = self.demands(demand)
        return {tier: found[-1] if tier is self.host else found[0] for tier in self.tiers}

    def _foreign(self, tier: Tier, demand: Demand) -> Counter[int]:
        """Count, by size, the tiles outside `demand` that stand in `tier`, or stand above it and may have to come down.

        The tiles of one device count for all, so that all are cut alike.
        """
        alignment, found = tier.arena.alignment, self._tiles(*(self.tiers if tier is self.host else self.tops))
        return Counter(align(tile.nbytes, alignment) for tile in found if tile not in demand.standing)

    def _tiles(self, *tiers: Tier) -> set[Tile]:
        """Return the tiles that stand in any of these tiers."""
        return {residency.tile for tier in tiers for residency in tier.ledger.resident}

    async def _called_back(self, demand: Demand) -> None:
        """Wait for lent RAM if `demand` wants it now: its borrower finishes a save, or StalledError names it."""
        arena = self.host.arena
        while self.loans and not arena.keeps_all(self.demands(demand)[-1], self._foreign(self.host, demand)):
            await self._one_returned()

    def look(self) -> None:
        """Report caps that have become nearly used up. Call between jobs. Cheap, and nothing while nobody listens."""
        if not self.run_ahead.tell.is_heard:
            return
        for tiers in (self.tops, (self.host,)) if self.has_link else (self.tops,):
            arena, used = tiers[0].arena, max(map(self._most_used, tiers))
            self._look_at(arena.argument, arena.cap if arena.divided else used, arena.cap, DIVIDED if arena.divided else FULL)
        if self.spill is not None:
            self._look_at("spill_limit", self.spill.used_nbytes, self.spill.limit, FULL)

    def _most_used(self, tier: Tier) -> int:
        """Return the bytes in use in a tier, or the most that a job has used while it ran if that is a new peak."""
        peak, before = tier.ledger.peak_nbytes, self._peaks.get(tier, 0)
        self._peaks[tier] = peak
        return peak if peak > before else tier.arena.held_nbytes

    def _look_at(self, name: str, used: int | None, cap: int | None, meaning: str) -> None:
        if used is None or cap is None:
            return
        if used >= HIGH * cap and name not in self._high:
            self._high.add(name)
            self.press(name, used, cap, f"{name} of {format_size(cap)} is nearly used up: {meaning}")
        elif used < LOW * cap:
            self._high.discard(name)

    def press(self, name: str, used: int, cap: int, text: str) -> None:
        """Report that the cap called `name`, of `cap` bytes with `used` in use, is too small. text: for users."""
        self.run_ahead.tell(Pressure, tier=name, used_bytes=used, cap_bytes=cap, text=text)

    async def returned(self) -> None:
        """Wait until all lent RAM has been given back; StalledError names the borrower if nothing moves."""
        while self.loans:
            await self._one_returned()

    async def _one_returned(self) -> None:
        if self._returned is None:
            self._returned = asyncio.get_running_loop().create_future()
        await self.run_ahead.told(self._returned, partial(self._lent, who()))

    def _lent(self, waits: str) -> str:
        loans = " and ".join(f"{format_size(loan.nbytes)} is lent to {loan.who}" for loan in self.loans)
        return f"{waits} waits for RAM, but {loans}; wait until that has ended, or raise host_memory"

    def _reserve_spill(self, demand: Demand, wanted: Demand, foreign: Counter[int]) -> None:
        """Reserve a block in the spill folder for every tile that may have to leave RAM."""
        if self.spill is None or demand is self._reserved:
            return
        self._reserved = None
        if self.host.arena.keeps_all(wanted, foreign):
            return
        counts = Counter(wanted.exact)
        for tile in demand.standing:
            counts[align(tile.nbytes, PAGE)] -= self._has_block(tile)
        for tile in self._tiles(*self.tiers):
            if tile not in demand.standing:
                counts[align(tile.nbytes, PAGE)] += not self._has_block(tile)
        self.spill.reserve(counts)
        self._reserved = demand

    def _has_block(self, tile: Tile) -> bool:
        """Whether the tile has a place in the spill file."""
        return self.host.of(tile).backing is not None
