"""How fast an engine's device, its link and the CPU beside it are: a short probe of each, by what operations and copies use.

Who places work asks (asynctile/layers/update_placement.py); nothing in the engine does. The probes run on the device's streams
and on slots of its tiers, taken for as long as they last: they stay below the caps as a step does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from asynctile.errors import BudgetError
from asynctile.handle import Handle
from asynctile.ops import adamw, fill, gemm
from asynctile.ops.adamw import HYPER
from asynctile.stream import Event
from asynctile.tier import Tier
from asynctile.tiers import Tiers

#: A probe is repeated, four times as often each time, until it takes this long.
LONG_ENOUGH_S = 2e-3
#: Pieces of a chain enqueued at once: this thread sleeps between bursts, and leaves the interpreter to those that work.
BURST = 8
#: Edges of the tiles, at most: a product that is over soon (larger where row tiles are tall), and copies that no cache holds.
GEMM_EDGE, COPY_EDGE = 1024, 2048
#: Bytes of RAM that AdamW moves for one parameter: w, m and v in and out, g in.
UPDATE_NBYTES = 28

#: Enqueues one piece of the work of a chain, behind the piece before it.
Work = Callable[[int, Sequence[Event]], Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """compute: FLOP/s of the device's GEMMs. upload, download: bytes/s. update: bytes/s of RAM in AdamW on the CPU."""

    compute: float
    upload: float
    download: float
    update: float


async def measure(tiers: Tiers, dtype: np.dtype[Any]) -> Rates | None:
    """On the device's loop, over arenas that were cut, with nothing in flight. None if no RAM is free to try it in.

    dtype: that of the operands of its GEMMs.
    """
    edge = min(COPY_EDGE, *(math.isqrt(tier.arena.pools[-1].slot_nbytes // 4) for tier in (tiers.top, tiers.host)))
    cores = min(edge, len(os.sched_getaffinity(0)))
    limit = tiers.top.arena.pools[-1].limit
    targets = cores if limit is None else max(1, min(cores, limit - 2))
    try:
        with _held(tiers.host, edge, 4) as below, _held(tiers.top, edge, 2 + targets) as above:
            await tiers.window.drain()  # what stood in these slots has left
            probes = _Probes(tiers, above, below, edge, cores, dtype)
            return Rates(
                compute=await probes.rate(probes.multiply, targets, probes.flops),
                upload=await probes.rate(probes.upload, 1, probes.nbytes),
                download=await probes.rate(probes.download, 1, probes.nbytes),
                update=await probes.rate(probes.update, cores, UPDATE_NBYTES * edge * (edge // cores)),
            )
    except BudgetError:
        return None


@contextmanager
def _held(tier: Tier, edge: int, count: int) -> Iterator[list[Handle]]:
    """Square tiles on `tier` for a while; nobody writes them back."""
    tiles = [Handle(f"probe[{index}]", (edge, edge)) for index in range(count)]
    try:
        tier.admit(tiles, "w" * count)
        yield tiles
    finally:
        for tile in tiles:
            tier.release(tile)


class _Probes:
    """above: tiles on the device, the last ones for results. below: four in RAM. edge: of all of them. cores: of the CPU."""

    def __init__(
        self, tiers: Tiers, above: list[Handle], below: list[Handle], edge: int, cores: int, dtype: np.dtype[Any]
    ) -> None:
        self.device, self.window = tiers.device, tiers.window
        self.ram, self.whole = below[0].array, above[0].array
        self.nbytes = below[0].nbytes
        self.hyper = np.array([1, 0.9, 0.1, 0.95, 0.05, 1, 1e-3, 1, 1e-8], np.float32)
        inner = min(edge, GEMM_EDGE * tiers.device.grain.tall)
        self.flops = 2 * inner**3
        self.factors = [Handle(tile.name, (inner, inner), dtype) for tile in above]
        self.arrays = [tiers.top.memory.array(tile.slot, (inner, inner), dtype) for tile in above]
        # What stood here before may be slow to compute with: no numbers, or numbers that are nearly zero.
        for tile, array in zip(self.factors, self.arrays, strict=True):
            self.window.add(self.device.launch(fill(tile, 1.0), (array,), None, ()))
        for tile in below:
            tile.array.fill(1.0)
        rows = edge // cores
        w, g, m, v = below
        self.step = adamw(w, g, m, v, Handle("hyper", (HYPER,)), decay=True, number=0)
        self.parts = [[tile.array[core * rows : (core + 1) * rows] for tile in below] for core in range(cores)]
        self.norms = np.zeros((cores, 1))

    async def rate(self, work: Work, chains: int, amount: int) -> float:
        """`amount` a second, of which each piece of work does one; `chains` of them run side by side."""
        await self._seconds(work, chains, 1)  # the first touch of memory
        rounds = 1
        while (seconds := await self._seconds(work, chains, rounds)) < LONG_ENOUGH_S:
            rounds *= 4
        seconds = min(seconds, await self._seconds(work, chains, rounds))  # a machine that was away for once is not slow
        return amount * chains * rounds / seconds

    def multiply(self, chain: int, after: Sequence[Event]) -> Event:
        a, b, c = (0, 1, 2 + chain)
        operation = gemm(self.factors[a], self.factors[b], self.factors[c])
        return self.device.launch(operation, (self.arrays[a], self.arrays[b], self.arrays[c]), None, after)

    def upload(self, chain: int, after: Sequence[Event]) -> Event:
        return self.device.upload(self.whole, self.ram, after)

    def download(self, chain: int, after: Sequence[Event]) -> Event:
        return self.device.download(self.ram, self.whole, after)

    def update(self, chain: int, after: Sequence[Event]) -> Event:
        return self.device.launch_on_host(self.step, (*self.parts[chain], self.hyper), self.norms[chain], after)

    async def _seconds(self, work: Work, chains: int, rounds: int) -> float:
        begin = time.perf_counter()
        for burst in range(0, rounds, BURST):
            last: list[Sequence[Event]] = [()] * chains
            for _ in range(min(BURST, rounds - burst)):
                for chain in range(chains):
                    last[chain] = (work(chain, last[chain]),)
            for (event,) in last:
                await self.window.landed(event)
        return time.perf_counter() - begin
