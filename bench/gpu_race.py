"""Do a block's threads race for shared memory in any kernel? compute-sanitizer's racecheck watches a small call of each.

    python bench/gpu_race.py [--inside] [--write]

Products of libraries are left out, and attention is asynctile's own. `--inside` runs the watched program without the watcher.
If bench/gpu.sh stops this part, the kernels watched so far are kept. Without compute-sanitizer a row says so.
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

#: These products go to cuBLAS. Their own kernels, which first write a row or a matrix, are those of elementwise operations too.
BY_LIBRARIES = ("gemm", "gemm_bias", "gemm_onto", "gemm_bias_onto")
#: racecheck's words for a race, and its exit status for a program with one.
HAZARD, RACED = ("Error: Race", "Warning: Race", "RACECHECK SUMMARY"), 9
FOUND = "gpu_race: "


def inside(options: Namespace) -> int:
    """Run every kernel, and print each result."""
    device: Any = open_device(engine_name(options), precision="fp32")
    device.driver.open_gemm = lambda stream, *, tf32: None  # racecheck would watch the library's kernels too
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
    """Return the path of compute-sanitizer, or None."""
    beside = sorted(str(path) for path in Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or (beside[-1] if beside else None)


def main(options: Namespace) -> int:
    section = Section("race", __doc__, options)
    table, hazards = section.table("races", "what", "note"), 0
    watcher = sanitizer() if options.device != "soft" else None
    watched = [sys.executable, __file__, "--inside", *(["--rehearse"] if options.device == "soft" else [])]
    command = [watcher, "--tool", "racecheck", "--error-exitcode", str(RACED), *watched] if watcher else watched
    section.add(table, "watched by", watcher or "nobody: compute-sanitizer is not installed")
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
