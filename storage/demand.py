"""What a set of tiles demands of a tier: slot sizes, the floor, how many there are, and how a cap is divided by it.

Pure numbers. They are measured from programs by asynctile/program/needs.py; the slots are cut by storage/arena.py.
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
    at_host, what_at_host: the same for operations that run in the tier below; "" if there are none.
    exact: for every size that occurs, how many tiles of it there are at once when nothing is ever evicted.
    in_turn: slots beside those in the tier below, for what comes down to be used there once: the next of it need not wait.
    standing: the tiles that stay between runs; they are counted in `exact`.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        floor: tuple[int, ...],
        exact: Mapping[int, int],
        what: str,
        standing: Iterable[Tile] = (),
        *,
        at_host: tuple[int, ...] | None = None,
        what_at_host: str = "",
        in_turn: Mapping[int, int] | None = None,
    ) -> None:
        self.standing = frozenset(standing)
        self.sizes = sizes
        self.floor = floor
        self.exact = exact
        self.what = what
        self.at_host = at_host if at_host is not None else (0,) * len(sizes)
        self.what_at_host = what_at_host
        self.in_turn = Counter(in_turn)
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
        exact, in_turn = (_rounded(counts, alignment) for counts in (self.exact, self.in_turn))
        floor, at_host = (self._rounded(counts, alignment) for counts in (self.floor, self.at_host))
        return Demand(tuple(floor), tuple(floor.values()), exact, self.what, self.standing,
                      at_host=tuple(at_host.values()), what_at_host=self.what_at_host, in_turn=in_turn)  # fmt: skip

    def _rounded(self, counts: tuple[int, ...], alignment: int) -> dict[int, int]:
        """Slots of each size that `counts` come to."""
        found: dict[int, int] = {}
        for size, count in zip(self.sizes, counts, strict=True):
            found[align(size, alignment)] = found.get(align(size, alignment), 0) + count
        small = align(self.small, alignment)
        if len(found) > 1 and any(self.small < size <= small for size in self.exact):
            found[small] += counts[-1]  # tiles that were large before may now stand among the small ones
        return found

    def passing(self, *, in_turn: bool = False) -> Demand:
        """The demand on the tier below: tiles pass through, one slot of each size is enough; and operations may run there.

        in_turn: with the slots for what comes down in turn, without which it is slower.
        """
        floor = tuple(max(1, count) for count in self.at_host)
        what = self.what_at_host or "a tile on its way to the device"
        exact = Counter(self.exact) + self.in_turn if in_turn else self.exact
        return Demand(self.sizes, floor, exact, what, self.standing)

    def alone(self) -> Demand:
        """The demand where every operation runs in one tier."""
        floor = tuple(map(max, self.floor, self.at_host))
        what = self.what_at_host if self.at_host[-1] > self.floor[-1] else self.what
        return Demand(self.sizes, floor, self.exact, what, self.standing)

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

    def check(self, cap: int, argument: str = "device_memory", remedy: str = "") -> None:
        """BudgetError if `cap` is below the floor. argument: what gave the cap; remedy: how to raise it, if not by that."""
        if cap >= self.floor_nbytes:
            return
        parts = " and ".join(
            f"{count} slots of {format_size(size)}" for size, count in zip(self.sizes, self.floor, strict=True) if count
        )
        remedy = remedy or f"raise {argument}"
        raise BudgetError(
            f"{argument} of {format_size(cap)} is below the floor of {format_size(self.floor_nbytes)} "
            f"({self.floor_nbytes} bytes): {self.what} needs {parts} at once; {remedy} or choose a smaller tile",
            floor=self.floor_nbytes,
        )


def _rounded(counts: Mapping[int, int], alignment: int) -> Counter[int]:
    """Slots by size, where every one is a multiple of `alignment`."""
    found: Counter[int] = Counter()
    for size, count in counts.items():
        found[align(size, alignment)] += count
    return found


def align(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment
