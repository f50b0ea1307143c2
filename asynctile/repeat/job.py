"""A run of a program, as those see it who begin it; and one that failed before its first entry."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from asynctile.program.program import Program
from asynctile.run.assembly import Assembly
from asynctile.storage.tile import Tile


class Job(Protocol):
    """`await until(mark)` as often as wanted, then `await finish()`; `abandon` when it fails. All on the device's loop.

    numbers: float64 (n,), by the program's indices, valid once `reported` or `finish` has returned. played: whether by workers
    or graphs, and not by coroutines.
    """

    program: Program
    numbers: np.ndarray
    played: bool

    async def until(self, mark: str) -> None:
        """Let everything before `mark` run. KeyError if the program has no such mark."""

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        """At a mark that allows it (Program.mark): give an input another value, for what comes behind."""

    async def reported(self) -> None:
        """Wait for the numbers of everything before the mark that was asked for."""

    async def finish(self) -> None:
        """Let the rest run and wait until all of it has; raises the first error."""

    async def abandon(self) -> list[Tile]:
        """Let what was begun run out, then free the temporaries; returns persistent tiles whose bytes are lost.

        Errors of that work are swallowed: the caller raises the one that it has.
        """


class FailedJob:
    """Tiles did not come to where the schedule of `program` begins: whatever is asked of it raises `error`."""

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
        top = self._assembly.tiers.top
        return [tile for tile in self.program.standing if not top.rescue(top.of(tile))]
