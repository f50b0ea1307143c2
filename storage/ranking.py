"""The ranking of the tiles in each pool, by use: which one to evict. One heap per pool, with stale entries dropped lazily.

For storage/ledger.py, which reports every use. Only pools with a limited number of slots are ranked. In the others nothing has
to be evicted for another tile, or the plan already knows what to evict.
"""

from __future__ import annotations

import heapq
from collections.abc import Container

from asynctile.storage.residency import Residency
from asynctile.storage.slot import Home


class Ranking:
    """The ranks of resident tiles, one heap per pool. The tile with the largest `next_use` ranks highest."""

    def __init__(self) -> None:
        self._heaps: dict[Home, list[tuple[int, int, Residency]]] = {}
        self._order = 0

    def clear(self) -> None:
        """Forget all ranks, because the pools are gone."""
        self._heaps.clear()

    def rank(self, pool: Home, residency: Residency) -> None:
        """Rank a residency by its `next_use`, which was just set, in the pool of its slot."""
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
        """Return the residency of the highest rank that is not in `held`; None if there is none."""
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
