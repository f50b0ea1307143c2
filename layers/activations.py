"""The number of parts that can keep their activations for backward without moving any tile.

A part is a block or the head. As many parts keep activations as fit beside all other tiles of the step.

This is pure: the same kind of step, batch and caps give the same number, so steps repeat. It changes no bit of a result.
block.py and head.py define what a part keeps, step.py the order in which parts keep it. If a step has to move tiles anyway,
arrangement.py decides whether activations are worth the trip to RAM and back. It asks this module first.

The way not taken: recording the whole program once for each number of parts. All blocks are alike, so programs of a single
block tell exactly how many tiles are alive at any point of a deep model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import parts_of, record_parts
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.program.grain import Grain
from asynctile.program.needs import lives
from asynctile.program.program import Program
from asynctile.storage.demand import align
from asynctile.storage.input import shown
from asynctile.storage.tile import Tile

#: The third value that a user may give for `recompute`, besides True and False.
AUTO = "auto"


def check_recompute(recompute: bool | str) -> bool | str:
    """Return `recompute` if it is True, False or "auto"; otherwise raise ValueError."""
    if not isinstance(recompute, bool) and not (isinstance(recompute, str) and recompute == AUTO):
        raise ValueError(f"recompute is {shown(recompute)}, expected True, False or 'auto'")
    return recompute


def kept_if(recompute: bool, config: Config) -> int:
    """Return how many parts keep activations when caps are ignored: none if they are recomputed, otherwise all."""
    return 0 if recompute else parts_of(config)


@dataclass(frozen=True, slots=True)
class Room:
    """The space a tier offers a step: `nbytes` under its cap (None: unlimited), in slots that are multiples of `alignment`."""

    nbytes: int | None
    alignment: int

    def holds(self, counts: Counter[int]) -> bool:
        """Return whether the tier holds this many tiles of each size (bytes -> count) at once."""
        return self.nbytes is None or self.nbytes_of(counts) <= self.nbytes

    def nbytes_of(self, counts: Counter[int]) -> int:
        """Return the bytes that these tiles (bytes -> count) take in this tier."""
        return sum(align(size, self.alignment) * count for size, count in counts.items())

    def without(self, tiles: Iterable[Tile]) -> Room:
        """Return the room that is left once `tiles`, which belong to others, have their slots."""
        if self.nbytes is None:
            return self
        return Room(self.nbytes - sum(align(tile.nbytes, self.alignment) for tile in tiles), self.alignment)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The effect of one stretch of a program (see `record_parts`) on how many temporaries of each size are alive.

    peak: the most that the stretch adds at any moment to the temporaries alive before it. change: how many more (or fewer) are
    alive after it.
    """

    peak: Counter[int]
    change: Counter[int]


class Activations:
    """Counts of the tiles of each size that are alive at once in a step, for every number of parts that keep activations.

    kind: that of a program with a backward pass. tiling, rows: how the model and the batch are cut into tiles. Each block
    counts as one that trains whatever any block trains. stored: as in Parameters.
    """

    def __init__(
        self, kind: str, config: Config, tiling: Tiling, rows: Rows, precision: str = "fp32", tuning: Tuning = WHOLE,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self.parts = parts_of(config)
        passes = len(rows.passes) // rows.replicas
        self._inputs, self._again, self._kept = _of_one_block(
            kind, replace(config, n_layer=1), tiling.tile, tiling.grain, rows.shape, passes, precision,
            tuning.of_one_block(config), stored,
        )

    def counts(self, kept: int) -> Counter[int]:
        """Return how many temporaries and inputs of each size are alive at once if `kept` parts keep their activations."""
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
                    # Every repetition adds the same number, so the peak is in the first or in the last one.
                    grown = max(0, stretch.change[size] * (times - 1))
                    most[size] = max(most[size], alive[size] + grown + stretch.peak[size])
                    alive[size] += stretch.change[size] * times
        return self._inputs + most


def most_kept(activations: Activations, standing: Counter[int], rooms: Sequence[Room]) -> int:
    """Return the most parts that can keep activations while every tier holds the whole step at once; 0 if none can.

    standing: how many tiles of each size stay between steps. rooms: of the tiers.
    """
    fitting = (kept for kept in range(activations.parts, 0, -1) if all_held(activations, standing, rooms, kept))
    return next(fitting, 0)


def all_held(activations: Activations, standing: Counter[int], rooms: Sequence[Room], kept: int) -> bool:
    """Return whether every tier holds the whole step in which `kept` parts keep their activations."""
    counts = standing + activations.counts(kept)
    return all(room.holds(counts) for room in rooms)


def sizes_of(tiles: Iterable[Tile]) -> Counter[int]:
    """Return how many tiles there are of each size (aligned bytes -> count)."""
    return Counter(align(tile.nbytes) for tile in tiles)


@lru_cache(maxsize=64)
def _of_one_block(
    kind: str, config: Config, tile: int, grain: Grain, batch: tuple[int, int, int, int, bool], passes: int, precision: str,
    tuning: Tuning, stored: frozenset[str],
) -> tuple[Counter[int], list[Stretch], list[Stretch]]:
    """Return the sizes of the inputs of a one-block program, and its stretches without and with kept activations.

    batch: as the arguments of `Tiling.rows`. Cached, because a plan and its run ask for the same, and so do several models.
    """
    tiling = Tiling(config, tile, grain)
    rows, parameters = tiling.rows(*batch).in_passes(passes), Parameters(config, tiling, precision, tuning, stored)
    program, begins = record_parts(kind, parameters, rows)
    kept = _stretches(*record_parts(kind, parameters, rows, kept=parts_of(config)))
    return sizes_of(program.inputs.values()), _stretches(program, begins), kept


def _stretches(program: Program, begins: Sequence[int]) -> list[Stretch]:
    """Return the five stretches of a one-block program: embedding, block, head, block backward, rest.

    begins: the positions at which all but the first begin.
    """
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
