"""Scenario `inputs` on the side of stress: each round is one case, played by a process of its own.

Covers counting. The cases are in attacker.py.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.round import Round

__all__ = ["Attack"]

PROGRAM = ("-m", "asynctile.cli.stress.inputs.attacker")


class Attack(Partner):
    """The attacking process, working in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that damages inputs", PROGRAM, folder)

    async def play(self, round: Round) -> bool:
        """Play one case. Finding if the command did something it may not."""
        case = await self.ask(round.seed)
        round.tally.harmed.add(case["kind"], case["file"], case["status"], case["seconds"], case["nbytes"],
                               found=case["failure"] is not None)
        if case["failure"] is not None:
            raise Finding(*case["failure"])
        return True
