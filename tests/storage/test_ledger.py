"""The decisions of the ledger: lists of moves, without any I/O."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.errors import AsynctileError, BudgetError
from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand
from asynctile.storage.ledger import Ledger
from asynctile.storage.move import Allocate, Evict, Load
from asynctile.storage.residency import ABSENT, STORED
from asynctile.storage.tile import NEVER, Tile
from tests.laws import examples

NBYTES = 64


class Below:
    """A tier below that hands out numbers."""

    def __init__(self, limit=10**9):
        self.taken, self.next, self.limit = set(), 0, limit

    def take(self, residency):
        if len(self.taken) >= self.limit:
            raise BudgetError(f"{residency.name}: full", floor=0)
        self.next += 1
        self.taken.add(self.next)
        return self.next

    def give(self, residency):
        self.taken.remove(residency.backing)


def ledger(slots, below=None):
    arena = Arena(slots * NBYTES, evictable=True)
    arena.cut(Demand((NBYTES,), (1,), {NBYTES: 10**6}, "gemm"))
    return Ledger(arena, Below() if below is None else below)


def stored(book, name):
    """Return a persistent tile whose bytes are below."""
    residency = book.of(Tile(name, (16,), np.float32, persistent=True))
    residency.backing, residency.state = book.backing.take(residency), STORED
    return residency


def temporary(book, name):
    """Return a tile that lives within a run and has no bytes yet."""
    return book.of(Tile(name, (16,)))


def use(book, tiles, access, next_uses):
    moves = []
    book.admit(tiles, access, moves)
    for tile, how, next_use in zip(tiles, access, next_uses, strict=True):
        book.used(tile, next_use, how != "r")
    return [(type(move), move.residency.name) for move in moves]


def test_resident_tiles_need_no_moves():
    book = ledger(2)
    a = stored(book, "a")
    assert use(book, [a], "r", [5]) == [(Load, "a")]
    assert use(book, [a], "r", [6]) == []


def test_the_tile_used_furthest_away_makes_room():
    book = ledger(2)
    a, b, c = (stored(book, name) for name in "abc")
    use(book, [a], "r", [10])
    use(book, [b], "r", [7])
    assert use(book, [c], "r", [9]) == [(Evict, "a"), (Load, "c")]


def test_a_clean_tile_is_evicted_without_a_write_back_and_a_dirty_one_with_one():
    book = ledger(1)
    a, b = stored(book, "a"), stored(book, "b")
    use(book, [a], "r", [9])
    moves = []
    book.admit([b], "u", moves)
    book.used(b, 8, True)
    assert not moves[0].write_back
    moves.clear()
    book.admit([a], "r", moves)
    assert moves[0].residency is b
    assert moves[0].write_back


def test_a_tile_that_is_overwritten_is_placed_not_loaded():
    book = ledger(1)
    assert use(book, [temporary(book, "t")], "w", [3]) == [(Allocate, "t")]


def test_tiles_of_one_operation_never_evict_each_other():
    book = ledger(3)
    tiles = [stored(book, name) for name in "abc"]
    other = stored(book, "d")
    use(book, [other], "r", [2])
    moves = use(book, tiles, "rru", [NEVER - 1] * 3)
    assert [name for kind, name in moves if kind is Evict] == ["d"]
    assert all(tile.slot is not None for tile in tiles)


def test_an_operation_larger_than_the_arena_is_refused_before_anything_moves():
    book = ledger(2)
    resident = stored(book, "r")
    use(book, [resident], "r", [4])
    moves = []
    with pytest.raises(BudgetError, match="needs 3") as caught:
        book.admit([stored(book, name) for name in "abc"], "rrr", moves)
    assert caught.value.floor == 3 * NBYTES
    assert moves == []
    assert resident.slot is not None


def test_a_released_temporary_frees_its_slot_and_its_place_below():
    book = ledger(1)
    t, a = temporary(book, "t"), stored(book, "a")
    use(book, [t], "w", [9])
    use(book, [a], "r", [3])
    assert t.backing in book.backing.taken
    book.release(t)
    assert len(book.backing.taken) == 1
    assert t.state is ABSENT


def test_a_full_tier_below_is_an_error_and_the_moves_decided_before_it_stand():
    book = ledger(1, Below(limit=0))
    use(book, [temporary(book, "t")], "w", [9])
    with pytest.raises(BudgetError, match="full"):
        use(book, [temporary(book, "u")], "w", [9])
    assert [tile.name for tile in book.resident] == ["t"]


def test_a_device_with_nothing_below_says_that_no_tile_can_be_evicted():
    arena = Arena(NBYTES, evictable=False)
    arena.cut(Demand((NBYTES,), (1,), {NBYTES: 1}, "gemm"))
    book = Ledger(arena, None)
    use(book, [temporary(book, "t")], "w", [9])
    with pytest.raises(BudgetError, match="nothing can be evicted"):
        use(book, [temporary(book, "u")], "w", [9])


def minimal_loads(trace, capacity):
    """Return the loads of a sequence of single reads by Belady's MIN, computed the slow way."""
    held, loads = set(), 0
    for position, tile in enumerate(trace):
        if tile in held:
            continue
        loads += 1
        if len(held) == capacity:
            rest = trace[position + 1 :]
            held.remove(max(held, key=lambda name: rest.index(name) if name in rest else 10**9))
        held.add(tile)
    return loads


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(1, 6))
def test_loads_equal_those_of_the_optimum(trace, capacity):
    book = ledger(capacity)
    tiles = [stored(book, str(index)) for index in range(8)]
    loads = 0
    for position, index in enumerate(trace):
        rest = trace[position + 1 :]
        next_use = position + 1 + rest.index(index) if index in rest else NEVER
        moves = use(book, [tiles[index]], "r", [next_use])
        loads += sum(kind is Load for kind, _ in moves)
        assert len(book.resident) <= capacity
    assert loads == minimal_loads(trace, capacity)


@examples(60)
@given(st.data())
def test_the_books_balance_after_any_sequence_of_operations(data):
    capacity = data.draw(st.integers(3, 6))
    book = ledger(capacity)
    persistent = [stored(book, f"p{index}") for index in range(5)]
    temporaries = [temporary(book, f"t{index}") for index in range(4)]
    alive = set()
    for _ in range(data.draw(st.integers(1, 40))):
        chosen = data.draw(st.lists(st.sampled_from(persistent + temporaries), min_size=1, max_size=3, unique=True))
        access = [
            "w" if tile in temporaries and tile not in alive else data.draw(st.sampled_from("ru")) for tile in chosen
        ]
        use(book, chosen, access, [data.draw(st.integers(0, 99)) for _ in chosen])
        alive.update(tile for tile in chosen if tile in temporaries)
        if alive and data.draw(st.booleans()):
            dead = data.draw(st.sampled_from(sorted(alive, key=lambda tile: tile.name)))
            book.release(dead)
            alive.remove(dead)
        slots = [tile.slot for tile in persistent + temporaries if tile.slot is not None]
        assert len(slots) == len({(slot.pool, slot.index) for slot in slots}) <= capacity
        assert book.arena.used_nbytes == len(slots) * NBYTES
        assert set(book.resident) == {tile for tile in persistent + temporaries if tile.slot is not None}


def test_moves_that_were_not_made_can_be_taken_back():
    book = ledger(2)
    a, b, c = (stored(book, name) for name in "abc")
    use(book, [a], "u", [10])
    use(book, [b], "r", [7])
    before = (a.slot, a.state, b.slot, b.state, book.arena.used_nbytes)
    moves = []
    book.admit([c], "r", moves)
    assert [type(move) for move in moves] == [Evict, Load]
    for move in reversed(moves):
        book.undo(move)
    assert (a.slot, a.state, b.slot, b.state, book.arena.used_nbytes) == before
    assert c.slot is None and c.state is STORED
    assert set(book.resident) == {a, b}
    assert use(book, [c], "r", [9]) == [(Evict, "a"), (Load, "c")]


def test_reading_a_tile_that_was_never_written_is_refused_before_anything_moves():
    book = ledger(1)
    a = stored(book, "a")
    use(book, [a], "r", [3])
    moves = []
    with pytest.raises(AsynctileError, match="tile t was never written"):
        book.admit([temporary(book, "t")], "r", moves)
    assert moves == []
    assert a.slot is not None
