"""The ranking of what stands in a pool: who was used longest ago, in heaps that forget lazily.

For storage/ledger.py, which tells it of every use. Only slots that are counted are ranked: elsewhere nobody has to leave for
another, or it is known ahead who does.
"""

from __future__ import annotations

import heapq
from collections.abc import Container

from asynctile.storage.residency import Residency
from asynctile.storage.slot import Home


class Ranking:
    """One heap a pool."""

    def __init__(self) -> None:
        self._heaps: dict[Home, list[tuple[int, int, Residency]]] = {}
        self._order = 0

    def clear(self) -> None:
        """Its pools are gone."""
        self._heaps.clear()

    def rank(self, pool: Home, residency: Residency) -> None:
        """By its next use, which has just been set, in the pool in whose slot it stands."""
        if pool.limit is None:
            return
        heap = self._heaps.setdefault(pool, [])
        self._order += 1
        heapq.heappush(heap, (-residency.next_use, self._order, residency))
        if len(heap) > 64 + 8 * pool.used:
            live = [entry for entry in heap if entry[2].slot is not None and entry[2].next_use == -entry[0]]
            heap[:] = {entry[2]: entry for entry in live}.values()
            heapq.heapify(heap)

    def furthest(self, pool: Home, held: Container[Residency]) -> Residency | None:
        """Who has the highest rank and is not `held`."""
        heap = self._heaps.get(pool, [])
        aside = []
        found = None
        while heap:
            entry = heap[0]
            residency = entry[2]
            if residency.slot is None or residency.slot.pool is not pool or residency.next_use != -entry[0]:
                heapq.heappop(heap)
            elif residency in held:
                aside.append(heapq.heappop(heap))
            else:
                found = residency
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return found
