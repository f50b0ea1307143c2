"""Ranks for tiles that are used outside a schedule: the later a tile was used, the sooner it is assumed to be used again. Pure.
"""

from __future__ import annotations

#: The first rank; large enough for the life of any engine.
FAR = 1 << 60


class Positions:
    """The ranks of one share, each smaller than all before. last: the number of operations issued so far."""

    def __init__(self) -> None:
        self.last = 0

    def alone(self) -> int:
        """Count an operation that is issued, and return the rank of its tiles."""
        self.last += 1
        return self.now

    @property
    def now(self) -> int:
        """The rank of a tile that is used at this moment."""
        return FAR - self.last
