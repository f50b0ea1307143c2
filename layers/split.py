"""One axis cut into parts: `Split`. tiling.py cuts columns, vocabulary and positions, rows.py cuts tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Parts are multiples of this many elements if possible, so that they are whole cache lines and vectors.
GRAIN = 16


@dataclass(frozen=True, slots=True)
class Split:
    """One axis cut into parts [offsets[i], offsets[i + 1]).

    All parts are equal except a shorter last one. The way not taken: parts that differ by one. Slots of few sizes are easy to
    reuse. pitch: the tile of a part has a multiple of this many elements; those beyond the part are padding.
    """

    offsets: tuple[int, ...]
    pitch: int = 1

    @classmethod
    def even(cls, n: int, tile: int, multiple: int = 1, pitch: int = 1) -> Split:
        """Return n cut into as few parts as `tile` allows, equal multiples of `multiple` and of `pitch` except for the last.

        One of `multiple` and `pitch` is 1. No part is larger than max(tile, multiple, pitch). With multiple = 1, parts are
        multiples of GRAIN if `tile` leaves room for that.
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
        """Return an upper bound of how many parts `even` makes of `n`, at most `tile` each.

        unit: the parts are multiples of this.
        """
        return units(units(n, unit), max(1, tile // unit))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.offsets[:-1], self.offsets[1:], strict=True))

    def size(self, i: int) -> int:
        """Return the elements of the tile of part i, padding included."""
        return units(self.offsets[i + 1] - self.offsets[i], self.pitch) * self.pitch

    def padding(self, i: int) -> int:
        """Return how many elements of the tile of part i, the last ones, are padding."""
        return self.size(i) - (self.offsets[i + 1] - self.offsets[i])

    def part(self, i: int) -> slice:
        """Return part i as a slice of the axis."""
        return slice(self.offsets[i], self.offsets[i + 1])

    def divided(self, by: int) -> Split:
        """Return the cut of an axis `by` times as narrow, in proportion; `by` divides every offset."""
        return Split(tuple(offset // by for offset in self.offsets), self.pitch)

    def repeated(self, times: int) -> Split:
        """Return the same cut for `times` sections one after another, such as q, k and v in c_attn."""
        whole = self.offsets[-1]
        starts = (section * whole + offset for section in range(times) for offset in self.offsets[:-1])
        return Split((*starts, times * whole), self.pitch)


def units(n: int, unit: int) -> int:
    """Return how many units hold n elements. The last one may not be full."""
    return -(-n // unit)
