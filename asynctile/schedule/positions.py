"""Ranks of what is used outside a schedule: the later, the sooner it is taken to be used again. Pure."""

from __future__ import annotations

#: Far enough for any engine.
FAR = 1 << 60


class Positions:
    """Of one share, counted on and on, so that none comes twice. last: of what was issued last."""

    def __init__(self) -> None:
        self.last = 0

    def alone(self) -> int:
        """An operation is issued: the rank of its tiles."""
        self.last += 1
        return self.now

    @property
    def now(self) -> int:
        """The rank of what is used at this moment."""
        return FAR - self.last
