"""The rates of an engine's device and its link: a short probe of each, with the operations and copies that steps use.

A GPU is probed completely, once on a machine (known.py). Any device may be probed for its products alone, to say how
well a training uses it (Trainer.gemm_rate). cores.py probes cores.

Probes run on the device's streams, in slots that they take for as long as they last, so they stay below the caps like a
step. They launch on the device itself, without a schedule: many pieces at once, ordered only by chain, in the slots in shapes
of their own. A schedule would order them otherwise, and the work of carrying it out would be measured as well.
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

#: A probe is repeated with four times the work until it takes this many seconds.
LONG_ENOUGH_S = 2e-3
#: Pieces of a chain enqueued at once. Between bursts this thread sleeps, and leaves the interpreter to the workers.
BURST = 8
#: Largest edge of the matrices, times Grain.tall: on a GPU, a product must last far longer than its launch.
GEMM_EDGE = 1024
#: The same for a core: these products last less than a millisecond.
CORE_GEMM_EDGE = 256
#: Number of tries.
TRIES = 5
#: Tiles of a product beside its result: both factors.
FACTORS = 2
#: Tiles in the probe of a GPU: factors and results.
PROBED = 4

#: Enqueues one piece of a chain, behind the piece before it: (chain, events) to its event.
Work = Callable[[int, StreamEvents], StreamEvent]


async def measure_gemms(tiers: Tiers, dtype: np.dtype[Any]) -> float | None:
    """Measure the device's GEMMs in FLOP/s; return None if the caps have no free room for them, since no tile should leave.

    Runs on the device's loop, over arenas that have been cut, with nothing in flight. dtype: of the operands.
    """
    with ExitStack() as held:
        gemms = (_on_cores(tiers, held) if tiers.device.workers is not None else None) or _in_slots(tiers, held, dtype)
        if gemms is None:
            return None
        try:  # the fastest try counts, since other work on the machine slows some of them
            return max([await gemms.rate(gemms.multiply, gemms.targets, gemms.flops) for _ in range(TRIES)])
        finally:  # if cancelled, enqueued products still write there: keep the memory until the last one ends
            await finish(tiers.run_ahead.settle())


def _on_cores(tiers: Tiers, held: ExitStack) -> _Gemms | None:
    """Return products in borrowed RAM: the slots of a small model are too small to show how fast cores are."""
    count, shape = FACTORS + len(os.sched_getaffinity(0)), (CORE_GEMM_EDGE, CORE_GEMM_EDGE)
    nbytes = count * 4 * CORE_GEMM_EDGE**2
    loan = tiers.caps.borrow(nbytes, "a probe of products") if tiers.host.arena.may_lend(nbytes) else None
    if loan is None:
        return None
    held.callback(loan.give_back)
    return _Gemms(tiers, [(Tile(f"probe[{index}]", shape), np.empty(shape, np.float32)) for index in range(count)])


def _in_slots(tiers: Tiers, held: ExitStack, dtype: np.dtype[Any]) -> _Gemms | None:
    """Return products in the largest slots of the device; None if these are too small or not free."""
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
    """Measure a GPU and its link; return None if the cap on its memory is too small for a probe.

    Runs on the device's loop, before anything stands in its memory.
    cap: bytes of its memory that the probe may take, None for any.
    dtype: of the operands of its GEMMs.
    cores: rates of its host, which the result includes.
    """
    edge = GEMM_EDGE * device.grain.tall
    nbytes = PROBED * edge**2 * dtype.itemsize
    if cap is not None and cap < nbytes:
        return None
    tiers = Tiers((device,), None, None, TierOptions(device_memory=nbytes, host_memory=nbytes))
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
            finally:  # if cancelled, enqueued copies still write there
                await finish(tiers.run_ahead.settle())
    finally:
        tiers.close()


def _targets(top: Pool) -> int:
    """Return how many products to compute side by side."""
    cores = len(os.sched_getaffinity(0))
    return cores if top.limit is None else max(1, min(cores, top.limit - FACTORS))


@contextmanager
def _held(tier: Tier, pool: Pool, count: int) -> Iterator[list[Residency]]:
    """Hold `count` tiles on `tier` for a while, each a whole slot of `pool`; nobody writes them back."""
    tiles = [tier.of(Tile(f"probe[{index}]", (pool.slot_nbytes // 4,))) for index in range(count)]
    try:
        tier.admit(tiles, "w" * count)
        yield tiles
    finally:
        for tile in tiles:
            tier.release(tile)


def _operands(tiers: Tiers, slots: list[Residency], dtype: np.dtype[Any]) -> list[tuple[Tile, Any]]:
    """Return square matrices in slots of the device, as large as fits, up to the edge."""
    inner = _edge(GEMM_EDGE * tiers.device.grain.tall, slots[0].tile.nbytes, dtype.itemsize)
    return [(Tile(slot.tile.name, (inner, inner), dtype), _array(tiers.top, slot, (inner, inner), dtype)) for slot in slots]


class _Chains:
    """Chains of work on a device, side by side; within a chain each piece waits for the one before."""

    def __init__(self, tiers: Tiers) -> None:
        self.device, self.run_ahead = tiers.device, tiers.run_ahead

    async def rate(self, work: Work, chains: int, amount: int) -> float:
        """Return the rate in units per second: each piece does `amount` units, and `chains` chains run side by side."""
        await self._seconds(work, chains, 1)  # the first touch of memory
        rounds = 1
        while (seconds := await self._seconds(work, chains, rounds)) < LONG_ENOUGH_S:
            rounds *= 4
        seconds = min(seconds, await self._seconds(work, chains, rounds))  # again, in case the machine paused once
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
    """Products of one size. operands: tiles on the device with their arrays: both factors, then the targets."""

    def __init__(self, tiers: Tiers, operands: list[tuple[Tile, Any]]) -> None:
        super().__init__(tiers)
        self.factors = [tile for tile, _ in operands]
        self.arrays = [array for _, array in operands]
        self.targets = len(operands) - FACTORS
        self.flops = 2 * self.factors[0].shape[0] ** 3
        # Old bytes may be slow to compute with: NaN, or numbers that are nearly zero.
        for tile, array in operands:
            self.run_ahead.add(self.device.launch(fill(tile, 1.0), (array,), None, ()))

    def multiply(self, chain: int, after: StreamEvents) -> StreamEvent:
        a, b, c = (0, 1, 2 + chain)
        operation = gemm(self.factors[a], self.factors[b], self.factors[c])
        return self.device.launch(operation, (self.arrays[a], self.arrays[b], self.arrays[c]), None, after)


class _Copies(_Chains):
    """Copies between two tiles in the device's memory and one in RAM, each of `shape`."""

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
    """Return an array of this shape over the slot of a probe's tile."""
    assert residency.slot is not None
    return tier.memory.array(residency.slot, shape, dtype)


def _edge(most: int, nbytes: int, itemsize: int) -> int:
    """Return the edge of the largest square of such items within `nbytes` bytes, at most `most`."""
    return min(most, math.isqrt(nbytes // itemsize))
