"""Moves: what a ledger has decided for one tile and one slot. asynctile/memory/tier.py carries them out, or takes them back."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.storage.residency import Residency, State
from asynctile.storage.slot import Slot


@dataclass(slots=True, eq=False)
class Load:
    """A copy of a residency's tile from its backing into `slot`. was: the tile's state before the move."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Allocate:
    """A slot for a tile that an operation will write whole, so nothing is copied. was: the tile's state before the move."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Evict:
    """The tile's departure from `slot`. write_back: its bytes are first copied below. was: its state before the move."""

    residency: Residency
    slot: Slot
    was: State
    write_back: bool


Move = Load | Allocate | Evict
