"""How large the tiles of a device should be: small on a CPU, whose caches hold few bytes, large on a GPU.

A device says which (`Device.grain`); what is cut how is layers/tiling.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.storage.demand import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Grain:
    """ladder: edges of tiles to choose from, in rows or columns, the largest first. tall: row tiles have tall x edge rows.

    pitch: along an axis of any size (Axis.padded) tiles have multiples of so many elements, zeros beyond those that count.
    alignment: of slots on the device, in bytes. rigid: its memory cannot be let go slot by slot.
    floor_nbytes: what the floor of any model may be with the tiles that it gets by default.
    run_ahead: operations that the host may be ahead of the device.
    """

    ladder: tuple[int, ...]
    tall: int = 1
    pitch: int = 1
    alignment: int = ALIGNMENT
    rigid: bool = False
    floor_nbytes: int = 512 << 10
    run_ahead: int = 96


#: For CPU kernels: each tile is one thread's work. The first edge is the largest that is worth it (bench/bench_tiles.py).
FINE = Grain((512, 384, 320, 256, 192, 160, 128, 96, 64, 48, 32, 16))
#: For kernels that need a whole GPU's worth of rows at once, and few launches.
#: Slots begin where cudaMalloc would put them: libraries that choose a kernel by alignment must choose the same in every slot.
#: Rows of bf16 that are no multiples of 16 bytes apart, or of no multiple of 8 elements, make cuBLAS take slow kernels.
#: The smallest GPU that it is for has 16 GiB. Of these a floor may take 3, as layers/tiling.py estimates it, which is 1 to 2 in
#: truth: tiles of the largest edge, so that a model that stays there is as few operations as can be.
#: An operation there takes from 3 to some 100 us, and 20 to 50 to issue. While long ones run the host gets ahead, and so much
#: does a pause of its own not cost (5 ms for the interpreter, be it another thread's). By these rates steps of gpt2 to gpt2-xl
#: with eight such pauses take up to 11% longer with 96, 3% with 192, and with 384 as long as without a bound.
COARSE = Grain(
    (4096, 3072, 2048, 1536, 1024, 768, *FINE.ladder), tall=4, pitch=8, alignment=256, rigid=True, floor_nbytes=3 << 30,
    run_ahead=384,
)  # fmt: skip


def grain_of(device: str) -> Grain:
    """The grain of the device called `device`, which need not be there."""
    return COARSE if device.partition(":")[0] == "cuda" else FINE
