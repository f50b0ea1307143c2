"""Scenario `saves`: a save over a checkpoint is killed after each of its system calls; the old or the new one must be whole.

Covers the side of stress. saver.py is the process that forks, counts calls and compares.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Saves"]

PROGRAM = ("-m", "asynctile.cli.stress.saver")


class Saves(Partner):
    """The process that kills saves, working in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that kills saves", PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """Play a round over every call of a save. Finding if a kill leaves neither the old checkpoint nor the new one."""
        killed = await self.ask(seed)
        tally.kills += killed["kills"]
        tally.kills_in_save += killed["in_save"]
        if killed["failure"] is not None:
            raise Finding(*killed["failure"])
