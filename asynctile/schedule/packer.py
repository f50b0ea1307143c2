"""A walk that finds an address for everyone, and writes down what moves.

Who stands and when is the walk of stays.py, who stands where is addresses.py's. A tile that finds no hole is given one by
copies within the tier, which cost a small part of what bringing bytes in again does, and only then by others that leave. Of
holes that fit the one is taken for which nobody waits (clock.py). What comes of it is a packing (packing.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from asynctile.schedule.addresses import Addresses
from asynctile.schedule.clock import Clock, Pace
from asynctile.schedule.stays import Stay, Walk
from asynctile.schedule.uses import Use, Uses

#: A byte copied within the tier costs this part of one that comes from below or goes there.
COPY_COST = 1 / 32


class Act(IntEnum):
    """What a tile does: leave, written back if it is newer here; go elsewhere within the tier; come from below."""

    LEAVE = 0
    COPY = 1
    LOAD = 2


class Packer(Walk):
    """A walk that finds an address for everyone, and writes down what moves. home: of those that stand between two runs.

    moves: (act, tile, offset) before each entry. births: (tile, offset) at each. copied: bytes that moved within the tier.
    """

    def __init__(self, uses: Uses, cap: int, ahead: int, slack: int, home: Mapping[int, int], pace: Pace) -> None:
        super().__init__(uses, cap, ahead, slack)
        self.home = home
        self.addresses = Addresses(cap, uses.sizes, home)
        self.moves: list[list[tuple[Act, int, int]]] = [[] for _ in range(len(uses) + 1)]
        self.births: dict[int, list[tuple[int, int]]] = {}
        self.copied = 0
        self._clock = Clock(uses, cap, pace)
        self._since: Mapping[int, Stay] = {}

    @property
    def moved(self) -> float:
        """Bytes from and to below, and a small part of those within the tier."""
        return super().moved + COPY_COST * self.copied

    @property
    def seconds(self) -> float:
        """What a step takes, about."""
        return self._clock.now

    def begin(self, standing: Mapping[int, Stay], kept: Collection[int] | None = None) -> None:
        self._since = standing
        for tile, offset in self.home.items():
            self.addresses.take(tile, offset)
        super().begin(standing, kept)

    def bring_back(self) -> None:
        """The last run is over: everyone goes to where it stood when the run began. NoRoom if that cannot be."""
        for tile in [tile for tile, stands in enumerate(self.stands) if stands and tile not in self.home]:
            self._leave(tile)
        pending = [tile for tile, offset in self.home.items() if self.addresses.at.get(tile) != offset]
        stepped: set[int] = set()
        while pending:
            left = [tile for tile in pending if not self._settle(tile)]
            if len(left) == len(pending):  # they stand in each other's places
                self._step_aside(next(tile for tile in left if self.stands[tile]), stepped)
            pending = left

    def _settle(self, tile: int) -> bool:
        """Whether it stands at home now."""
        home, size = self.home[tile], self.uses.sizes[tile]
        if self.addresses.within(home, size):  # be it the tile itself, which is not copied over itself
            return False
        if self.stands[tile]:
            self._move(tile, home)
        else:
            self._stand(tile, home, load=True)
            self.loaded += size
        return True

    def _step_aside(self, tile: int, stepped: set[int]) -> None:
        """Free the place of a tile that stands where another belongs; whoever has `stepped` aside before leaves."""
        offset = None if tile in stepped else self.addresses.room_for(tile, self._waits)
        stepped.add(tile)
        if offset is None:
            self._leave(tile)
        else:
            self._move(tile, offset)

    def _move(self, tile: int, offset: int) -> None:
        self._clock.copy(tile, self.addresses.at[tile], offset)
        self.addresses.move(tile, offset)
        self.moves[self.now].append((Act.COPY, tile, offset))
        self.copied += self.uses.sizes[tile]

    def _leave(self, tile: int) -> None:
        self.moves[self.now].append((Act.LEAVE, tile, self.addresses.at[tile]))
        if self.dirty[tile]:
            self._clock.write_back(tile)
        super()._leave(tile)

    def _forget(self, tile: int) -> None:
        if self.stands[tile]:
            self._clock.go(tile, self.addresses.give(tile))
        super()._forget(tile)

    def _perform(self, entry: tuple[Use, ...]) -> None:
        if self.now in self.uses.on_host:
            self._clock.perform_below(self.now, entry)
        else:
            self._clock.perform(self.now, entry)

    def _enter(self, tile: int, placed: Collection[int] = (), *, load: bool = False) -> bool:
        if tile in self.addresses.at:
            return super()._enter(tile)  # the run begins with it
        offset = self._home_of(tile, placed)
        if offset is None:
            offset = self.addresses.room_for(tile, self._waits if load else self._waits_least)
        if offset is None:
            made = self.addresses.room_made_for(tile, placed)
            if made is None:
                return False
            offset, moves = made
            self._make_way(moves)
        self._stand(tile, offset, load=load)
        return True

    def _stand(self, tile: int, offset: int, *, load: bool) -> None:
        """It comes there, with its bytes or to be written whole."""
        self.addresses.take(tile, offset)
        if load:
            self._clock.load(tile, offset)
            self.moves[self.now].append((Act.LOAD, tile, offset))
        else:
            self._clock.allocate(tile, offset)
            self.births.setdefault(self.now, []).append((tile, offset))
        super()._enter(tile)

    def _waits(self, offset: int, nbytes: int) -> tuple[float, float]:
        """How long a load into that place would wait, and when the place was free: the one that is free for longest is best."""
        free = self._clock.free_at(offset, nbytes)
        return max(0.0, free - self._clock.now), free

    def _waits_least(self, offset: int, nbytes: int) -> tuple[float, float]:
        """The same of what is computed there: the place where compute has just been is best."""
        waits, free = self._waits(offset, nbytes)
        return waits, -free

    def _make_way(self, moves: Iterable[tuple[int, int]]) -> None:
        for tile, offset in moves:
            self._move(tile, offset)

    def _home_of(self, tile: int, placed: Collection[int]) -> int | None:
        """Its home, if it comes for the last time in this run and whoever stands there can be sent elsewhere."""
        if tile not in self.home or self.now < self._since[tile].since:
            return None
        home, size = self.home[tile], self.uses.sizes[tile]
        moves = self.addresses.cleared(home, size, placed)
        if moves is None:
            return None
        self._make_way(moves)
        return home
