"""How fast an engine's device and its link are: a short probe of each, by what operations and copies use.

A GPU is asked for all of it once on a machine (known.py), and any device for its products alone by who says how well it is used
(Trainer.gemm_rate). Cores are cores.py. The probes run on the device's streams and on slots of tiers, taken for as long as they
last: they stay below the caps as a step does. But they are launched on the device itself, past the tile coroutine: they use
those slots in shapes of their own, many at once, ordered by chain alone, and what it does for an operation (slots, ranks, the
next use) would be measured with them and disturb the ranks of real tiles.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from asynctile.device.base import Device
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.ops import fill, gemm
from asynctile.program.needs import demand_of
from asynctile.schedule.rates import Rates, assumed
from asynctile.storage.documents import finish
from asynctile.storage.pool import Pool
from asynctile.storage.residency import Residency
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
#: Tiles that the probe of a GPU has: factors and results.
PROBED = 4

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


async def measure_gpu(device: Device, dtype: np.dtype[Any], cap: int | None, cores: Rates) -> Rates | None:
    """Rates of a GPU and its link beside `cores`, those of its host: on its loop, before anything stands in its memory.

    dtype: that of the operands of its GEMMs. None where the cap on its memory is too small for a probe.
    """
    edge = GEMM_EDGE * device.grain.tall
    nbytes = PROBED * edge**2 * dtype.itemsize
    if cap is not None and cap < nbytes:
        return None
    tiers = Tiers(device, None, None, TierOptions(device_memory=nbytes, host_memory=nbytes))
    try:
        await tiers.caps.cut(demand_of([], [Tile(f"probe[{index}]", (edge, edge), dtype) for index in range(PROBED)]))
        flops_per_s = await measure_gemms(tiers, dtype)
        if flops_per_s is None:
            return None
        with ExitStack() as held:
            top, ram = tiers.top.arena.pools[-1], tiers.host.arena.pools[-1]
            above, below = (held.enter_context(_held(tier, pool, 2)) for tier, pool in ((tiers.top, top), (tiers.host, ram)))
            copies = _Copies(tiers, above, below, (edge, edge), dtype)
            try:
                return replace(
                    assumed(device.name),
                    flops_per_s=flops_per_s,
                    memory_per_s=await copies.rate(copies.inside, 1, 2 * copies.nbytes),
                    up_per_s=await copies.rate(copies.upload, 1, copies.nbytes),
                    down_per_s=await copies.rate(copies.download, 1, copies.nbytes),
                    updated_per_s=cores.updated_per_s,
                    copied_per_s=cores.copied_per_s,
                )
            finally:  # broken off, those that were enqueued still write there
                await finish(tiers.run_ahead.settle())
    finally:
        tiers.close()


def _targets(top: Pool) -> int:
    """Products to compute side by side."""
    cores = len(os.sched_getaffinity(0))
    return cores if top.limit is None else max(1, min(cores, top.limit - FACTORS))


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


class _Chains:
    """Work on a device, chain beside chain, each piece behind the one before it."""

    def __init__(self, tiers: Tiers) -> None:
        self.device, self.run_ahead = tiers.device, tiers.run_ahead

    async def rate(self, work: Work, chains: int, amount: int) -> float:
        """`amount` a second, of which each piece of work does one; `chains` of them run side by side."""
        await self._seconds(work, chains, 1)  # the first touch of memory
        rounds = 1
        while (seconds := await self._seconds(work, chains, rounds)) < LONG_ENOUGH_S:
            rounds *= 4
        seconds = min(seconds, await self._seconds(work, chains, rounds))  # a machine that was away for once is not slow
        return amount * chains * rounds / seconds

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


class _Gemms(_Chains):
    """Products of one size. operands: on the device, both factors and the targets, each with its array."""

    def __init__(self, tiers: Tiers, operands: list[tuple[Tile, Any]]) -> None:
        super().__init__(tiers)
        self.factors = [tile for tile, _ in operands]
        self.arrays = [array for _, array in operands]
        self.targets = len(operands) - FACTORS
        self.flops = 2 * self.factors[0].shape[0] ** 3
        # What stood here before may be slow to compute with: no numbers, or numbers that are nearly zero.
        for tile, array in operands:
            self.run_ahead.add(self.device.launch(fill(tile, 1.0), (array,), None, ()))

    def multiply(self, chain: int, after: StreamEvents) -> StreamEvent:
        a, b, c = (0, 1, 2 + chain)
        operation = gemm(self.factors[a], self.factors[b], self.factors[c])
        return self.device.launch(operation, (self.arrays[a], self.arrays[b], self.arrays[c]), None, after)


class _Copies(_Chains):
    """Copies between two tiles in the device's memory and one in RAM, of `shape` each."""

    def __init__(
        self, tiers: Tiers, above: list[Residency], below: list[Residency], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        super().__init__(tiers)
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.one, self.other = (_array(tiers.top, slot, shape, dtype) for slot in above)
        self.ram = _array(tiers.host, below[0], shape, dtype)
        self.ram.fill(0)

    def inside(self, chain: int, after: StreamEvents) -> StreamEvent:
        return self.device.copy(self.one, self.other, after)

    def upload(self, chain: int, after: StreamEvents) -> StreamEvent:
        return self.device.upload(self.one, self.ram, after)

    def download(self, chain: int, after: StreamEvents) -> StreamEvent:
        return self.device.download(self.ram, self.one, after)


def _array(tier: Tier, residency: Residency, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Over the slot of one of the probes' tiles, in another shape."""
    assert residency.slot is not None
    return tier.memory.array(residency.slot, shape, dtype)


def _edge(most: int, nbytes: int, itemsize: int) -> int:
    """Of the largest square of such items within so many bytes, up to `most`."""
    return min(most, math.isqrt(nbytes // itemsize))
