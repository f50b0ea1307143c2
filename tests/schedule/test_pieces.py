"""Pieces of random schedules, against the rules of every cut; also played in random orders, as a device and its host would."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.program.operation import HOST, Operation
from asynctile.program.program import Program
from asynctile.schedule.pieces import PARTS, Pieces, cut, is_aside
from asynctile.schedule.schedule import DISK, NODES, RAM, TOP, Kind, Place, Schedule, Scheduled, tier_of
from asynctile.storage.tile import Tile
from tests.laws import examples
from tests.schedule.paces import GPU

#: The entries of a schedule as letters. Besides operations of the device (o) and of the host (h): copies up, down, within the
#: device and within RAM, to the file, results, to (s) and from (r) another node. Of a second device: operations (O), copies
#: up (U), from the first device (p).
SECOND = tier_of(1)
TIERS = {"u": (TOP, RAM), "d": (RAM, TOP), "c": (TOP, TOP), "m": (RAM, RAM), "t": (DISK, RAM), "f": (RAM, TOP),
         "s": (NODES, RAM), "r": (RAM, NODES),
         "U": (SECOND, RAM), "p": (SECOND, TOP)}  # fmt: skip
KINDS = {"u": Kind.UPLOAD, "d": Kind.DOWNLOAD, "c": Kind.COPY, "m": Kind.COPY, "t": Kind.TRANSFER, "f": Kind.FETCH,
         "s": Kind.TRANSFER, "r": Kind.TRANSFER,
         "U": Kind.UPLOAD, "p": Kind.PASS}  # fmt: skip
OPERATIONS = {"o": TOP, "h": RAM, "O": SECOND}
ASIDES = "hmt"


def scheduled(letter: str, waits: tuple[int, ...], after: tuple[int, ...], stretch: int, nbytes: int = 1 << 20) -> Scheduled:
    tile = Tile("w", (nbytes,), np.uint8, persistent=True)
    if letter in OPERATIONS:
        operation = Operation("none", (tile,), "u", device=HOST) if letter == "h" else Operation("none", (tile,), "u")
        return Scheduled(Kind.OPERATION, operation, (Place(OPERATIONS[letter], nbytes, 0),), waits, after, stretch)
    places = tuple(Place(tier, nbytes, 0) for tier in TIERS[letter])
    return Scheduled(KINDS[letter], tile, places, waits, after, stretch)


def schedule_of(letters: str, edges: dict[int, tuple[int, ...]] | None = None, stretches: tuple[int, ...] = (0,)) -> Schedule:
    """Return a schedule, one letter an entry. edges: the entries that each one waits for. stretches: their first entries."""
    entries = [
        scheduled(letter, (edges or {}).get(index, ()), (), bisect_right(stretches, index) - 1)
        for index, letter in enumerate(letters)
    ]
    return made_of(entries, stretches)


def made_of(entries: list[Scheduled], stretches: tuple[int, ...]) -> Schedule:
    return Schedule(Program("by chance").finish(), tuple(entries), stretches, {}, (), {}, (), (), (0, 0), repeats=True)


@st.composite
def schedules(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 1 << 20, 1 << 28)) -> Schedule:
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    count, often = draw(st.integers(0, 60)), draw(st.sampled_from(["oudc", "oudchtmf", "ooouuddh", "oht", "t", "oOudUph"]))
    stretches = (0, *sorted(draw(st.lists(st.integers(0, count), max_size=3))))
    entries = []
    for index in range(count):
        before = chance.sample(range(index), min(index, chance.choice((0, 1, 1, 2, 4))))
        near = [one for one in before if chance.random() < 0.3 or index - one < 8]
        split = chance.randint(0, len(near))
        stretch = bisect_right(stretches, index) - 1
        edges = tuple(sorted(near[:split])), tuple(sorted(near[split:]))
        entries.append(scheduled(chance.choice(often), *edges, stretch, nbytes=chance.choice(sizes)))
    return made_of(entries, stretches)


def edges_of(entry: Scheduled) -> tuple[int, ...]:
    return *entry.waits, *entry.after


def piece_of(pieces: Pieces) -> dict[int, int]:
    """Return the number of the piece of each entry that is a node."""
    return {node: number for number, piece in enumerate(pieces.pieces) for node in piece.nodes}


def ways_that_close(pieces: Pieces) -> list[int]:
    """Return the nodes that follow, through asides only, from a node of their own piece."""
    piece, found = piece_of(pieces), []
    sources: list[set[int]] = []
    for index, entry in enumerate(pieces.schedule.entries):
        mine = {source for before in edges_of(entry) for source in ({before} if before in piece else sources[before])}
        sources.append(mine)
        through = {source for before in edges_of(entry) if before not in piece for source in sources[before]}
        if index in piece and any(piece[source] == piece[index] for source in through):
            found.append(index)
    return found


def fewest(schedule: Schedule) -> int:
    """Return the least number of pieces, by trying every first entry of the next one."""
    count, bounds = len(schedule), {*schedule.stretches, len(schedule)}
    least: dict[int, int] = {count: 0}
    for start in range(count - 1, -1, -1):
        best = None
        for stop in range(start + 1, count + 1):
            if stop in least and not (bounds & set(range(start + 1, stop))) and not closes_within(schedule, start, stop):
                nodes = any(not is_aside(schedule.entries[index]) for index in range(start, stop))
                best = min(least[stop] + nodes, count if best is None else best)
        assert best is not None
        least[start] = best
    return least[0]


def closes_within(schedule: Schedule, start: int, stop: int) -> bool:
    """Return whether a path leaves the device in [start, stop), goes through asides anywhere, and comes back there."""
    follows: set[int] = set()
    for index in range(start, stop):
        entry = schedule.entries[index]
        if is_aside(entry):
            if any(one in follows or (one >= start and not is_aside(schedule.entries[one])) for one in edges_of(entry)):
                follows.add(index)
        elif any(one in follows for one in edges_of(entry)):
            return True
    return False


def play(pieces: Pieces, seed: int) -> list[int]:
    """Return the entries in an order in which they might end, as pieces and asides demand.

    A piece begins when the one before is over, its nodes run in any order that their edges within it allow, asides whenever
    they may.
    """
    chance, entries = random.Random(seed), pieces.schedule.entries
    over: list[int] = []
    done: set[int] = set()
    left = [dict.fromkeys(piece.nodes) for piece in pieces.pieces]
    waiting = {aside.entry: aside for aside in pieces.asides}
    at = 0
    while waiting or at < len(left):
        ready = [
            entry for entry, aside in waiting.items() if aside.behind < at and done.issuperset((*aside.waits, *aside.after))
        ]
        if at < len(left) and done.issuperset(pieces.pieces[at].after):
            ready += [node for node in left[at] if left[at].keys().isdisjoint(edges_of(entries[node]))]
        assert ready, "nothing can go on"
        entry = chance.choice(ready)
        over.append(entry)
        done.add(entry)
        if waiting.pop(entry, None) is None:
            del left[at][entry]
            at += not left[at]
    return over


@given(schedules(), st.sampled_from([None, 1e-3, 1e-5]))
def test_every_entry_is_a_node_of_one_piece_or_an_aside(schedule: Schedule, most_s: float | None) -> None:
    pieces = cut(schedule, GPU, most_s=most_s)
    nodes = [node for piece in pieces.pieces for node in piece.nodes]
    asides = [aside.entry for aside in pieces.asides]
    assert nodes == sorted(nodes) and asides == sorted(asides)
    assert sorted(nodes + asides) == [*range(len(schedule))]
    assert asides == [index for index, entry in enumerate(schedule.entries) if is_aside(entry)]


@given(schedules(), st.sampled_from([None, 1e-3, 1e-5]))
def test_pieces_are_consecutive_ranges_of_a_stretch(schedule: Schedule, most_s: float | None) -> None:
    pieces = cut(schedule, GPU, most_s=most_s)
    for piece in pieces.pieces:
        assert piece.nodes and piece.start <= piece.nodes[0] and piece.nodes[-1] < piece.stop
        assert {schedule.entries[index].stretch for index in range(piece.start, piece.stop)} == {piece.stretch}
    for before, piece in pairwise(pieces.pieces):
        assert before.stop == piece.start or before.stretch < piece.stretch
    for stretch in range(len(schedule.stretches)):
        own = [pieces.pieces[number] for number in pieces.of(stretch)]
        assert own == [piece for piece in pieces.pieces if piece.stretch == stretch]
        if own:
            assert own[0].start == schedule.stretches[stretch]
            assert own[-1].stop == (*schedule.stretches, len(schedule))[stretch + 1]


@given(schedules(), st.sampled_from([None, 1e-3, 1e-5]), st.integers(0, 1 << 32))
def test_dependencies_of_an_entry_are_over_before_it_in_every_order_that_pieces_allow(
    schedule: Schedule, most_s: float | None, seed: int
) -> None:
    order = play(cut(schedule, GPU, most_s=most_s), seed)
    when = {entry: moment for moment, entry in enumerate(order)}
    assert len(when) == len(order) == len(schedule)
    for index, entry in enumerate(schedule.entries):
        assert all(when[before] < when[index] for before in edges_of(entry)), entry


@given(schedules(), st.sampled_from([None, 1e-3]))
def test_no_path_from_the_device_to_its_host_and_back_closes_within_a_piece(schedule: Schedule, most_s: float | None) -> None:
    assert not ways_that_close(cut(schedule, GPU, most_s=most_s))


@given(schedules())
def test_the_waits_between_asides_are_those_of_the_schedule(schedule: Schedule) -> None:
    for aside in cut(schedule, GPU).asides:
        entry = schedule.entries[aside.entry]
        assert aside.waits == tuple(one for one in entry.waits if is_aside(schedule.entries[one]))
        assert aside.after == tuple(one for one in entry.after if is_aside(schedule.entries[one]))


@examples(25)
@given(schedules(sizes=(1,)))
def test_pieces_of_a_short_step_are_as_few_as_asides_allow(schedule: Schedule) -> None:
    assert len(cut(schedule, GPU).pieces) == fewest(schedule)


@examples(25)
@given(schedules())
def test_pieces_of_a_long_step_are_not_many_more(schedule: Schedule) -> None:
    assert len(cut(schedule, GPU).pieces) <= fewest(schedule) + 2 * PARTS


@pytest.mark.parametrize("letters", ["oO", "uU", "uo", "Up", "Op"])
def test_the_lanes_of_all_devices_run_side_by_side_in_a_piece(letters: str) -> None:
    alone = {letter: cut(schedule_of(letter * 40), GPU, most_s=6e-5) for letter in letters}
    both = cut(schedule_of(letters * 40), GPU, most_s=6e-5)
    assert len(both.pieces) == max(len(pieces.pieces) for pieces in alone.values()) > 1


def updates(count: int, slots: int, heavy: int = 0) -> Schedule:
    """Return a schedule that updates `count` weights in RAM.

    For each weight: a kernel, the download of its gradient into the next of `slots` in turn, an update there. The last `heavy`
    updates are much more work than the others. A small kernel comes after everything.
    """
    entries = []
    for number in range(count):
        reused = (3 * (number - slots) + 2,) if number >= slots else ()
        nbytes = 1 << 30 if number >= count - heavy else 1 << 24
        entries += [
            scheduled("o", (), (), 0, 1 << 24),
            scheduled("d", (3 * number,), reused, 0, 1 << 24),
            scheduled("h", (3 * number + 1,), (), 0, nbytes),
        ]
    return made_of([*entries, scheduled("o", (), (), 0)], (0,))


def waits_for_the_piece_before(pieces: Pieces) -> list[int]:
    """Return asides that a piece waits for although they come after the piece right before it."""
    behind = {aside.entry: aside.behind for aside in pieces.asides}
    return [entry for number, piece in enumerate(pieces.pieces) for entry in piece.after if behind[entry] == number - 1]


def test_the_host_gets_equal_parts_of_its_work_beside_the_following_pieces() -> None:
    pieces = cut(updates(8 * PARTS, 8 * PARTS), GPU)
    assert len(pieces.pieces) == PARTS
    assert set(Counter(aside.behind for aside in pieces.asides).values()) == {8}


@pytest.mark.parametrize("heavy", [0, 8])
def test_with_enough_room_in_ram_no_piece_waits_for_host_work_after_the_piece_before_it(heavy: int) -> None:
    pieces = cut(updates(128, 24, heavy), GPU)
    assert sum(len(piece.after) for piece in pieces.pieces) == 128 - 24
    assert not waits_for_the_piece_before(pieces)
    assert len(pieces.pieces) <= PARTS + heavy


def test_with_one_place_in_ram_each_piece_waits_for_the_update_before_it() -> None:
    assert [piece.after for piece in cut(updates(5, 1), GPU).pieces] == [(), (2,), (5,), (8,), (11,)]


@pytest.mark.parametrize(("letters", "edges", "starts"), [
    ("osro", {1: (0,), 3: (2,)}, [0, 3]),  # another node may need the tile to make its own
    ("orro", {1: (0,), 3: (2,)}, [0, 3]),  # the second tile may come behind the first, which gets its place here
    ("orso", {2: (0,), 3: (1,)}, [0]),  # this tile goes later
])  # fmt: skip
def test_a_piece_ends_before_it_needs_a_tile_that_comes_behind_its_own(
    letters: str, edges: dict[int, tuple[int, ...]], starts: list[int]
) -> None:
    assert [piece.start for piece in cut(schedule_of(letters, edges), GPU).pieces] == starts


def test_a_copy_within_ram_belongs_to_the_host() -> None:
    assert [is_aside(entry) for entry in schedule_of("ohudcmtf").entries] == [letter in ASIDES for letter in "ohudcmtf"]


def test_no_piece_takes_longer_than_allowed_unless_one_entry_does() -> None:
    # A copy of 1 MiB over the link takes 24 us, and 3 more in any case, so four of them fit into a piece.
    four = cut(schedule_of("u" * 10), GPU, most_s=110e-6)
    assert [len(piece.nodes) for piece in four.pieces] == [4, 4, 2]
    assert [len(piece.nodes) for piece in cut(schedule_of("u" * 3), GPU, most_s=1e-6).pieces] == [1, 1, 1]


def test_parallel_work_counts_once_and_waiting_work_counts_after_its_dependencies() -> None:
    beside = cut(schedule_of("udududud"), GPU, most_s=110e-6)
    assert [len(piece.nodes) for piece in beside.pieces] == [8]
    chained = cut(schedule_of("udududud", {index: (index - 1,) for index in range(1, 8)}), GPU, most_s=110e-6)
    assert [len(piece.nodes) for piece in chained.pieces] == [4, 4]
