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
