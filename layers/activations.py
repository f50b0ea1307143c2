"""Of which parts a step may keep activations for its backward pass so that nothing has to move: as many as fit beside all else.

Pure: the same kind of step, batch and caps give the same number, so that steps repeat. It changes no bit of a result. What is
kept of a block and of the head is block.py and head.py, in which order they keep step.py. Where a step has to move tiles
anyhow, whether activations are worth their way to RAM and back is arrangement.py's, which asks here first.

The way not taken: to record the whole program for each number of parts. Blocks are alike, so that programs of one block say how
many tiles are alive anywhere in a deep one, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import parts_of, record_parts
from asynctile.layers.tiling import Tiling
from asynctile.program.needs import lives
from asynctile.program.program import Program
from asynctile.storage.demand import align
from asynctile.storage.input import shown
from asynctile.storage.tile import Tile

#: What a user may ask for beside True and False.
AUTO = "auto"


def check_recompute(recompute: bool | str) -> bool | str:
    """What a user asked for if it is True, False or "auto", else ValueError."""
    if not isinstance(recompute, bool) and not (isinstance(recompute, str) and recompute == AUTO):
        raise ValueError(f"recompute is {shown(recompute)}, expected True, False or 'auto'")
    return recompute


def kept_if(recompute: bool, config: Config) -> int:
    """How many parts keep their activations if nobody looks at caps: none if they are to be computed again, or all."""
    return 0 if recompute else parts_of(config)


@dataclass(frozen=True, slots=True)
class Room:
    """What a tier has for a step: `nbytes` of its cap, None for no end, in slots that are multiples of `alignment`."""

    nbytes: int | None
    alignment: int

    def holds(self, counts: Counter[int]) -> bool:
        """Whether so many tiles of each size find a place at once."""
        return self.nbytes is None or self.nbytes_of(counts) <= self.nbytes

    def nbytes_of(self, counts: Counter[int]) -> int:
        """What they take here."""
        return sum(align(size, self.alignment) * count for size, count in counts.items())

    def without(self, tiles: Iterable[Tile]) -> Room:
        """What is left beside tiles of others."""
        if self.nbytes is None:
            return self
        return Room(self.nbytes - sum(align(tile.nbytes, self.alignment) for tile in tiles), self.alignment)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a stretch of a program does to the number of temporaries that are alive, by size.

    peak: the most that come to those which were alive before it. change: how many more, or fewer, there are behind it.
    """

    peak: Counter[int]
    change: Counter[int]


class Activations:
    """How many tiles of each size a step has alive at once, for every number of parts that keep their activations.

    kind: of a program with a backward pass. tiling, rows: how the model and the batch are cut.
    """

    def __init__(self, kind: str, config: Config, tiling: Tiling, rows: Rows, precision: str = "fp32") -> None:
        self.parts = parts_of(config)
        one_block = Parameters(replace(config, n_layer=1), tiling, precision)
        program, begins = record_parts(kind, one_block, rows)
        self._again = _stretches(program, begins)
        self._kept = _stretches(*record_parts(kind, one_block, rows, kept=parts_of(one_block.config)))
        self._inputs = sizes_of(program.inputs.values())

    def counts(self, kept: int) -> Counter[int]:
        """Of temporaries and inputs, if `kept` parts keep their activations."""
        embedding, again, head, again_backward, rest = self._again
        _, keep, keeping_head, keep_backward, _ = self._kept
        keeping = max(0, kept - 1)
        others = self.parts - 1 - keeping
        alive: Counter[int] = Counter()
        most: Counter[int] = Counter()
        for times, stretch in (
            (1, embedding), (others, again), (keeping, keep), (1, keeping_head if kept else head),
            (keeping, keep_backward), (others, again_backward), (1, rest),
        ):  # fmt: skip
            if times:
                for size in {*stretch.peak, *stretch.change}:
                    # Each time as much is added: so there are most in the first or in the last of them.
                    grown = max(0, stretch.change[size] * (times - 1))
                    most[size] = max(most[size], alive[size] + grown + stretch.peak[size])
                    alive[size] += stretch.change[size] * times
        return self._inputs + most


def most_kept(activations: Activations, standing: Counter[int], rooms: Sequence[Room]) -> int:
    """The most parts that keep their activations so that every tier holds all of the step at once; 0 where none does.

    standing: how many tiles of each size stand between steps.
    """
    fitting = (kept for kept in range(activations.parts, 0, -1) if all_held(activations, standing, rooms, kept))
    return next(fitting, 0)


def all_held(activations: Activations, standing: Counter[int], rooms: Sequence[Room], kept: int) -> bool:
    """Whether every tier holds all of a step in which `kept` parts keep their activations."""
    counts = standing + activations.counts(kept)
    return all(room.holds(counts) for room in rooms)


def sizes_of(tiles: Iterable[Tile]) -> Counter[int]:
    """How many tiles there are of each size."""
    return Counter(align(tile.nbytes) for tile in tiles)


def _stretches(program: Program, begins: Sequence[int]) -> list[Stretch]:
    """The embedding, a block, the head, the block backward, the rest."""
    changes = list(lives(program))
    return [_stretch(changes[begin:end]) for begin, end in pairwise((0, *begins, len(changes)))]


def _stretch(changes: Iterable[tuple[list[int], list[int]]]) -> Stretch:
    alive: Counter[int] = Counter()
    peak: Counter[int] = Counter()
    for born, dead in changes:
        alive.update(born)
        for size in born:
            peak[size] = max(peak[size], alive[size])
        alive.subtract(dead)
    return Stretch(peak, alive)
