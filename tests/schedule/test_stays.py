"""Which tile is in memory when, by bytes: against Belady's rule on sets, one tile at a time, and the invariants of bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, READ, UPDATE, WRITE
from asynctile.program.program import Program
from asynctile.schedule.uses import Uses
from asynctile.schedule.walk import NoRoom, Stay, Walk
from tests.laws import examples
from tests.schedule.made import on_host, program_by, rewritten, used, uses_of
from tests.schedule.test_uses import program_of, tile

CHANCE = st.randoms(use_true_random=False)


class Naive:
    """A run of `uses` with tiles of one byte. again: for each resident tile, its next need. dirty: tiles newer than below."""

    def __init__(self, uses: Uses, cap: int, start: dict[int, Stay]) -> None:
        self.cap, self.loaded, self.written = cap, 0, 0
        self.again = {one: stay.again for one, stay in start.items()}
        self.dirty = {one for one, stay in start.items() if stay.dirty}
        given, below = rewritten(uses), on_host(uses)
        for index, entry in enumerate(used(uses)):
            self.drop(given.get(index, ()))
            accesses = [(use.tile, use.how, use.again) for use in entry]
            if index in below:
                self.below(accesses)
            else:
                self.use(accesses)
            self.drop(use.tile for use in entry if use.dies)

    def drop(self, tiles: Iterable[int]) -> None:
        for one in tiles:
            self.again.pop(one, None)
            self.dirty.discard(one)

    def come_down(self, one: int) -> None:
        self.written += one in self.dirty
        self.drop([one])

    def below(self, accesses: list[tuple[int, str, int]]) -> None:
        for one, how, again in accesses:
            if how == WRITE:
                self.drop([one])
            elif how == UPDATE or one in self.dirty:
                self.come_down(one)
            if one in self.again:
                self.again[one] = again

    def use(self, accesses: list[tuple[int, str, int]]) -> None:
        held = {one for one, _, _ in accesses}
        for one, how, _ in accesses:
            if one not in self.again:
                if len(self.again) == self.cap:
                    self.come_down(max(self.again.keys() - held, key=lambda other: (self.again[other], -other)))
                self.again[one] = 0
                self.loaded += how != WRITE
        for one, how, again in accesses:
            self.again[one] = again
            if how != READ:
                self.dirty.add(one)


def most(uses: Uses) -> int:
    """Return the most bytes that one entry uses at once."""
    return int(max((sum(uses.sizes[use.tile] for use in entry) for index, entry in enumerate(used(uses))
                    if index not in on_host(uses)), default=0))  # fmt: skip


@examples(25)
@given(CHANCE, st.booleans(), st.integers(0, 8))
def test_the_tile_needed_furthest_in_the_future_is_evicted(chance: random.Random, has_link: bool, more: int) -> None:
    uses = uses_of(program_by(chance, sizes=(1,)), has_link=has_link)
    start: dict[int, Stay] = {}
    cap = max(most(uses), len(uses.inputs)) + more
    for _ in range(3):
        walk = Walk(uses, cap, 0, 0, start)
        naive = Naive(uses, cap, start)
        assert (walk.loaded, walk.written) == (naive.loaded, naive.written)
        assert set(np.flatnonzero(walk.tiles["stands"]).tolist()) == set(naive.again)
        start = walk.standing()


@examples(25)
@given(CHANCE, st.booleans(), st.integers(0, 20), st.sampled_from([0, 9]), st.integers(0, 10))
def test_bytes_never_exceed_the_cap_and_slack_is_used_only_for_prefetching(
    chance: random.Random, has_link: bool, more: int, ahead: int, slack: int
) -> None:
    uses = uses_of(program_by(chance), has_link=has_link)
    cap = most(uses) + more
    walk = Walk(uses, cap, ahead, slack, {})
    assert walk.used == uses.sizes[walk.tiles["stands"]].sum()
    assert walk.used <= walk.peak <= cap - (0 if ahead else min(slack, more))


@examples(20)
@given(CHANCE, st.booleans(), st.integers(0, 30))
def test_room_runs_out_only_if_a_single_entry_does_not_fit(chance: random.Random, has_link: bool, ahead: int) -> None:
    uses = uses_of(program_by(chance), has_link=has_link)
    Walk(uses, most(uses), ahead, ahead, {})
    if most(uses):
        with pytest.raises(NoRoom):
            Walk(uses, most(uses) - 1, ahead, ahead, {})


def walked(program: Program, cap: int, ahead: int = 0, start: dict[int, Stay] | None = None) -> tuple[Walk, Uses]:
    uses = uses_of(program)
    return Walk(uses, cap, ahead, 0, start or {}), uses


def test_a_tile_is_prefetched_if_no_tile_needed_sooner_has_to_leave() -> None:
    a, b, c = tile("a"), tile("b"), tile("c")
    program = program_of({a: READ}, {a: READ}, {b: READ}, {c: READ}, {a: READ}, {b: READ})
    since = []
    for ahead in (0, 1, 2):
        walk, uses = walked(program, 3, ahead)
        since.append([walk.tiles["since"][uses.tiles.index(one)] for one in (b, c)])
    assert since == [[2, 3], [1, 3], [1, 1]]
    tight, uses = walked(program_of({a: READ}, {a: READ}, {b: READ}, {c: READ}), 2, 2)
    assert [tight.tiles["since"][uses.tiles.index(one)] for one in (b, c)] == [1, 2]  # not before the last use of `a`


def test_a_tile_overwritten_before_its_use_is_not_prefetched() -> None:
    a = tile("a")
    walk, _ = walked(program_of({a: READ}, ({a: WRITE}, HOST), {a: READ}, {a: WRITE}, {a: WRITE}, {a: READ}), 8, 8)
    assert walk.loaded == 2


def test_a_tile_overwritten_once_and_again_later_is_not_prefetched() -> None:
    """The look ahead stops before `d` until `c` is used, and `t` is dead when it goes on."""
    program = Program("by hand")
    t, a, c, d = program.tile("t", (1,), "u1"), tile("a"), tile("c", nbytes=2), tile("d", nbytes=2)
    walk, _ = walked(program_of({a: READ}, {c: READ, t: WRITE}, {t: WRITE}, {d: READ}, {t: READ}, program=program), 9, 3)
    assert walk.loaded == a.nbytes + c.nbytes + d.nbytes


def test_a_tile_that_will_not_be_kept_leaves_first_once_the_run_no_longer_needs_it() -> None:
    a, b, c = tile("a"), tile("b"), tile("c")
    uses = uses_of(program_of({a: READ}, {b: READ}, {c: READ}))
    for kept in (0, 1):
        assert Walk(uses, 2, 0, 0, {}, kept=[kept]).tiles["stands"][kept]
