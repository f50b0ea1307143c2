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
    pitch: a tile along a part has a multiple of so many elements; those beyond the part are padding.
    """

    offsets: tuple[int, ...]
    pitch: int = 1

    @classmethod
    def even(cls, n: int, tile: int, multiple: int = 1, pitch: int = 1) -> Split:
        """Cut n into as few parts as `tile` allows: all but the last equal, of a multiple of `multiple` and of `pitch`.

        One of these is 1. No part is above max(tile, multiple, pitch). With multiple = 1 parts are multiples of GRAIN where
        `tile` leaves room.
        """
        unit = multiple * pitch
        count = cls.count(n, tile, unit)
        size = units(units(n, unit), count) * unit
        rounded = units(size, GRAIN) * GRAIN
        if multiple == 1 and rounded <= max(1, tile // unit) * unit:
            size = rounded
        return cls((*(i * size for i in range(count)), n), pitch)

    @staticmethod
    def count(n: int, tile: int, unit: int = 1) -> int:
        """How many parts `even` cuts n into, at most; unit: what they are multiples of."""
        return units(units(n, unit), max(1, tile // unit))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.offsets[:-1], self.offsets[1:], strict=True))

    def size(self, i: int) -> int:
        """Elements of a tile along part i, padding included."""
        return units(self.offsets[i + 1] - self.offsets[i], self.pitch) * self.pitch

    def padding(self, i: int) -> int:
        """How many of them, the last ones, are not of the part."""
        return self.size(i) - (self.offsets[i + 1] - self.offsets[i])

    def part(self, i: int) -> slice:
        """Part i as a slice of the axis."""
        return slice(self.offsets[i], self.offsets[i + 1])

    def repeated(self, times: int) -> Split:
        """The same cut, `times` sections one after another: q, k and v in c_attn."""
        whole = self.offsets[-1]
        starts = (section * whole + offset for section in range(times) for offset in self.offsets[:-1])
        return Split((*starts, times * whole), self.pitch)


def units(n: int, unit: int) -> int:
    """How many units n elements are, the last one not whole."""
    return -(-n // unit)
