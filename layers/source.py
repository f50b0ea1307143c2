"""The weights that texts are computed with: the interface that a server needs of a model, or of a copy of its weights.

`InPlace` is the model itself. versions.py holds copies of a model that is being trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from asynctile.execute.job import Job
from asynctile.layers.parameters import Parameters
from asynctile.program.program import Program
from asynctile.runtime import Runtime
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile


class Weights(Protocol):
    """The weights that a text is computed with: those of a model, or a copy.

    version: a number that differs after every change of the weights. readers: how many requests use them. name: the model's.
    """

    runtime: Runtime
    name: str
    parameters: Parameters
    readers: int

    @property
    def version(self) -> int: ...

    def check_whole(self, wish: str) -> None:
        """Raise TornModelError if the weights belong to no single step."""

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """Return what the program demands of an arena in addition to the model's standing tiles and `also`."""

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """End a run that failed or was given up. Runs on the engine's loop."""


class Source(Protocol):
    """The place that texts take their weights from. runtime: computes the texts. parameters: their shapes."""

    runtime: Runtime
    parameters: Parameters

    @property
    def newest(self) -> Weights:
        """The weights that a new text is generated from."""

    async def open(self) -> None:
        """Prepare for the first text, on the engine's loop. TornModelError or BudgetError if that fails."""

    async def publish(self) -> bool:
        """Return whether texts that begin from now on use the model's current weights. Runs on the engine's loop."""

    async def close(self) -> None:
        """Clean up after the last text, on the engine's loop."""


class InPlace:
    """A model's own weights, read on its own share between its steps."""

    def __init__(self, model: Weights) -> None:
        self.runtime = model.runtime
        self.parameters = model.parameters
        self.newest = model

    async def open(self) -> None:
        self.newest.check_whole("serve")

    async def publish(self) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: `open` has taken nothing."""
