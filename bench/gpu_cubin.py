"""Machine code of the kernels for a GPU on another machine, so that a lease does not begin with compiling.

    python bench/gpu_cubin.py build FOLDER    compile for sm_90 with the package nvidia-cuda-nvrtc, into FOLDER/cubins
    python bench/gpu_cubin.py bring FOLDER    copy the code in FOLDER to where this machine keeps its kernels

The code is used if this machine's NVRTC has the version that compiled it; otherwise the kernels are compiled here.
bench/gpu_prepare.sh builds, bench/gpu.sh brings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from common import ROOT

sys.path.insert(0, str(ROOT))

from asynctile.device.nvrtc import FOLDER, SUFFIX, kept_in, machine_code
from asynctile.kernels.cpu import cache_folder
from asynctile.kernels.cuda import source

HOPPER = (9, 0)


def build(folder: Path) -> str:
    from tests.cuda import nvrtc

    code = machine_code(nvrtc, source(), HOPPER, folder)
    major, minor = nvrtc.getVersion()
    return f"{len(code) >> 10} KiB of kernels for sm_{HOPPER[0]}{HOPPER[1]}, by NVRTC {major}.{minor}"


def bring(folder: Path) -> str:
    here = cache_folder()
    if here is None:
        return "this machine has no writable folder for machine code, so the kernels are compiled at each start"
    found = sorted((folder / FOLDER).glob(f"*{SUFFIX}"))
    for path in found:
        kept_in(here).keep(path.stem, path.read_bytes())
    return f"copied kernels for {len(found)} kinds of GPU and compiler"


def main(arguments: Sequence[str]) -> int:
    ways = {"build": build, "bring": bring}
    if len(arguments) != 2 or arguments[0] not in ways:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    print(ways[arguments[0]](Path(arguments[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
