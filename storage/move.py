"""Moves: what a ledger has decided for one tile and one slot. asynctile/memory/tier.py carries them out, or takes them back."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.storage.residency import Residency, State
from asynctile.storage.slot import Slot


@dataclass(slots=True, eq=False)
class Load:
    """Copy the tile from its backing into `slot`. was: the tile's state before the move."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Allocate:
    """Give the tile `slot` without copying: an operation will write it whole. was: the tile's state before the move."""

    residency: Residency
    slot: Slot
    was: State


@dataclass(slots=True, eq=False)
class Evict:
    """Take the tile out of `slot`; `write_back`: copy it to its backing first. was: the tile's state before the move."""

    residency: Residency
    slot: Slot
    was: State
    write_back: bool


Move = Load | Allocate | Evict
