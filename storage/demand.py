"""The demand on a tier: which slot sizes a set of tiles needs, how many of each, and how a cap is divided by them.

Pure numbers. asynctile/program/needs.py measures a demand from programs; storage/arena.py cuts the slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from asynctile.storage.counts import counted
from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size
from asynctile.storage.tile import Tile

#: Slots begin at multiples of a cache line (bytes).
ALIGNMENT = 64


class Demand:
    """The slots that a set of tiles needs.

    sizes: bytes of a small and of a large slot, ascending (one size if all tiles are alike).
    floor: for each size, the most slots that one operation needs at once. what: the operation that sets the floor.
    at_host, what_at_host: the same for operations that run in the tier below; zeros and "" if there are none.
    exact: for every tile size that occurs, how many tiles are alive at once if nothing is ever evicted, {size: count}.
    in_turn: extra slots in the tier below, {size: count}, for tiles that come down to be used there once. With them the next
    such tile need not wait for a slot.
    standing: the tiles that stay between runs; `exact` includes them.
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
        """The largest size in bytes that counts as small; 0 if all tiles are alike."""
        return self.sizes[0] if len(self.sizes) > 1 else 0

    @property
    def resident_nbytes(self) -> int:
        """Bytes of all tiles, each in a slot of its own size."""
        return sum(size * count for size, count in self.exact.items())

    @property
    def floor_nbytes(self) -> int:
        """The smallest cap in bytes that works if tiles can be evicted."""
        return sum(size * count for size, count in zip(self.sizes, self.floor, strict=True))

    def rounded(self, alignment: int) -> Demand:
        """Return the same demand with every slot size rounded up to a multiple of `alignment`."""
        if alignment == ALIGNMENT:
            return self
        exact, in_turn = (_rounded(counts, alignment) for counts in (self.exact, self.in_turn))
        floor, at_host = (self._rounded(counts, alignment) for counts in (self.floor, self.at_host))
        return Demand(tuple(floor), tuple(floor.values()), exact, self.what, self.standing,
                      at_host=tuple(at_host.values()), what_at_host=self.what_at_host, in_turn=in_turn)  # fmt: skip

    def _rounded(self, counts: tuple[int, ...], alignment: int) -> dict[int, int]:
        """Return {rounded size: count} for `counts`, one per size; sizes that round to the same number are added up."""
        found = _rounded(dict(zip(self.sizes, counts, strict=True)), alignment)
        small = align(self.small, alignment)
        if len(found) > 1 and any(self.small < size <= small for size in self.exact):
            found[small] += counts[-1]  # tiles that counted as large may now land among the small ones
        return found

    def passing(self, *, in_turn: bool = False) -> Demand:
        """Return the demand on the tier below, where tiles pass through and host operations run.

        One slot of each size is enough for tiles that pass through. in_turn: include the extra slots `in_turn`, without which a
        step is slower.
        """
        floor = tuple(max(1, count) for count in self.at_host)
        what = self.what_at_host or "a tile on its way to the device"
        exact = Counter(self.exact) + self.in_turn if in_turn else self.exact
        return Demand(self.sizes, floor, exact, what, self.standing)

    def alone(self) -> Demand:
        """Return the demand if every operation runs in one tier."""
        floor = tuple(map(max, self.floor, self.at_host))
        what = self.what_at_host if self.at_host[-1] > self.floor[-1] else self.what
        return Demand(self.sizes, floor, self.exact, what, self.standing)

    def divide(self, cap: int, argument: str = "device_memory") -> list[tuple[int, int]]:
        """Return (slot size, count) for each size under `cap`.

        Every size gets its floor. A tenth of the rest goes to more small slots, up to all of them; what then remains goes to
        large slots.
        """
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
        """Raise BudgetError if `cap` is below the floor.

        argument: the option that set the cap. remedy: how to raise the cap, if not by that option.
        """
        if cap >= self.floor_nbytes:
            return
        slots = zip(self.sizes, self.floor, strict=True)
        parts = " and ".join(f"{counted(count, 'slot')} of {format_size(size)}" for size, count in slots if count)
        remedy = remedy or f"raise {argument}"
        raise BudgetError(
            f"{argument} of {format_size(cap)} is below the floor of {format_size(self.floor_nbytes)} "
            f"({self.floor_nbytes} bytes): {self.what} needs {parts} at once; {remedy} or choose a smaller tile",
            floor=self.floor_nbytes,
        )


def _rounded(counts: Mapping[int, int], alignment: int) -> Counter[int]:
    """Return {rounded size: count} with every size rounded up to a multiple of `alignment`."""
    found: Counter[int] = Counter()
    for size, count in counts.items():
        found[align(size, alignment)] += count
    return found


def align(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment
