"""Positions in program order, by which ledgers rank tiles. Pure.

A share of an engine counts them on and on, so that none comes twice: a job begins behind the last one, and its program's
`next_uses` are offsets from there. What is used outside a program ranks behind all of that, longest unused first.
"""

from __future__ import annotations

#: Far enough for any program.
FAR = 1 << 60

class Positions:
    """The positions of one share. last: of what was issued last outside a program, or of the end of the last job."""

    def __init__(self) -> None:
        self.last = 0

    def begin(self) -> int:
        """A job begins: the position of its program's first entry."""
        self.last += 1
        return self.last

    def end(self, base: int, length: int) -> None:
        """A job is over; positions go on behind it, where the `next_uses` of its persistent tiles point."""
        self.last = base + length - 1

    def alone(self) -> int:
        """An operation outside a program is issued: the rank of its tiles."""
        self.last += 1
        return self.now

    @property
    def now(self) -> int:
        """The rank of what is used outside a program at this moment."""
        return FAR - self.last
