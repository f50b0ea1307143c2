"""The programs of fp32, held fixed: one operation more or fewer, or another order, would change the bits of every result.

If such a change is intended, `python tests/layers/test_same_programs.py` prints the new table. test_record.py tests what
programs must be like.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from asynctile.layers.activations import kept_if
from asynctile.layers.step import KINDS, record
from asynctile.program.operation import Operation
from asynctile.program.program import Fetch
from tests.laws import law
from tests.layers.shapes import SHAPES, Shape

HELD = SHAPES | {"four replicas": replace(SHAPES["several sequences in a tile"], batch=8, micro_batches=1, replicas=4)}
#: (operations of all kinds of programs, with and without recompute; digest of what they do to which tiles in which order)
KNOWN = {
    "one tile of everything": (827, "a6d09450783db68c"),
    "sequences cut, all ragged": (42456, "4973e959d98c778c"),
    "several sequences in a tile": (6552, "c97244d8326e745f"),
    "a head wider than the tile": (90092, "5969eaeb7b55715c"),
    "one sequence of one token": (4752, "878279a7b04a592a"),
    "heads in uneven groups, narrow MLP": (18796, "275cb5f402afd9ef"),
    "tiles of one": (35976, "c7da0d5a19ee0795"),
    "four replicas": (14976, "d46cc16f046c40e7"),
}


def outline(shape: Shape) -> tuple[int, str]:
    count, digest = 0, hashlib.sha256()
    for kind in KINDS:
        for recompute in (True, False):
            parameters = shape.parameters()
            rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches, shape.replicas)
            program = record(kind, parameters, rows, kept=kept_if(recompute, shape.config))
            for entry in program.entries:
                if isinstance(entry, Operation):
                    count += 1
                    line = f"{entry.kernel} {entry.access} {entry.params} {entry.flops} {entry.number}"
                else:
                    line = f"fetch {entry.key} {entry.index}" if isinstance(entry, Fetch) else f"mark {entry.name}"
                tiles = [f"{tile.name} {tile.shape} {tile.dtype} {tile.persistent}" for tile in entry.tiles]
                digest.update(f"{line} {tiles}\n".encode())
    return count, digest.hexdigest()[:16]


#: Each takes seconds, and the others are cut in all ways in which these are.
LONG = ("sequences cut, all ragged", "a head wider than the tile", "tiles of one")


@pytest.mark.parametrize("name", [law(name) if name in LONG else name for name in HELD])
def test_the_programs_of_fp32_are_unchanged(name: str) -> None:
    assert outline(HELD[name]) == KNOWN[name]


if __name__ == "__main__":
    for name, shape in HELD.items():
        print(f"    {name!r}: {outline(shape)},".replace("'", '"'))
