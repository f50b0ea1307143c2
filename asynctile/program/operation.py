"""An operation: one verb on some tiles, known before anything runs.

The functions in asynctile/ops make operations, asynctile/program/program.py puts them in order, each runs as one
coroutine (asynctile/run/lane.py), asynctile/kernels computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asynctile.storage.tile import Tile

READ, WRITE, UPDATE = "r", "w", "u"

#: What an operation runs on: the device of an engine, or its host, in RAM beside it. Where RAM is the device both are one.
DEVICE, HOST = "device:0", "host"

#: `number` of an operation whose kernel takes one but has nothing to report this time.
NO_NUMBER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """kernel(*operand arrays, *params[, number]).

    kernel: name of the function in asynctile.kernels.<device>.
    operands: the tiles, in the order of the kernel's arguments.
    access: one letter an operand: "r" read; "w" overwritten whole, old bytes are not needed; "u" read and written.
    params: plain ints, floats and bools that follow the arrays.
    flops: floating-point operations of its GEMMs, for the plan's estimate.
    number: index among the program's float64 numbers that the host reads afterwards; NO_NUMBER: a place to
    ignore; None: its kernel takes none.
    device: what it runs on, DEVICE or HOST.
    """

    kernel: str
    operands: tuple[Tile, ...]
    access: str
    params: tuple[int | float | bool, ...] = ()
    flops: int = 0
    number: int | None = None
    device: str = DEVICE
    #: `operands`, as every entry of a program calls them
    tiles: tuple[Tile, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiles", self.operands)
        if len(self.access) != len(self.operands):
            raise ValueError(f"{self.kernel}: {len(self.operands)} operands but access {self.access!r}")

    def __repr__(self) -> str:
        tiles = ", ".join(f"{tile.name}:{how}" for tile, how in zip(self.operands, self.access, strict=True))
        return f"{self.kernel}({tiles}, {self.params})"


def expect(kernel: str, tile: Tile, shape: tuple[int, ...]) -> None:
    """Refuse a tile of another shape: ValueError that names the verb, the tile and both shapes."""
    if tile.shape != shape:
        raise ValueError(f"{kernel}: {tile.name} has shape {tile.shape}, expected {shape}")
