"""How fast an engine's device, its link and the CPU beside it are: a short probe of each, by what operations and copies use.

Who places work asks for all of it (layers/update_placement.py), who says how well a device is used for its products alone
(Trainer.gemm_rate); nothing in the engine does. The probes run on the device's streams
and on slots of its tiers, taken for as long as they last: they stay below the caps as a step does. But they are launched on the
device itself, past the tile coroutine: they use those slots in shapes of their own, many at once, ordered by chain alone, and
what it does for an operation (slots, ranks, the next use) would be measured with them and disturb the ranks of real tiles.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asynctile.errors import BudgetError
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.ops import adamw, fill, gemm
from asynctile.ops.adamw import HYPER
from asynctile.schedule.rates import Rates
from asynctile.storage.documents import finish
from asynctile.storage.pool import Pool
from asynctile.storage.residency import Residency
from asynctile.storage.sizes import parse_size
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents

#: A probe is repeated, four times as often each time, until it takes this long.
LONG_ENOUGH_S = 2e-3
#: Pieces of a chain enqueued at once: this thread sleeps between bursts, and leaves the interpreter to those that work.
BURST = 8
#: Edge of products, at most, times as many where row tiles are tall: on a GPU they last far longer than asking for one takes.
GEMM_EDGE = 1024
#: The same for a core, of which no more is asked than how fast it is: these last less than a millisecond.
CORE_GEMM_EDGE = 256
#: How often their rate is taken.
TRIES = 5
#: Tiles of products beside their results: both factors.
FACTORS = 2
#: Edge of what is copied, at most.
COPY_EDGE = 2048
#: AdamW goes round so many times what the caches hold, at most so many bytes, as far as they are there for tiles.
BEYOND_CACHES, BEYOND_CACHES_NBYTES = 4, 1 << 30
#: Tiles of one update: w, g, m, v.
UPDATED = 4
#: Bytes of RAM that AdamW moves for one parameter: w, m and v in and out, g in.
UPDATE_NBYTES = 28

#: Enqueues one piece of the work of a chain, behind the piece before it.
Work = Callable[[int, StreamEvents], StreamEvent]


async def measure_gemms(tiers: Tiers, dtype: np.dtype[Any]) -> float | None:
    """FLOP/s of the device's GEMMs: on its loop, over arenas that were cut, with nothing in flight. None where nothing is free
    for them under the caps, since no tile should leave for a probe.

    dtype: that of their operands.
    """
    with ExitStack() as held:
        gemms = (_on_cores(tiers, held) if tiers.device.workers is not None else None) or _in_slots(tiers, held, dtype)
        if gemms is None:
            return None
        try:  # the fastest of some: what else the machine does for a moment is not the device's
            return max([await gemms.rate(gemms.multiply, gemms.targets, gemms.flops) for _ in range(TRIES)])
        finally:  # broken off, those that were enqueued still write there: others get the memory behind the last one
            await finish(tiers.run_ahead.settle())


def _on_cores(tiers: Tiers, held: ExitStack) -> _Gemms | None:
    """In RAM of their own, borrowed: the slots of a small model are too small to tell how fast cores are."""
    count, shape = FACTORS + len(os.sched_getaffinity(0)), (CORE_GEMM_EDGE, CORE_GEMM_EDGE)
    nbytes = count * 4 * CORE_GEMM_EDGE**2
    loan = tiers.caps.borrow(nbytes, "a probe of products") if tiers.host.arena.may_lend(nbytes) else None
    if loan is None:
        return None
    held.callback(loan.give_back)
    return _Gemms(tiers, [(Tile(f"probe[{index}]", shape), np.empty(shape, np.float32)) for index in range(count)])


def _in_slots(tiers: Tiers, held: ExitStack, dtype: np.dtype[Any]) -> _Gemms | None:
    """In the largest slots of the device, unless these are too small."""
    if not tiers.top.arena.pools:
        return None
    top = tiers.top.arena.pools[-1]
    if top.slot_nbytes < dtype.itemsize * CORE_GEMM_EDGE**2:
        return None
    targets = min(_targets(top), top.expected - top.used - FACTORS)
    if targets < 1:
        return None
    return _Gemms(tiers, _operands(tiers, held.enter_context(_held(tiers.top, top, FACTORS + targets)), dtype))


async def measure_rates(tiers: Tiers, dtype: np.dtype[Any]) -> Rates | None:
    """On the device's loop, over arenas that were cut, with nothing in flight. None if no RAM is free to try it in.

    dtype: that of the operands of its GEMMs.
    """
    top, ram = tiers.top.arena.pools[-1], max(tiers.host.arena.pools, key=_spare_nbytes)
    cores, targets = len(os.sched_getaffinity(0)), _targets(top)
    caches = await finish(asyncio.to_thread(caches_nbytes))
    wide = min(BEYOND_CACHES * (caches or BEYOND_CACHES_NBYTES), BEYOND_CACHES_NBYTES, _spare_nbytes(ram))
    sets = max(1, wide // (UPDATED * ram.slot_nbytes))
    try:
        with _held(tiers.host, ram, UPDATED * sets) as below, _held(tiers.top, top, FACTORS + targets) as above:
            await tiers.run_ahead.drain()  # what stood in these slots has left
            try:
                await finish(asyncio.gather(*(asyncio.to_thread(tile.array.fill, 1.0) for tile in below)))
                probes = _Probes(tiers, above, below, min(cores, below[0].tile.shape[0]), dtype)
                return replace(
                    tiers.rates,
                    flops_per_s=await probes.rate(probes.multiply, targets, probes.flops),
                    up_per_s=await probes.rate(probes.upload, 1, probes.copied_nbytes),
                    down_per_s=await probes.rate(probes.download, 1, probes.copied_nbytes),
                    updated_per_s=await probes.rate(probes.update, probes.cores, probes.updated_nbytes),
                )
            finally:  # broken off, probes that were enqueued still write to the slots: others get them behind the last one
                await finish(tiers.run_ahead.settle())
    except BudgetError:
        return None


def caches_nbytes(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Of all caches of the last level of this machine together; 0 where the system does not tell."""
    found: dict[tuple[int, str], int] = {}
    try:
        for cache in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
            level, shared, size = ((cache / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            found[int(level), shared] = parse_size(size + "iB")
    except (OSError, ValueError):
        return 0
    last = max((level for level, _ in found), default=0)
    return sum(nbytes for (level, _), nbytes in found.items() if level == last)


def _targets(top: Pool) -> int:
    """Products to compute side by side."""
    cores = len(os.sched_getaffinity(0))
    return cores if top.limit is None else max(1, min(cores, top.limit - FACTORS))


def _spare_nbytes(pool: Pool) -> int:
    """Of the slots that a pool is to come to, those that are free."""
    return max(0, pool.expected - pool.used) * pool.slot_nbytes


@contextmanager
def _held(tier: Tier, pool: Pool, count: int) -> Iterator[list[Residency]]:
    """`count` tiles, each a whole slot of `pool`, on `tier` for a while; nobody writes them back."""
    tiles = [tier.of(Tile(f"probe[{index}]", (pool.slot_nbytes // 4,))) for index in range(count)]
    try:
        tier.admit(tiles, "w" * count)
        yield tiles
    finally:
        for tile in tiles:
            tier.release(tile)


def _operands(tiers: Tiers, slots: list[Residency], dtype: np.dtype[Any]) -> list[tuple[Tile, Any]]:
    """Squares in slots of the device, as large as they take up to the edge."""
    inner = _edge(GEMM_EDGE * tiers.device.grain.tall, slots[0].tile.nbytes, dtype.itemsize)
    return [(Tile(slot.tile.name, (inner, inner), dtype), _array(tiers.top, slot, (inner, inner), dtype)) for slot in slots]


class _Gemms:
    """Products of one size. operands: on the device, both factors and the targets, each with its array."""

    def __init__(self, tiers: Tiers, operands: list[tuple[Tile, Any]]) -> None:
        self.device, self.run_ahead = tiers.device, tiers.run_ahead
        self.factors = [tile for tile, _ in operands]
        self.arrays = [array for _, array in operands]
        self.targets = len(operands) - FACTORS
        self.flops = 2 * self.factors[0].shape[0] ** 3
        # What stood here before may be slow to compute with: no numbers, or numbers that are nearly zero.
        for tile, array in operands:
            self.run_ahead.add(self.device.launch(fill(tile, 1.0), (array,), None, ()))

    async def rate(self, work: Work, chains: int, amount: int) -> float:
        """`amount` a second, of which each piece of work does one; `chains` of them run side by side."""
        await self._seconds(work, chains, 1)  # the first touch of memory
        rounds = 1
        while (seconds := await self._seconds(work, chains, rounds)) < LONG_ENOUGH_S:
            rounds *= 4
        seconds = min(seconds, await self._seconds(work, chains, rounds))  # a machine that was away for once is not slow
        return amount * chains * rounds / seconds

    def multiply(self, chain: int, after: StreamEvents) -> StreamEvent:
        a, b, c = (0, 1, 2 + chain)
        operation = gemm(self.factors[a], self.factors[b], self.factors[c])
        return self.device.launch(operation, (self.arrays[a], self.arrays[b], self.arrays[c]), None, after)

    async def _seconds(self, work: Work, chains: int, rounds: int) -> float:
        begin = time.perf_counter()
        for burst in range(0, rounds, BURST):
            last: list[StreamEvents] = [()] * chains
            for _ in range(min(BURST, rounds - burst)):
                for chain in range(chains):
                    event = work(chain, last[chain])
                    self.run_ahead.add(event)
                    last[chain] = (event,)
            for (event,) in last:
                await self.run_ahead.landed(event)
            self.run_ahead.forget_done()
        return time.perf_counter() - begin


class _Probes(_Gemms):
    """Beside products copies and updates. below: tiles in RAM, four for each update. cores: of the CPU, to use."""

    def __init__(self, tiers: Tiers, above: list[Residency], below: list[Residency], cores: int, dtype: np.dtype[Any]) -> None:
        super().__init__(tiers, _operands(tiers, above, dtype))
        self.cores = cores
        copied = _edge(COPY_EDGE, min(above[0].tile.nbytes, below[0].tile.nbytes), 4)
        self.copied_nbytes = 4 * copied**2
        self.ram = _array(tiers.host, below[0], (copied, copied))
        self.whole = _array(tiers.top, above[0], (copied, copied))
        self.hyper = np.array([1, 0.9, 0.1, 0.95, 0.05, 1, 1e-3, 1, 1e-8], np.float32)
        part = below[0].tile.shape[0] // cores
        self.updated_nbytes = UPDATE_NBYTES * part
        w, g, m, v = (residency.tile for residency in below[:UPDATED])
        self.step = adamw(w, g, m, v, Tile("hyper", (HYPER,)), decay=True, number=0)
        #: by core, what it updates one after another
        self.parts = [
            [tuple(tile.array[core * part : (core + 1) * part] for tile in below[first : first + UPDATED])
             for first in range(0, len(below), UPDATED)] for core in range(cores)
        ]  # fmt: skip
        self.turns = [0] * cores
        self.norms = np.zeros((cores, 1))

    def upload(self, chain: int, after: StreamEvents) -> StreamEvent:
        return self.device.upload(self.whole, self.ram, after)

    def download(self, chain: int, after: StreamEvents) -> StreamEvent:
        return self.device.download(self.ram, self.whole, after)

    def update(self, chain: int, after: StreamEvents) -> StreamEvent:
        sets, turn = self.parts[chain], self.turns[chain]
        self.turns[chain] += 1  # back at the same tiles only after all others
        return self.device.launch_on_host(self.step, (*sets[turn % len(sets)], self.hyper), self.norms[chain], after)


def _array(tier: Tier, residency: Residency, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Over the slot of one of the probes' tiles, in another shape."""
    assert residency.slot is not None
    return tier.memory.array(residency.slot, shape, dtype)


def _edge(most: int, nbytes: int, itemsize: int) -> int:
    """Of the largest square of such items within so many bytes, up to `most`."""
    return min(most, math.isqrt(nbytes // itemsize))
