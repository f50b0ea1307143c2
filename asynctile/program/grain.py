"""The grain of a device: how large its tiles should be. Small on a CPU, whose caches hold few bytes, and large on a GPU.

A device has one grain (`Device.grain`); layers/tiling.py decides how tensors are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.storage.demand import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Grain:
    """The sizes of tiles that suit a device.

    ladder: edges of tiles to choose from, in rows or columns, the largest first. tall: row tiles have tall x edge rows.
    pitch: along an axis of any size (Axis.padded), tiles have a multiple of so many elements; the elements beyond the tensor
    are zeros.
    alignment: of slots on the device, in bytes. rigid: its memory cannot be released slot by slot.
    floor_nbytes: the largest floor that any model may have with its default tiles. run_ahead: the most operations that the host
    may be ahead of the device.
    """

    ladder: tuple[int, ...]
    tall: int = 1
    pitch: int = 1
    alignment: int = ALIGNMENT
    rigid: bool = False
    floor_nbytes: int = 512 << 10
    run_ahead: int = 96


#: For CPU kernels: each tile is the work of one thread. Larger edges than the first do not pay (bench/bench_tiles.py).
FINE = Grain((512, 384, 320, 256, 192, 160, 128, 96, 64, 48, 32, 16))
#: For GPU kernels, which need enough rows for the whole GPU at once, and few launches.
#: alignment: that of cudaMalloc, because libraries that choose a kernel by alignment must choose the same one in every slot.
#: pitch: cuBLAS takes slow kernels unless bf16 rows are a multiple of 16 bytes apart, and a multiple of 8 elements long.
#: floor_nbytes: the smallest GPU that this is for has 16 GiB. A floor may take 3 of them as layers/tiling.py estimates it, in
#: truth 1 to 2. So a model that fits gets tiles of the largest edge, and as few operations as possible.
#: run_ahead: an operation takes from 3 to some 100 us on the GPU, and 20 to 50 us to issue. While long operations run, the host
#: gets ahead, and that lead hides its pauses (5 ms when another thread has the interpreter). By these rates, steps of gpt2 to
#: gpt2-xl with eight such pauses take up to 11% longer with 96 and 3% with 192; with 384 they take as long as without a bound.
COARSE = Grain(
    (4096, 3072, 2048, 1536, 1024, 768, *FINE.ladder), tall=4, pitch=8, alignment=256, rigid=True, floor_nbytes=3 << 30,
    run_ahead=384,
)  # fmt: skip


def grain_of(device: str) -> Grain:
    """Return the grain of the device that `device` names; the device need not exist."""
    return COARSE if device.partition(":")[0] == "cuda" else FINE
