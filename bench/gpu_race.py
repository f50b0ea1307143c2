"""Do threads of a block race for shared memory in any kernel? compute-sanitizer's racecheck, on a small call of each.

    python bench/gpu_race.py [--inside] [--write]

Products of libraries are left out, and attention is asynctile's own. `--inside` is the program that is watched, without whom
watches it. What bench/gpu.sh stops keeps the kernels by then; where there is no compute-sanitizer, the row says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from gpu_common import options_of
from gpu_once import every_call, run_once
from gpu_record import Section
from gpu_rows import RACE, engine_name

from asynctile.device import open_device
from asynctile.kernels.cuda import source
from tests.gpu.machine import HardMachine

#: Products go to cuBLAS; these bring a row or a matrix first, by kernels that elementwise verbs have too.
BY_LIBRARIES = ("gemm", "gemm_bias", "gemm_onto", "gemm_bias_onto")
#: What racecheck calls it, and its status for a program with one.
HAZARD, RACED = ("Error: Race", "Warning: Race", "RACECHECK SUMMARY"), 9
FOUND = "gpu_race: "


def inside(options: Namespace) -> int:
    """Every kernel, told one by one as it begins."""
    device: Any = open_device(engine_name(options), precision="fp32")
    device.driver.open_gemm = lambda stream, *, tf32: None  # no library, whose kernels would be watched too
    device.start()
    try:
        device.driver.load(source())
        machine = HardMachine(device)
        for dtype in ("f32", "bf16"):
            for verb, call in every_call(dtype).items():
                if verb not in BY_LIBRARIES:
                    print(f"{FOUND}{verb} in {dtype}: {run_once(machine, verb, call) or 'right'}", flush=True)
    finally:
        device.close(10.0)
    return 0


def sanitizer() -> str | None:
    """Where compute-sanitizer is."""
    beside = sorted(str(path) for path in Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or (beside[-1] if beside else None)


def main(options: Namespace) -> int:
    section = Section("race", __doc__, options)
    table, hazards = section.table("races", "what", "note"), 0
    watcher = sanitizer() if options.device != "soft" else None
    watched = [sys.executable, __file__, "--inside", *(["--rehearse"] if options.device == "soft" else [])]
    command = [watcher, "--tool", "racecheck", "--error-exitcode", str(RACED), *watched] if watcher else watched
    section.add(table, "watched by", watcher or "nobody: there is no compute-sanitizer here")
    done = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(FOUND):
                done += 1
                if not line.rstrip().endswith(": right"):
                    section.add(table, "wrong", line.removeprefix(FOUND).strip())
                section.headline("kernels that were watched" if watcher else "kernels that ran, unwatched", done)
            elif any(word in line for word in HAZARD):
                hazards += "SUMMARY" not in line
                section.add(table, "racecheck", line.strip()[:300])
                section.headline("races", hazards, 0, above=False)
            else:
                print(line, end="", flush=True)
    section.add(table, "its status", process.returncode)
    section.end()
    return process.returncode


if __name__ == "__main__":
    found = options_of(__doc__, RACE)
    sys.exit(inside(found) if found.inside else main(found))
