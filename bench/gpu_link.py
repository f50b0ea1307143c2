"""Do tiles cross the link as fast as a plain pinned copy?

    python bench/gpu_link.py [--device cuda:0] [--sizes 1 4 16 64] [--total 1024] [--write]

Copies between slots of the engine's pinned arena and slots of its device memory, `--total` MiB each way in tiles of the sizes
in MiB, each way alone and both at once, through the device's own streams. They are compared with one plain pinned copy of the
same bytes by PyTorch. Target: both ways at once at least 0.95 of the plain copy, from tiles of 4 MiB on.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
from gpu_common import engine_of, options_of
from gpu_peaks import MIB, Place, free, link_rates
from gpu_record import Section
from gpu_rows import LINK

from asynctile.share import runtime_of
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand

#: The target applies to tiles from this size on, in MiB.
ENOUGH = 4


class Slots:
    """Slots of `nbytes` in the pinned arena and on the device, as float32 arrays, for copies both ways."""

    def __init__(self, device: Any, nbytes: int, count: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self._arenas: list[Arena] = []  # they keep the device's memory alive
        self.up = list(zip(self._views(device, nbytes, count), self._views(device.host, nbytes, count), strict=True))
        self.down = list(zip(self._views(device.host, nbytes, count), self._views(device, nbytes, count), strict=True))
        noise = np.random.default_rng(1).standard_normal(nbytes // 4, np.float32)
        for _, host in self.up:
            host[:] = noise
        for host, _ in self.down:
            host[:] = 0  # touch every page before the copies

    def _views(self, memory: Any, nbytes: int, count: int) -> list[Any]:
        arena = Arena(count * nbytes, evictable=True)
        self._arenas.append(arena)
        for pool in arena.cut(Demand((nbytes,), (1,), {nbytes: count}, "copy")):
            memory.map_pool(pool)
        slots = [arena.pools[0].take(for_load=True) for _ in range(count)]
        return [memory.array(slot, (nbytes // 4,), np.float32) for slot in slots]

    def rate(self, ways: str) -> float:
        """Return bytes a second each way with all copies in flight at once, the median of five.

        ways: "up", "down" or "both".
        """
        spent = []
        for _ in range(6):
            start, events = time.perf_counter(), []
            for (target, source), (kept, left) in zip(self.up, self.down, strict=True):
                if ways != "down":
                    events.append(self.device.upload(target, source, ()))
                if ways != "up":
                    events.append(self.device.download(kept, left, ()))
            for event in events:
                event.wait()
                if event.error is not None:
                    raise event.error
            spent.append(time.perf_counter() - start)
        return len(self.up) * self.nbytes / statistics.median(spent[1:])

    def check(self) -> None:
        """Check that the bytes that were uploaded come back."""
        (target, source), (kept, _) = self.up[0], self.down[0]
        self.device.upload(target, source, ()).wait()
        self.device.download(kept, target, ()).wait()
        if not np.array_equal(kept, source):
            raise ArithmeticError("the bytes that came down differ from the bytes that went up")


async def main(options: Namespace) -> None:
    place = Place(options.device)
    section = Section("link", __doc__, options)
    section.configuration["bytes"] = f"{options.total} MiB each way, median of 5"
    rates = section.table("GB/s each way", "copies", "up alone", "down alone", "both at once", "of plain", "note")
    plain = link_rates(place, options.total * MIB)
    free(place)
    section.add(rates, "plain pinned copies", plain.up / 1e9, plain.down / 1e9, plain.both / 1e9, 1.0)
    async with engine_of(section, options) as engine:
        found = await asyncio.to_thread(measure, section, rates, runtime_of(engine).tiers.device, options, plain.both)
    if found:
        section.headline(f"both ways at once of plain, least of tiles from {ENOUGH} MiB on", min(found), 0.95)
    section.end()


def measure(section: Section, rates: Any, device: Any, options: Namespace, plain: float) -> Sequence[float]:
    """Measure a row for each size, and return the shares to which the target applies."""
    found = []
    for size in options.sizes:
        with section.row(rates, f"tiles of {size} MiB"):
            slots = Slots(device, size * MIB, max(1, options.total // size))
            slots.check()
            up, down, both = (slots.rate(ways) for ways in ("up", "down", "both"))
            section.add(rates, f"tiles of {size} MiB", up / 1e9, down / 1e9, both / 1e9, both / plain)
            if size >= ENOUGH:
                found.append(both / plain)
    return found


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, LINK)))
