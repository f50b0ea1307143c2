"""Scenario `kill`: a training is killed at any moment, some inside a save, and goes on; in the end it has the same bytes.

Covers the side of stress. The process that forks, kills and compares is killer.py, the training victim.py.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Killer"]

_PROGRAM = ("-m", "asynctile.cli.stress.killer")


class Killer(Partner):
    """The killing process, with `folder` to work in."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that kills", _PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """A round: at least one kill, and the training to its end. Finding if that is not as if nobody had killed it."""
        killed = await self.ask(seed)
        tally.kills += killed["kills"]
        tally.kills_in_save += killed["in_save"]
        for played in killed["played"]:
            tally.step(played)
        if killed["failure"] is not None:
            raise Finding(*killed["failure"])
