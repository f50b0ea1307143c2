"""A run of a program as its caller sees it (`Job`), and a run that failed before its first entry (`FailedJob`).

A mark is a place in the program where the caller looks at results and decides (Program.mark).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from asynctile.launch.assembly import Assembly
from asynctile.program.program import Program
from asynctile.storage.tile import Tile


class Job(Protocol):
    """A run: `await until(mark)` as often as wanted, then `await finish()`; `abandon` if it fails. All on the device's loop.

    numbers: float64 (n,), by the program's indices, valid once `reported` or `finish` has returned.
    played: whether workers or graphs carry it out, and not coroutines.
    """

    program: Program
    numbers: np.ndarray
    played: bool

    async def until(self, mark: str) -> None:
        """Let everything before `mark` run. KeyError if the program has no such mark."""

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        """Give an input another value for the work behind the last mark given to `until`, which must list it in `rewritten`."""

    async def reported(self) -> None:
        """Wait for the numbers of everything before the last mark given to `until`."""

    async def finish(self) -> None:
        """Let the rest run and wait until all of it has run; raise the first error."""

    async def abandon(self) -> list[Tile]:
        """Let the begun work run out, then free the temporaries; return the persistent tiles whose bytes are lost.

        Errors of that work are swallowed, since the caller raises the error that it has.
        """


class FailedJob:
    """A run that cannot begin, because bytes of its tiles were lost by `error`: every method but `abandon` raises it."""

    played = False

    def __init__(self, assembly: Assembly, program: Program, error: BaseException) -> None:
        self.program = program
        self.numbers = np.zeros(len(program.numbers))
        self._assembly = assembly
        self._error = error

    async def until(self, mark: str) -> None:
        raise self._error

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        raise self._error

    async def reported(self) -> None:
        raise self._error

    async def finish(self) -> None:
        raise self._error

    async def abandon(self) -> list[Tile]:
        self._assembly.release(self.program.inputs.values())
        copies = self._assembly.tiers.copies
        return [tile for tile in self.program.standing if not copies.rescue(tile)]
