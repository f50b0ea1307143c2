"""Scenario `kill`: a training is killed at any moment, sometimes inside a save, and resumed; its final bytes must be the same.

Covers the side of stress. killer.py is the process that forks, kills and compares, victim.py the training.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Killer"]

PROGRAM = ("-m", "asynctile.cli.stress.killer")


class Killer(Partner):
    """The killing process, working in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that kills", PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """Play a round of at least one kill, with the training to its end.

        Finding if the result differs from that of a training without kills.
        """
        killed = await self.ask(seed)
        tally.kills += killed["kills"]
        tally.kills_in_save += killed["in_save"]
        for played in killed["played"]:
            tally.step(played)
        if killed["failure"] is not None:
            raise Finding(*killed["failure"])
