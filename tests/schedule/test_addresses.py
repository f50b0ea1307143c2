"""Addresses against a map of single bytes, through random takes, gives and moves; and which places are preferred."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asynctile.schedule import addresses, windows
from asynctile.schedule.addresses import NOWHERE
from asynctile.schedule.state import WalkState
from asynctile.schedule.uses import ENTRY, USE
from tests.laws import examples
from tests.schedule.paces import OVER_LINK

FREE = -1


class Addresses:
    """The compiled functions over tables of tiles of these sizes. home: offsets of some tiles, by number."""

    def __init__(self, nbytes: int, sizes: list[int], home: dict[int, int] | None = None) -> None:
        uses = SimpleNamespace(tiles=sizes, sizes=np.array(sizes), nbytes=np.array(sizes), entries=np.zeros(2, ENTRY),
                               uses=np.zeros(0, USE), has_link=True, pace=OVER_LINK)  # fmt: skip
        self.tables = WalkState(uses, nbytes, 0)  # type: ignore[arg-type]
        self.state = self.tables.state[0]
        self.tables["tiles"]["home"][list(home or ())] = list((home or {}).values())
        self.sizes = sizes

    @property
    def at(self) -> dict[int, int]:
        return {tile: offset for tile, offset in enumerate(self.tables["tiles"]["at"].tolist()) if offset != NOWHERE}

    def take(self, tile: int, offset: int) -> None:
        addresses.take(self.state, tile, offset)
        self.state["used"] += self.sizes[tile]

    def give(self, tile: int) -> int:
        self.state["used"] -= self.sizes[tile]
        return addresses.give(self.state, tile)

    def move(self, tile: int, offset: int) -> None:
        self.give(tile)
        self.take(tile, offset)

    def within(self, offset: int, nbytes: int) -> list[int]:
        first, stop = addresses.first_within(self.state, offset), addresses.stop_within(self.state, offset + nbytes)
        return self.tables["standing"]["value"][first:stop].tolist()

    def room_for(self, tile: int) -> int | None:
        found = addresses.room_for(self.state, tile)
        return None if found == NOWHERE else found

    def room_made_for(self, tile: int, stuck: Collection[int]) -> tuple[int, list[tuple[int, int]]] | None:
        self.hold(stuck)
        offset, count = windows.room_made_for(self.state, tile)
        return None if offset == NOWHERE else (offset, self.tables["moving"][:count].tolist())

    def cleared(self, offset: int, nbytes: int, stuck: Collection[int]) -> list[tuple[int, int]] | None:
        self.hold(stuck)
        count = addresses.cleared(self.state, offset, nbytes)
        return None if count < 0 else self.tables["moving"][:count].tolist()

    def hold(self, stuck: Collection[int]) -> None:
        self.state["stamp"] += 1
        self.tables["tiles"]["placed"][[tile for tile in stuck if tile < len(self.sizes)]] = self.state["stamp"]


#: Numbers that choose among the existing ones.
ANY = st.integers(0, 1 << 20)


class Bytes(RuleBasedStateMachine):
    """A map of bytes. owner: for each byte, the tile at this place, or FREE."""

    @initialize(nbytes=st.integers(8, 48), sizes=st.lists(st.integers(1, 12), min_size=4, max_size=20), homes=st.booleans())
    def begin(self, nbytes: int, sizes: list[int], homes: bool) -> None:
        self.sizes = sizes
        self.home = dict(enumerate(range(0, nbytes - 12, 12))) if homes else {}
        self.addresses = Addresses(nbytes, sizes, self.home)
        self.owner = [FREE] * nbytes

    def standing(self) -> list[int]:
        return sorted(set(self.owner) - {FREE})

    def absent(self) -> list[int]:
        return [tile for tile in range(len(self.sizes)) if tile not in self.owner]

    def holes(self) -> list[range]:
        found, at = [], 0
        for owner, run in groupby(self.owner):
            begin, at = at, at + len(list(run))
            if owner == FREE:
                found.append(range(begin, at))
        return found

    def put(self, tile: int, offset: int) -> None:
        there = range(offset, offset + self.sizes[tile])
        assert there.start >= 0 and all(self.owner[byte] == FREE for byte in there), "two tiles in one place"
        for byte in there:
            self.owner[byte] = tile

    def away(self, tile: int) -> int:
        offset = self.owner.index(tile)
        self.owner = [FREE if owner == tile else owner for owner in self.owner]
        return offset

    @rule(which=ANY, where=ANY, shift=ANY)
    def take(self, which: int, where: int, shift: int) -> None:
        absent = self.absent()
        if not absent:
            return
        tile = absent[which % len(absent)]
        fitting = [hole for hole in self.holes() if len(hole) >= self.sizes[tile]]
        if fitting:
            hole = fitting[where % len(fitting)]
            offset = hole.start + shift % (len(hole) - self.sizes[tile] + 1)
            self.put(tile, offset)
            self.addresses.take(tile, offset)

    @precondition(lambda self: self.standing())
    @rule(which=ANY)
    def give(self, which: int) -> None:
        tile = self.standing()[which % len(self.standing())]
        assert self.addresses.give(tile) == self.away(tile)

    @precondition(lambda self: self.standing())
    @rule(which=ANY)
    def move(self, which: int) -> None:
        tile = self.standing()[which % len(self.standing())]
        offset = self.addresses.room_for(tile)
        if offset is not None:
            self.put(tile, offset)  # while it still occupies its old place
            self.owner = [FREE if owner == tile else owner for owner in self.owner]
            self.put(tile, offset)
            self.addresses.move(tile, offset)

    @rule(which=ANY)
    def room_is_in_the_smallest_hole_that_takes_it(self, which: int) -> None:
        tile = which % len(self.sizes)
        size, offset = self.sizes[tile], self.addresses.room_for(tile)
        fitting = [hole for hole in self.holes() if len(hole) >= size]
        assert (offset is None) == (not fitting)
        if offset is not None:
            smallest = min(map(len, fitting))
            assert any(offset in hole and offset + size <= hole.stop for hole in fitting if len(hole) == smallest)

    @rule(which=ANY, stuck=st.sets(st.integers(0, 19)), order=st.randoms(use_true_random=False))
    def room_is_made_by_moves_in_any_order(self, which: int, stuck: set[int], order: object) -> None:
        absent = self.absent()
        if not absent:
            return
        tile = absent[which % len(absent)]
        made = self.addresses.room_made_for(tile, stuck)
        if self.addresses.room_for(tile) is not None:
            assert made is not None and made[1] == []
        if made is not None:
            offset, moves = made
            self.follow(moves, offset, self.sizes[tile], stuck, order)
            self.put(tile, offset)
            self.addresses.take(tile, offset)

    @rule(begin=ANY, nbytes=st.integers(1, 20), stuck=st.sets(st.integers(0, 19)), order=st.randoms(use_true_random=False))
    def a_place_is_cleared_by_moves_in_any_order(self, begin: int, nbytes: int, stuck: set[int], order: object) -> None:
        begin %= len(self.owner)
        nbytes = min(nbytes, len(self.owner) - begin)
        there = set(self.owner[begin : begin + nbytes]) - {FREE}
        moves = self.addresses.cleared(begin, nbytes, stuck)
        if there & stuck:
            assert moves is None
        if not there:
            assert moves == []
        if moves is not None:
            assert {tile for tile, _ in moves} == there
            self.follow(moves, begin, nbytes, stuck, order)

    def follow(self, moves: list[tuple[int, int]], begin: int, nbytes: int, stuck: Collection[int], order: object) -> None:
        order.shuffle(moves)  # type: ignore[attr-defined]
        for tile, offset in moves:
            assert tile not in stuck
            assert offset + self.sizes[tile] <= begin or begin + nbytes <= offset, "it is still in the way"
            self.put(tile, offset)  # while all others still occupy their old places
        for tile, offset in moves:
            self.owner = [FREE if owner == tile and not offset <= byte < offset + self.sizes[tile] else owner
                          for byte, owner in enumerate(self.owner)]  # fmt: skip
            self.addresses.move(tile, offset)
        assert set(self.owner[begin : begin + nbytes]) <= {FREE}

    @invariant()
    def everyone_is_where_the_map_says(self) -> None:
        if not hasattr(self, "owner"):
            return
        assert self.addresses.at == {tile: self.owner.index(tile) for tile in self.standing()}
        for begin in range(0, len(self.owner), 5):
            assert self.addresses.within(begin, 7) == list(dict.fromkeys(
                owner for owner in self.owner[begin : begin + 7] if owner != FREE))  # fmt: skip


TestBytes = Bytes.TestCase
TestBytes.settings = examples(25, stateful_step_count=30)


def standing(nbytes: int, sizes: list[int], at: dict[int, int], home: dict[int, int] | None = None) -> Addresses:
    addresses = Addresses(nbytes, sizes, home)
    for tile, offset in at.items():
        addresses.take(tile, offset)
    return addresses


def test_taking_an_occupied_place_is_a_fault() -> None:
    addresses = standing(16, [4, 4], {0: 6})
    for count, offset in enumerate((3, 6, 9, 13), start=1):
        addresses.take(1, offset)
        assert addresses.state["faults"] == count
    assert addresses.at == {0: 6} and addresses.room_for(1) is not None


def test_large_tiles_go_to_the_low_end_of_a_hole_and_small_ones_to_the_high_end() -> None:
    addresses = standing(32, [16, 2], {})
    assert addresses.room_for(0) == 0 and addresses.room_for(1) == 30


def test_the_hole_that_has_been_free_for_longest_is_preferred_to_one_that_fits_better() -> None:
    addresses = standing(16, [4, 3, 4], {0: 3})  # holes of 3 and 9 bytes
    assert addresses.room_for(1) == 0
    addresses.tables["free"]["at_s"][:3] = 1.0
    addresses.state["time_s"] = 2.0  # both are free by now
    at = addresses.room_for(1)
    assert at is not None and at >= 7


def test_room_is_made_by_moving_few_bytes_and_tiles_that_should_stay_move_last() -> None:
    # ...0.222.1... where moving either 0 or 1 makes room for 5 bytes
    sizes, at = [1, 1, 3, 5], {0: 3, 1: 9, 2: 5}
    for stays, moves in ((0, 1), (1, 0)):
        made = standing(13, sizes, at, {stays: at[stays]}).room_made_for(3, ())
        assert made is not None and [tile for tile, _ in made[1]] == [moves]
        made = standing(13, sizes, at).room_made_for(3, {stays, 2})
        assert made is not None and [tile for tile, _ in made[1]] == [moves]
    assert standing(13, sizes, at).room_made_for(3, {0, 1, 2}) is None
