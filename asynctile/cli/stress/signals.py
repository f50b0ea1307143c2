"""Scenario `signals`: a training gets two signals, up to three seconds apart, at any moment; resumed it has the same bytes.

Covers the side of stress. The process that forks trainings, sends signals and compares is signaller.py.
"""

from __future__ import annotations

from pathlib import Path

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.partner import Partner
from asynctile.cli.stress.tally import Tally

__all__ = ["Signals"]

_PROGRAM = ("-m", "asynctile.cli.stress.signaller")


class Signals(Partner):
    """The process that sends signals, with `folder` to work in."""

    def __init__(self, folder: Path) -> None:
        super().__init__("the process that sends signals", _PROGRAM, folder)

    async def play(self, seed: int, tally: Tally) -> None:
        """A round: one pair, and the training to its end. Finding if that is not as if nobody had signalled."""
        pair = await self.ask(seed)
        tally.pairs[pair["ended"]] += 1
        if pair["failure"] is not None:
            raise Finding(*pair["failure"])
