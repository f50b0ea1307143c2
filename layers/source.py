"""Where texts have their weights from: what a server must know of a model, or of a copy of its weights.

`InPlace` is the model itself; copies of one that is trained meanwhile are versions.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from asynctile.layers.parameters import Parameters
from asynctile.program.program import Program
from asynctile.repeat.job import Job
from asynctile.share import Share
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile


class Weights(Protocol):
    """What a text is computed with: a model, or a copy of its weights. version: another number after every change of them.

    readers: requests that follow from them. name: of the model.
    """

    engine: Share
    name: str
    parameters: Parameters
    readers: int

    @property
    def version(self) -> int: ...

    def check_whole(self, wish: str) -> None:
        """TornModelError if they are of no single step."""

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """What the program asks of an arena beside what stands of the model, and `also`."""

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """On the engine's loop: end a run that failed or was given up."""


class Source(Protocol):
    """Where texts have their weights from. share: on which they are computed; parameters: their shapes."""

    share: Share
    parameters: Parameters

    @property
    def newest(self) -> Weights:
        """Those that a text follows from which begins now."""

    async def open(self) -> None:
        """On the engine's loop, before the first text. TornModelError, BudgetError."""

    async def publish(self) -> bool:
        """On the engine's loop: whether texts that begin from now on follow from the weights of the model as they are."""

    async def close(self) -> None:
        """On the engine's loop, behind the last text."""


class InPlace:
    """The weights of a model as they are, on its own share, between its steps."""

    def __init__(self, model: Weights) -> None:
        self.share = model.engine
        self.parameters = model.parameters
        self.newest = model

    async def open(self) -> None:
        self.newest.check_whole("serve")

    async def publish(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing was taken."""
