"""A handle: a tile as programs and layers know it."""

from asynctile.storage.tile import Tile as Handle

__all__ = ["Handle"]
