"""How much of each tier a program gets: caps are cut for its demand, places on the disk reserved, spare RAM lent.

Decisions about single tiles are schedules', and storage/ledger.py's for launches. Everything here happens between runs, on the
device's loop. Long because what is cut, packed, lent and told of are the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from asynctile.errors import BudgetError
from asynctile.events import Pressure
from asynctile.memory.host_link import HostLink
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

#: Of a cap: what is told of, and what is well below that again.
HIGH, LOW = 0.9, 0.8
FULL = "what does not fit into the rest will be refused; raise it, or let a model go"
DIVIDED = "more is wanted than it holds at once, and tiles come and go"


class Loan:
    """RAM set aside for `who`, on the device's loop. nbytes: how much."""

    def __init__(self, caps: Caps, nbytes: int, who: str) -> None:
        self.nbytes = nbytes
        self.who = who
        self._caps = caps

    def give_back(self) -> None:
        """Return it; a second time does nothing."""
        self._caps.take_back(self)


class Caps:
    """tiers: from the top down, RAM last. link: between the two if they are two. spill: below RAM, or None."""

    def __init__(self, tiers: Sequence[Tier], link: HostLink | None, spill: SpillTier | None, run_ahead: RunAhead) -> None:
        self.tiers = tiers
        self.top, self.host = tiers[0], tiers[-1]
        self.link = link
        self.spill = spill
        self.run_ahead = run_ahead
        #: all and only what is lent, oldest first
        self.loans: dict[Loan, None] = {}
        self._returned: asyncio.Future[None] | None = None
        #: whether RAM was cut with slots that are taken in turn
        self.in_turn = False
        #: what the tiers serve
        self._cut_for: Demand | None = None
        #: the names of those of which it was told that they are nearly used up
        self._high: set[str] = set()
        self._peaks: dict[Tier, int] = {}
        #: what the spill folder has places for
        self._reserved: Demand | None = None

    def check_floor(self, floor: Demand) -> None:
        """BudgetError if a tier that tiles can leave has a cap below what `floor` needs of it."""
        for tier, wanted in zip(self.tiers, self.demands(floor), strict=True):
            if tier.arena.cap is not None and tier.arena.evictable:
                wanted.check(tier.arena.cap, tier.arena.argument, tier.arena.remedy)

    def check_room(self, nbytes: int) -> None:
        """BudgetError if RAM and the spill folder together cannot hold `nbytes`, however they are cut."""
        ram = self.host.arena.cap
        assert ram is not None, "an engine has a cap, be it that of the machine"
        disk = 0 if self.spill is None else self.spill.room_nbytes
        if nbytes > ram + disk:
            below = "and no spill folder" if self.spill is None else f"and {format_size(disk)} in the spill folder"
            disks = "name a folder on a large disk with spill" if self.spill is None else "use a larger disk"
            raise BudgetError(
                f"tiles of {format_size(nbytes)} in all must be kept, there are {format_size(ram)} of RAM for them {below}; "
                f"{self.host.arena.remedy}, {disks} or choose a smaller model",
                floor=nbytes - disk,
            )

    def have_room_for(self, demand: Demand) -> bool:
        """Whether nothing has to leave or to be let go of for `demand`, and nothing has before."""
        wanted = zip(self.tiers, self.demands(demand), strict=True)
        return all(tier.arena.has_room_for(asked, self._foreign(tier, demand)) for tier, asked in wanted)

    async def cut_for_schedule(self, demand: Demand) -> None:
        """`cut`, as if nothing had been cut before, and pack the top tier where it does not hold everything. RAM below a device
        is packed later, once what leaves the device has come there (pack_ram).
        """
        await self.cut(demand, exactly=True)
        if self.top.arena.divided:
            await self._pack()

    async def cut(self, demand: Demand, *, exactly: bool = False) -> None:
        """Make the tiers serve `demand`. BudgetError before anything moves, if a cap is below what it needs.

        exactly: as if nothing had been cut before, and what is packed stays so where it would be divided; else a cut for more
        than this stays, and there are slots.
        """
        await self.run_ahead.settle()
        await self._called_back(demand)
        wanted, foreign = self._check(demand)
        self.in_turn = self.link is not None and has_turns(demand, self.host.arena, foreign[self.host])
        for tier in self._from_the_packed():
            if exactly and tier is self.top and tier.arena.may_stay_packed(wanted[tier], foreign[tier]):
                continue
            serves = tier.arena.is_cut_for if exactly else tier.arena.fits
            if serves(wanted[tier], foreign[tier]):
                tier.back()
                continue
            if tier.arena.must_be_empty(wanted[tier], foreign[tier]):
                tier.clear()
                await self.run_ahead.drain()
            tier.cut(wanted[tier], foreign[tier])
        self._cut_for = demand

    async def _pack(self) -> None:
        """The top tier, which is divided, is packed from now on, until it is cut: what stands in slots leaves.

        What fails to leave is met by whoever wants its bytes next.
        """
        if not self.top.arena.packed:
            self.top.clear()
            await self.run_ahead.settle()
            self.top.pack()

    async def pack_ram(self) -> None:
        """The same of RAM below a device, once what comes through it has come: everything stands below it then."""
        self.host.clear()
        await self.run_ahead.settle()
        self.host.pack()

    async def unpack(self) -> None:
        """Slots again for what nobody has planned; nothing where there are slots."""
        if any(tier.arena.packed for tier in self.tiers):
            assert self._cut_for is not None
            await self.cut(self._cut_for)

    def _from_the_packed(self) -> Sequence[Tier]:
        """The tiers in the order in which to cut them: from the top down, but what leaves it finds no place in RAM that is
        packed.
        """
        return (self.host, self.top) if self.link is not None and self.host.arena.packed else self.tiers

    def _check(self, demand: Demand) -> tuple[dict[Tier, Demand], dict[Tier, Counter[int]]]:
        """What `demand` is to each tier, and what else stands there; BudgetError if that is too much. Sets
        places aside on the disk.
        """
        wanted = dict(zip(self.tiers, self.demands(demand), strict=True))
        foreign = {tier: self._foreign(tier, demand) for tier in self.tiers}
        for tier in self.tiers:
            tier.arena.check(wanted[tier], foreign[tier])
        self._reserve_spill(demand, wanted[self.host], foreign[self.host])
        return wanted, foreign

    def borrow(self, nbytes: int, who: str) -> Loan | None:
        """Set RAM aside for the caller's own use, if nothing here will need it. who: borrows, for messages."""
        arena = self.host.arena
        if not arena.lend(nbytes):
            text = f"{arena.argument} has no room for {format_size(nbytes)} for {who}, which does without"
            self.press(arena.argument, arena.held_nbytes, arena.cap or 0, text)
            return None
        self.host.ledger.peak_nbytes = max(self.host.ledger.peak_nbytes, self.host.arena.held_nbytes)
        loan = Loan(self, nbytes, who)
        self.loans[loan] = None
        return loan

    def take_back(self, loan: Loan) -> None:
        """Nothing if it was taken back before."""
        if loan in self.loans:
            del self.loans[loan]
            self.host.arena.lent_nbytes -= loan.nbytes
            if self._returned is not None:
                self._returned.set_result(None)
                self._returned = None

    async def cede(self, on_device: int, in_ram: int) -> None:
        """Give up so many bytes of the caps, for a share of the engine. BudgetError, and as before, if too little is left.

        Not to be cancelled. What stands is cut anew for what is left.
        """
        await self.run_ahead.settle()
        await self.unpack()
        parts = {self.host: in_ram} if self.link is None else {self.top: on_device, self.host: in_ram}
        for tier, nbytes in parts.items():
            self._check_spare(tier, nbytes)
        self._resize(parts, -1)
        try:
            await self._cut_again()
        except BaseException as error:
            self._resize(parts, 1)
            await self._cut_again()
            if isinstance(error, BudgetError):
                raise BudgetError(f"a share that large leaves too little to the engine: {error}", floor=error.floor) from error
            raise

    async def regain(self, on_device: int, in_ram: int) -> None:
        """Have them back."""
        await self.run_ahead.settle()
        await self.unpack()
        self._resize({self.top: on_device, self.host: in_ram}, 1)
        await self._cut_again()

    def _resize(self, parts: Mapping[Tier, int], sign: int) -> None:
        for tier, nbytes in parts.items():
            assert tier.arena.cap is not None, "an engine has a cap on each tier"
            tier.arena.cap += sign * nbytes
        self._reserved = None

    async def _cut_again(self) -> None:
        """The caps have changed: cut them for what stands, BudgetError before anything moves if it does not fit."""
        demand = self._standing()
        if demand is not None:
            self._check(demand)
        for tier in self.tiers:  # the device first: what leaves it comes to RAM
            arena = tier.arena
            if not arena.divided and arena.may_grow(0):
                continue
            if arena.evictable:
                tier.clear()
                await self.run_ahead.drain()
                tier.forget_pools()
            else:
                tier.let_go(arena.drop_free())
        # Not before: after a failure above a tier may still be packed, and will be cut for what it was cut for.
        self._cut_for = None
        if demand is not None:
            await self.cut(demand)

    def _standing(self) -> Demand | None:
        """What the tiers were cut for, as far as it still has bytes; None if nothing has."""
        old = self._cut_for
        tiles = self._tiles(self.top) | self._tiles(self.host)
        if old is not None:
            alive = {tile for tile in old.standing if self.top.of(tile).state is not ABSENT}
            if alive:  # a model that is gone need not be kept
                return old
        return demand_of([], sorted(tiles, key=lambda tile: tile.name)) if tiles else None

    def _check_spare(self, tier: Tier, nbytes: int) -> None:
        arena = tier.arena
        assert arena.cap is not None, "an engine has a cap on each tier"
        kept = 0
        if not arena.evictable:
            tiles = self._tiles(self.top) | self._tiles(self.host)
            kept = sum(align(tile.nbytes, arena.alignment) for tile in tiles) + arena.lent_nbytes
        if nbytes >= arena.cap - kept:
            held = f" holds tiles of {format_size(kept)}" if kept else ""
            raise BudgetError(
                f"{arena.argument} of {format_size(arena.cap)} cannot lend a share of {format_size(nbytes)}: something must be "
                f"left to the engine, which{held or ' goes on'}; ask for less",
                floor=nbytes + kept + 1,
            )

    def demands(self, demand: Demand) -> tuple[Demand, ...]:
        """What `demand` asks of each tier."""
        return demands(demand, [tier.arena for tier in self.tiers], self._foreign(self.host, demand))

    def _foreign(self, tier: Tier, demand: Demand) -> Counter[int]:
        """Tiles by size that `demand` does not count and that stand in `tier`, or above it and may have to come down."""
        alignment, found = tier.arena.alignment, self._tiles(tier)
        if tier is not self.top:
            found |= self._tiles(self.top)
        return Counter(align(tile.nbytes, alignment) for tile in found if tile not in demand.standing)

    def _tiles(self, tier: Tier) -> set[Tile]:
        """What stands in `tier`."""
        return {residency.tile for residency in tier.ledger.resident}

    async def _called_back(self, demand: Demand) -> None:
        """Wait for lent RAM if it is wanted now: whoever borrowed it finishes a save, or StalledError names it."""
        arena = self.host.arena
        while self.loans and not arena.keeps_all(self.demands(demand)[-1], self._foreign(self.host, demand)):
            await self._one_returned()

    def look(self) -> None:
        """Tell of caps that have come to be nearly used up. For between jobs, and cheap; nothing while nobody listens."""
        if not self.run_ahead.tell.is_heard:
            return
        for tier in self.tiers:
            arena, peak = tier.arena, tier.ledger.peak_nbytes
            used = peak if peak > self._peaks.get(tier, 0) else arena.held_nbytes  # a job may have had more for itself
            self._peaks[tier] = peak
            self._look_at(arena.argument, arena.cap if arena.divided else used, arena.cap, DIVIDED if arena.divided else FULL)
        if self.spill is not None:
            self._look_at("spill_limit", self.spill.used_nbytes, self.spill.limit, FULL)

    def _look_at(self, name: str, used: int | None, cap: int | None, meaning: str) -> None:
        if used is None or cap is None:
            return
        if used >= HIGH * cap and name not in self._high:
            self._high.add(name)
            self.press(name, used, cap, f"{name} of {format_size(cap)} is nearly used up: {meaning}")
        elif used < LOW * cap:
            self._high.discard(name)

    def press(self, name: str, used: int, cap: int, text: str) -> None:
        """Tell that the cap called `name` is in somebody's way."""
        self.run_ahead.tell(Pressure, tier=name, used_bytes=used, cap_bytes=cap, text=text)

    async def returned(self) -> None:
        """Wait until all lent RAM has been given back, or StalledError names who has it."""
        while self.loans:
            await self._one_returned()

    async def _one_returned(self) -> None:
        if self._returned is None:
            self._returned = asyncio.get_running_loop().create_future()
        await self.run_ahead.told(self._returned, partial(self._lent, who()))

    def _lent(self, waits: str) -> str:
        loans = " and ".join(f"{format_size(loan.nbytes)} lent to {loan.who}" for loan in self.loans)
        return f"{waits} waits for RAM, of which there is {loans}; wait until that has ended, or raise host_memory"

    def _reserve_spill(self, demand: Demand, wanted: Demand, foreign: Counter[int]) -> None:
        """Make sure that whatever may have to leave RAM finds a place in the folder."""
        if self.spill is None or demand is self._reserved:
            return
        self._reserved = None
        if self.host.arena.keeps_all(wanted, foreign):
            return
        counts = Counter(wanted.exact)
        for tile in demand.standing:
            counts[align(tile.nbytes, PAGE)] -= self._has_block(tile)
        for tile in self._tiles(self.top) | self._tiles(self.host):
            if tile not in demand.standing:
                counts[align(tile.nbytes, PAGE)] += not self._has_block(tile)
        self.spill.reserve(counts)
        self._reserved = demand

    def _has_block(self, tile: Tile) -> bool:
        """Whether the tile has a place in the spill file."""
        return self.host.of(tile).backing is not None
