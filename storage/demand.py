"""What a set of tiles demands of a tier: slot sizes, the floor, how many there are, and how a cap is divided by it.

Pure numbers. They are measured from programs by asynctile/demand.py; the slots are cut by storage/arena.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size
from asynctile.storage.tile import Tile

#: Slots begin at multiples of a cache line.
ALIGNMENT = 64


class Demand:
    """What slots a set of tiles wants.

    sizes: bytes of a small and of a large slot, ascending (one size where all tiles are alike).
    floor: the most slots of each size that one operation needs at once. what: the operation that sets the floor.
    exact: for every size that occurs, how many tiles of it there are at once when nothing is ever evicted.
    standing: the tiles that stay between runs; they are counted in `exact`.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        floor: tuple[int, ...],
        exact: Mapping[int, int],
        what: str,
        standing: Iterable[Tile] = (),
    ) -> None:
        self.standing = frozenset(standing)
        self.sizes = sizes
        self.floor = floor
        self.exact = exact
        self.what = what
        self.full = tuple(
            sum(count for size, count in exact.items() if low < size <= high)
            for low, high in zip((0, *sizes), sizes, strict=False)
        )

    @property
    def small(self) -> int:
        """The largest size that counts as small; 0 where all tiles are alike."""
        return self.sizes[0] if len(self.sizes) > 1 else 0

    @property
    def resident_nbytes(self) -> int:
        """Bytes when every tile stays, each in a slot of its own size."""
        return sum(size * count for size, count in self.exact.items())

    @property
    def floor_nbytes(self) -> int:
        """The smallest cap that works where tiles can be evicted."""
        return sum(size * count for size, count in zip(self.sizes, self.floor, strict=True))

    def rounded(self, alignment: int) -> Demand:
        """The same demand where every slot is a multiple of `alignment`."""
        if alignment == ALIGNMENT:
            return self
        exact: Counter[int] = Counter()
        for size, count in self.exact.items():
            exact[align(size, alignment)] += count
        floors: dict[int, int] = {}
        for size, count in zip(self.sizes, self.floor, strict=True):
            floors[align(size, alignment)] = floors.get(align(size, alignment), 0) + count
        small = align(self.small, alignment)
        if len(floors) > 1 and any(self.small < size <= small for size in self.exact):
            floors[small] += self.floor[-1]  # tiles that were large before may now stand among the small ones
        return Demand(tuple(floors), tuple(floors.values()), exact, self.what, self.standing)

    def passing(self) -> Demand:
        """The demand on a tier that tiles only pass through: one slot of each size is enough."""
        return Demand(self.sizes, (1,) * len(self.sizes), self.exact, "a tile on its way to the device", self.standing)

    def divide(self, cap: int, argument: str = "device_memory") -> list[tuple[int, int]]:
        """(slot size, count) under `cap`: the floor, then all the small ones if a tenth of the rest pays for them."""
        self.check(cap, argument)
        spare = cap - self.floor_nbytes
        counts = []
        for size, floor, full in zip(self.sizes[:-1], self.floor, self.full, strict=False):
            count = floor + max(0, min(full - floor, spare // 10 // size))
            spare -= (count - floor) * size
            counts.append(count)
        counts.append(self.floor[-1] + spare // self.sizes[-1])
        return list(zip(self.sizes, counts, strict=True))

    def check(self, cap: int, argument: str = "device_memory") -> None:
        """BudgetError if `cap` is below the floor."""
        if cap >= self.floor_nbytes:
            return
        parts = " and ".join(
            f"{count} slots of {format_size(size)}" for size, count in zip(self.sizes, self.floor, strict=True) if count
        )
        raise BudgetError(
            f"{argument} of {format_size(cap)} is below the floor of {format_size(self.floor_nbytes)} "
            f"({self.floor_nbytes} bytes): {self.what} needs {parts} at once; raise {argument} or choose a smaller tile",
            floor=self.floor_nbytes,
        )


def align(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment
