"""Scenario `saves`: a save over a checkpoint is killed behind each of its calls into the system; old or new is always whole.

Covers the side of stress. The process that forks, counts calls and compares is saver.py.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Saves"]

_PROGRAM = ("-m", "asynctile.cli.stress.saver")


class Saves(Partner):
    """The process that kills saves, with `folder` to work in."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that kills saves", _PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """A round: every call of a save. Finding if what a kill left is neither the checkpoint before nor the one behind."""
        killed = await self.ask(seed)
        tally.kills += killed["kills"]
        tally.kills_in_save += killed["in_save"]
        if killed["failure"] is not None:
            raise Finding(*killed["failure"])
