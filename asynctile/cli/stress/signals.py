"""Scenario `signals`: a training gets two signals, up to three seconds apart; resumed, it must have the same bytes.

Covers the side of stress. signaller.py is the process that forks trainings, sends signals and compares.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Signals"]

PROGRAM = ("-m", "asynctile.cli.stress.signaller")


class Signals(Partner):
    """The process that sends signals, working in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that sends signals", PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """Play a round of one pair of signals, with the training to its end.

        Finding if the result differs from that of a training without signals.
        """
        pair = await self.ask(seed)
        tally.pairs[pair["ended"]] += 1
        if pair["failure"] is not None:
            raise Finding(*pair["failure"])
