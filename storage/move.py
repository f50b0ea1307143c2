"""A move: what a ledger has decided of one tile and one slot. Carried out by asynctile/memory/tier.py, or taken back whole."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.storage.residency import Residency, State
from asynctile.storage.slot import Slot


@dataclass(slots=True, eq=False)
class Load:
    """Copy the tile from its backing into `slot`. was: its state before, in each move."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Allocate:
    """The tile will be written whole in `slot`: nothing to copy."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Evict:
    """The tile leaves `slot`; `write_back`: copy it to its backing first."""

    residency: Residency
    slot: Slot
    was: State
    write_back: bool


Move = Load | Allocate | Evict
