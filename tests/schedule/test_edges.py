"""Which user waits for which, against a model that remembers for each byte its writer and its readers since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.schedule.edges import ByteUsers
from asynctile.schedule.schedule import NOBODY

#: Bytes of the memory in which users overlap in every way.
SIZE = 12
RANGES = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda drawn: (drawn[0], min(SIZE, sum(drawn))))


class Told:
    """The users of bytes; each method returns what they add to a set."""

    def __init__(self) -> None:
        self.users = ByteUsers()

    def read(self, begin: int, end: int, entry: int) -> set[int]:
        found: set[int] = set()
        self.users.read(begin, end, entry, found)
        return found

    def write(self, begin: int, end: int, entry: int) -> set[int]:
        found: set[int] = set()
        self.users.write(begin, end, entry, found)
        return found


class Naive:
    """The same byte by byte."""

    def __init__(self) -> None:
        self.writer = [NOBODY] * SIZE
        self.readers: list[set[int]] = [set() for _ in range(SIZE)]

    def read(self, begin: int, end: int, entry: int) -> set[int]:
        for at in range(begin, end):
            self.readers[at].add(entry)
        return set(self.writer[begin:end]) - {NOBODY}

    def write(self, begin: int, end: int, entry: int) -> set[int]:
        before = set[int]()
        for at in range(begin, end):
            before |= self.readers[at] or {self.writer[at]}
            self.writer[at], self.readers[at] = entry, set()
        return before - {NOBODY}


@given(st.lists(st.tuples(st.sampled_from(["read", "write", "given", "update"]), RANGES), max_size=40))
def test_a_reader_waits_for_writers_and_a_writer_for_readers_or_else_for_the_writer(
    touches: list[tuple[str, tuple[int, int]]],
) -> None:
    users, naive = Told(), Naive()
    for entry, (how, (begin, end)) in enumerate(touches):
        if how in ("read", "update"):
            assert users.read(begin, end, entry) == naive.read(begin, end, entry)
        if how != "read":
            writer = NOBODY if how == "given" else entry
            assert users.write(begin, end, writer) == naive.write(begin, end, writer)


def test_nobody_waits_for_bytes_that_were_there_before() -> None:
    users = Told()
    assert users.read(0, 8, 0) == set()
    assert users.write(4, 12, 1) == {0}
    assert users.write(8, 16, 2) == {1}
    assert users.read(0, 16, 3) == {1, 2}


def test_adjacent_bytes_are_independent() -> None:
    users = Told()
    users.write(0, 8, 0)
    assert users.write(8, 16, 1) == users.read(16, 24, 2) == set()
    assert users.read(7, 9, 3) == {0, 1}


def test_a_reader_of_a_part_is_waited_for_by_a_writer_of_that_part_alone() -> None:
    users = Told()
    users.write(0, 8, 0)
    users.read(2, 4, 1)
    assert users.write(4, 6, 2) == {0}
    assert users.write(0, 8, 3) == {0, 1, 2}
    assert users.write(0, 8, 4) == {3}
