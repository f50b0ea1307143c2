"""The arrangement of a step under given caps: the number of passes through a block, and the parts that keep activations.

This is pure: the same kind of step, batch, caps and rates give the same choice, so steps repeat and a plan foretells a run. It
changes no bit of a result. If every tier holds the whole step, each micro-batch is one pass, and as many parts keep their
activations as fit (activations.py). Otherwise tiles move, and the bytes are counted (asynctile/schedule/fewest.py):

- More passes keep less of a block alive at once but visit its weights and gradients more often. The best number depends on the
  cap. The tiles of one pass are computed side by side, so each pass keeps enough of them for all cores.
- Kept activations leave and come back, which costs both directions of the link. Recomputing them costs device time. They are
  kept as long as compute still takes longer than the link, and only if that is faster than keeping none. Updates on the host
  leave room on the link, so the link is counted with updates where they will run.

keeping.py asks for an arrangement on a model's engine. update_placement.py then chooses where updates run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asynctile.layers.activations import Activations, Room, all_held, kept_if, most_kept
from asynctile.layers.parameters import Parameters
from asynctile.layers.rows import Rows
from asynctile.layers.step import parts_of, record
from asynctile.layers.update_placement import link_seconds_of
from asynctile.program.program import Program
from asynctile.schedule.fewest import Moved, fewest
from asynctile.schedule.rates import Rates

#: Another number of passes must save this share of the cost: cores that also do a link's copies wait more then, and one
#: step took 5% longer.
SAVED = 0.05
#: Keeping activations must save this share of the time.
WORTH = 0.01
#: A program with more entries keeps the default passes: recording and counting one takes about 30 us an entry.
COUNTED_ENTRIES = 1 << 18
#: The usable share of a link: a run moves more than the fewest bytes, and not always at the full rate.
FILLED = 0.7


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The choice for one step.

    passes: of each replica through each block. kept: how many parts keep their activations, as in `record`.
    """

    passes: int
    kept: int


def agreed(arrangements: Iterable[Arrangement]) -> Arrangement:
    """Return the arrangement that fits all nodes, given the one that each has found."""
    found = list(arrangements)
    return Arrangement(max(one.passes for one in found), min(one.kept for one in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The resources of a step.

    rooms: those of the tiers in RAM and above, from the top down. standing: how many tiles of each size stay between steps.
    spills: whether there is a spill folder below RAM. cores: how many tiles are computed at once. rates: those of the device
    and its host. copies: whether the computing cores also do the copies of the link. update: as in Trainer.
    """

    rooms: Sequence[Room]
    standing: Counter[int]
    spills: bool
    cores: int
    rates: Rates
    copies: bool = False
    update: str = "auto"

    @property
    def lets_go(self) -> bool:
        """Whether tiles may be evicted from the top tier."""
        return len(self.rooms) > 1 or self.spills


class Recorded:
    """A recorder of steps of one kind, for one model and batch.

    It keeps the last two programs, because recording one takes about 15 us an entry: the search ends one step behind the best.
    """

    def __init__(self, kind: str, parameters: Parameters) -> None:
        self.kind = kind
        self.parameters = parameters
        #: by the number of passes and the number of parts that keep activations; the one asked for last stands last
        self._last: dict[tuple[int, int], Program] = {}

    def program(self, rows: Rows, kept: int) -> Program:
        """Return the program for `rows` and their passes in which `kept` parts keep their activations; see `record`."""
        key = len(rows.passes), kept
        found = self._last.pop(key, None) or record(self.kind, self.parameters, rows, kept=kept)
        self._last[key] = found
        if len(self._last) > 2:
            del self._last[next(iter(self._last))]
        return found

    def latest(self, rows: Rows, kept: int) -> Program | None:
        """Return the program of `program(rows, kept)` if it is one of the last two; otherwise None."""
        return self._last.get((len(rows.passes), kept))


def arrange(recorded: Recorded, rows: Rows, around: Surroundings, *, precision: str, recompute: bool | str) -> Arrangement:
    """Return the best arrangement of these steps.

    rows: one pass for each micro-batch. recompute: as in Trainer.
    """
    step = _Step(recorded, around, precision)
    default = rows.micro_batches
    parameters = recorded.parameters
    kept = kept_if(recompute, parameters.config) if isinstance(recompute, bool) else step.most_kept(rows)
    if not around.lets_go or step.is_held(rows, kept):
        return Arrangement(default, kept)
    if len(recorded.program(rows, kept)) > COUNTED_ENTRIES:
        return Arrangement(default, kept)
    most = max(default, min(rows.most_passes, rows.most_passes * len(parameters.tiling.model) // around.cores))
    passes = least_of(default, most, lambda count: step.cost(rows.in_passes(count), kept))
    if isinstance(recompute, bool):
        return Arrangement(passes, kept)
    rows = rows.in_passes(passes)
    return Arrangement(passes, step.most_kept(rows) or step.most_carried(rows))


def least_of(start: int, most: int, cost: Callable[[int], float]) -> int:
    """Return the number from 1 to `most` of least cost, doubling or halving at a time.

    The search assumes that the cost falls and then rises. It starts at `most`, which is best most often. It returns `start`
    unless another number saves at least the share SAVED of its cost.
    """
    costs = {number: cost(number) for number in {start, most}}

    def walk(number: int, following: Callable[[int], int]) -> int:
        """Go on from `number` as long as the cost falls; return the last number."""
        while (other := following(number)) != number:
            if other not in costs:
                costs[other] = cost(other)
            if not costs[other] < costs[number]:
                break
            number = other
        return number

    if costs[most] < costs[start]:
        best = walk(most, lambda number: max(start, number // 2))
    elif (best := walk(start, lambda number: min(most, 2 * number))) == start:
        best = walk(start, lambda number: max(1, number // 2))
    return best if costs[best] < (1 - SAVED) * costs[start] else start


class _Step:
    """The costs of one kind of step of a model in various arrangements."""

    def __init__(self, recorded: Recorded, around: Surroundings, precision: str) -> None:
        self.kind = recorded.kind
        self.parameters = recorded.parameters
        self.program = recorded.program
        self.around = around
        self.precision = precision
        #: counts by the number of passes
        self._foreseen: dict[int, Activations] = {}

    def is_held(self, rows: Rows, kept: int) -> bool:
        return all_held(self._activations(rows), self.around.standing, self.around.rooms, kept)

    def most_kept(self, rows: Rows) -> int:
        """Return how many parts can keep activations while every tier holds the whole step."""
        return most_kept(self._activations(rows), self.around.standing, self.around.rooms)

    def cost(self, rows: Rows, kept: int) -> float:
        """Return the seconds of copies over the link and to the disk, one after another; infinite if the step does not fit."""
        program, rooms, rates = self.program(rows, kept), self.around.rooms, self.around.rates
        has_link = len(rooms) > 1
        link_s = _copies_s(program, rooms[:1], rates.up_per_s, rates.down_per_s) if has_link else 0.0
        if has_link and self._ram_holds(rows, kept):
            return link_s
        return link_s + _copies_s(program, rooms, rates.disk_per_s, rates.disk_per_s) if self.around.spills else math.inf

    def most_carried(self, rows: Rows) -> int:
        """Return for how many parts activations can leave the device and come back while the link takes no longer than compute.

        0 without a link.
        """
        if len(self.around.rooms) == 1:
            return 0
        carried, too_many = 0, parts_of(self.parameters.config) + 1
        least_s = none_s = self._bound_by_compute_s(rows, 0)
        while too_many - carried > 1 and none_s < math.inf:
            middle = (carried + too_many) // 2
            found_s = self._bound_by_compute_s(rows, middle)
            if found_s < math.inf:
                carried, least_s = middle, found_s
            else:
                too_many = middle
        return carried if least_s < (1 - WORTH) * none_s else 0

    def _bound_by_compute_s(self, rows: Rows, kept: int) -> float:
        """Return the seconds that compute takes; infinite if the link takes longer or the step does not fit."""
        if not self._ram_holds(rows, kept):
            return math.inf
        program, rates = self.program(rows, kept), self.around.rates
        moved = _moved(program, self.around.rooms[:1])
        if moved is None:
            return math.inf
        compute_s = sum(operation.flops for operation in program.operations()) / rates.flops_per_s
        up_s, down_s = link_seconds_of(program, moved, self.around.update, rates)
        if max(up_s, down_s) > FILLED * compute_s:
            return math.inf
        return compute_s + (up_s * rates.up_per_s + down_s * rates.down_per_s) / rates.copied_per_s * self.around.copies

    def _ram_holds(self, rows: Rows, kept: int) -> bool:
        return self.around.rooms[-1].holds(self.around.standing + self._activations(rows).counts(kept))

    def _activations(self, rows: Rows) -> Activations:
        passes = len(rows.passes)
        if passes not in self._foreseen:
            own = self.parameters
            self._foreseen[passes] = Activations(
                self.kind, own.config, own.tiling, rows, self.precision, own.tuning, own.stored)
        return self._foreseen[passes]


def _copies_s(program: Program, rooms: Sequence[Room], up_per_s: float, down_per_s: float) -> float:
    """Return the seconds of moving bytes into and out of all these rooms together, at these rates in bytes a second."""
    moved = _moved(program, rooms)
    return math.inf if moved is None else moved.loaded_nbytes / up_per_s + moved.written_nbytes / down_per_s


def _moved(program: Program, rooms: Sequence[Room]) -> Moved | None:
    """Return the bytes that move through all these rooms together; None if the step does not fit."""
    caps = [room.nbytes for room in rooms if room.nbytes is not None]
    return fewest(program, sum(caps), rooms[-1].alignment) if len(caps) == len(rooms) else Moved(0, 0, {})
