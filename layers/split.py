"""One axis cut into parts: `Split`. What is cut how is tiling.py (columns, vocabulary, positions), rows.py (tokens)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Parts are multiples of this many elements where possible: whole cache lines and vectors.
GRAIN = 16


@dataclass(frozen=True, slots=True)
class Split:
    """One axis cut into parts [offsets[i], offsets[i + 1]).

    Equal parts and a shorter last one, rather than parts that differ by one: slots of few sizes are easy to reuse.
    """

    offsets: tuple[int, ...]

    @classmethod
    def even(cls, n: int, tile: int, multiple: int = 1) -> Split:
        """Cut n into as few parts as `tile` allows: all but the last equal, of a multiple of `multiple`.

        No part is above max(tile, multiple). With multiple = 1 parts are multiples of GRAIN where `tile` leaves room.
        """
        count = cls.count(n, tile, multiple)
        units, room = n // multiple, max(1, tile // multiple)
        size = -(-units // count)
        rounded = -(-size // GRAIN) * GRAIN
        if multiple == 1 and rounded <= room:
            size = rounded
        return cls((*(i * size * multiple for i in range(count)), n))

    @staticmethod
    def count(n: int, tile: int, multiple: int = 1) -> int:
        """How many parts `even` cuts n into, at most."""
        return -(-(n // multiple) // max(1, tile // multiple))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.offsets[:-1], self.offsets[1:], strict=True))

    def size(self, i: int) -> int:
        """Elements of part i."""
        return self.offsets[i + 1] - self.offsets[i]

    def part(self, i: int) -> slice:
        """Part i as a slice of the axis."""
        return slice(self.offsets[i], self.offsets[i + 1])

    def repeated(self, times: int) -> Split:
        """The same cut, `times` sections one after another: q, k and v in c_attn."""
        whole = self.offsets[-1]
        starts = (section * whole + offset for section in range(times) for offset in self.offsets[:-1])
        return Split((*starts, times * whole))
