"""The weights that texts are computed with, and the places that texts take them from.

A text uses a model's own weights, or a copy of them (versions.py). `InPlace` is the model itself.
"""

from __future__ import annotations

from typing import TypeAlias

from asynctile.layers.model_state import ModelState
from asynctile.layers.parameters import Parameters
from asynctile.layers.versions import Version, Versions


class InPlace:
    """A model's own weights, read on its own share between its steps."""

    def __init__(self, model: ModelState) -> None:
        self.runtime = model.runtime
        self.newest = model

    @property
    def parameters(self) -> Parameters:
        return self.newest.parameters

    async def open(self) -> None:
        self.newest.check_whole("serve")

    async def publish(self) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: `open` has taken nothing."""


#: The weights that a text is computed with. version: a number that differs after every change of them.
Weights: TypeAlias = ModelState | Version
#: The place that texts take their weights from. newest: those of a new text.
Source: TypeAlias = InPlace | Versions
