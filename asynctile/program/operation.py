"""An operation: one verb applied to some tiles, known before anything runs.

The functions in asynctile/ops make operations, and asynctile/program/program.py puts them in order. A schedule of a program
says when each is enqueued (asynctile/execute), asynctile/kernels has the code that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asynctile.storage.tile import Tile

READ, WRITE, UPDATE = "r", "w", "u"

#: Where an operation runs: on the first device of an engine, or on its host, in RAM beside it. If RAM is the device, both are
#: one. `device_named` names the other devices.
DEVICE, HOST = "device:0", "host"
_NAME = "device:"


def device_named(number: int) -> str:
    """Return the name of a device of an engine. Devices count from 0."""
    return f"{_NAME}{number}"


def number_of(device: str) -> int:
    """Return the number of a device by its name."""
    return int(device.removeprefix(_NAME))


#: `number` of an operation whose kernel takes a number but has nothing to report this time.
NO_NUMBER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One call of a kernel: kernel(*operand arrays, *params[, number]).

    kernel: name of the function in asynctile.kernels.<device>.
    operands: the tiles, in the order of the kernel's arguments.
    access: one letter per operand: "r" read; "w" overwritten whole, old bytes are not needed; "u" read and written.
    params: plain ints, floats and bools that follow the arrays.
    flops: floating-point operations of its matrix products, for estimates of time.
    number: index of its result among the program's float64 numbers, which the host reads afterwards; NO_NUMBER: the result is
    ignored; None: the kernel takes none.
    device: where it runs: HOST, or a device by its name.
    """

    kernel: str
    operands: tuple[Tile, ...]
    access: str
    params: tuple[int | float | bool, ...] = ()
    flops: int = 0
    number: int | None = None
    device: str = DEVICE
    #: the operands, under the name that every entry of a program has
    tiles: tuple[Tile, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiles", self.operands)
        if len(self.access) != len(self.operands):
            raise ValueError(f"{self.kernel}: {len(self.operands)} operands but access {self.access!r}")

    def __repr__(self) -> str:
        tiles = ", ".join(f"{tile.name}:{how}" for tile, how in zip(self.operands, self.access, strict=True))
        return f"{self.kernel}({tiles}, {self.params})"


def expect(kernel: str, tile: Tile, shape: tuple[int, ...]) -> None:
    """Raise ValueError, naming the verb, the tile and both shapes, if a tile does not have this shape."""
    if tile.shape != shape:
        raise ValueError(f"{kernel}: {tile.name} has shape {tile.shape}, expected {shape}")
