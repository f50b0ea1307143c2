"""The states of a tile in a tier: the table of transitions, refusal of all others, and the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import AsynctileError
from asynctile.storage.residency import (
    ABSENT,
    ALLOCATE,
    CLEAN,
    DIRTY,
    KEEP,
    LEAVE,
    LOAD,
    LOSE,
    REMEMBERED,
    REPLACE,
    STORED,
    TRANSITIONS,
    WRITE,
    WRITE_BACK,
    History,
    Residency,
    State,
)
from asynctile.storage.tile import Tile

#: The whole table once more, by state: the transitions of a tile, and its state after each.
TABLE = {
    ABSENT: {ALLOCATE: DIRTY, REPLACE: STORED, LOSE: ABSENT},
    STORED: {LOAD: CLEAN, ALLOCATE: DIRTY, REPLACE: STORED, LOSE: ABSENT},
    CLEAN: {WRITE: DIRTY, LEAVE: STORED, REPLACE: STORED, KEEP: DIRTY, LOSE: ABSENT},
    DIRTY: {WRITE: DIRTY, WRITE_BACK: STORED, LEAVE: ABSENT, REPLACE: STORED, KEEP: DIRTY, LOSE: ABSENT},
}


def tile_in(state: State) -> Residency:
    residency = Residency(Tile("w[0,1]", (4,), persistent=True))
    residency.state = state
    return residency


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("state", State)
def test_transitions_in_the_table_happen_and_all_others_are_refused(state, transition):
    residency, history = tile_in(state), History()
    expected = TABLE[state].get(transition)
    if expected is not None:
        history.change(residency, transition)
        assert residency.state is expected
        assert history.tell() == [f"w[0,1]: {transition.name}, {state} -> {expected}"]
        return
    with pytest.raises(AsynctileError, match=rf"tile w\[0,1\] is {state} and cannot {transition.name}; expected it to be"):
        history.change(residency, transition)
    assert residency.state is state
    assert history.tell() == []


def test_a_refusal_tells_what_happened_before():
    residency, history = tile_in(STORED), History()
    for transition in (LOAD, WRITE, WRITE_BACK):
        history.change(residency, transition)
    with pytest.raises(AsynctileError, match=r"load, stored -> clean; .*write, clean -> dirty; .*write back, dirty -> stored$"):
        history.change(residency, WRITE)


@given(st.lists(st.sampled_from(TRANSITIONS), max_size=40))
def test_bytes_are_never_read_from_where_there_are_none(transitions):
    """A load takes the bytes that a write-back, the eviction of a copy or the tier below has left there."""
    residency, history, below_is_good = tile_in(ABSENT), History(), False
    for transition in transitions:
        before = residency.state
        try:
            history.change(residency, transition)
        except AsynctileError:
            continue
        if transition is LOAD:
            assert below_is_good
        if transition in (WRITE_BACK, REPLACE):
            below_is_good = True
        elif transition in (WRITE, LOSE, ALLOCATE, KEEP) or (transition is LEAVE and before is not CLEAN):
            below_is_good = False


def test_the_log_is_bounded_and_keeps_the_last_entries():
    residency, history = tile_in(CLEAN), History()
    for _ in range(REMEMBERED):
        history.change(residency, WRITE)
        history.change(residency, WRITE_BACK)
        history.change(residency, LOAD)
    assert len(history.tell()) == REMEMBERED
    assert history.tell(1) == ["w[0,1]: load, stored -> clean"]
