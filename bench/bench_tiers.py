"""What does a disk below RAM cost, when the states of a model do not fit?

    python bench/bench_tiers.py [--folder DIR] [--rounds 3] [--batch 2] [--length 1024] [--layers 20] [--width 1024]
                                [--vocab 16384] [--share 0.4] [--disk 0.6] [--write]

On `cpu`, `host_memory` at 40% of states of 3.2 GB. The disk is throttled: it reads and writes MOVED_OF_STATES, a constant, in
0.6 of a step that stays in RAM. So its rate follows the speed of the machine, and neither a step that moves more bytes nor
another --share gets a faster disk. For a step that moves exactly these bytes, a perfect overlap hides the disk, and no overlap
gives 0.62, which is 1 / 1.6. The row "the disk alone" counts the bytes that the step really moves. No overlap hides the CPU
time that the operating system spends on these bytes, on the cores that compute: it lowers the speed in RAM to the ceiling.
Targets: with prefetch 2 at least 0.97 of the ceiling, equal bits, resident set below host_memory plus 300 MiB, the kernel's own
count of bytes read at least 0.9 of ours (so no page cache helps), bytes read at most 1.25 of the least possible under that cap
(optimum.py). Each side is a process of its own, so that each resident set is its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import CORES, Table, arguments, batch, program_of, publish, show, step_flops, target, tile_gemm_gflops, trainer_on
from optimum import least_bytes, most_at

from asynctile import Engine
from asynctile.layers import GPT2Config
from asynctile.storage.container import aligned_array
from asynctile.storage.faults import Faults
from asynctile.storage.spill import SpillTier

MIB = 1 << 20
#: Bytes that a step reads and writes under 40% of the states, relative to the states, as commit 7b20a99 recorded them. For the
#: states here they set a disk of 649 MB/s where a step in RAM takes 12.32 s.
MOVED_OF_STATES = 4_798_283_776 / 3_237_027_840


def config_of(options: Any) -> GPT2Config:
    return GPT2Config(n_layer=options.layers, n_head=options.width // 64, n_embd=options.width,
                      block_size=options.length, vocab_size=options.vocab)  # fmt: skip


async def serve(options: Any) -> None:
    """Run one side: an engine that makes a step for each line on standard input, and answers with a line of JSON."""
    config, process = config_of(options), psutil.Process()
    tokens, targets = batch(config, options.batch, options.length)
    placement: dict[str, Any] = {}
    if options.side != "in RAM":
        placement = {"host_memory": int(options.share * config.states_nbytes), "spill": options.folder,
                     "wrap_spill": Faults(rate=options.rate or None).wrap,
                     "prefetch": 0 if options.side == "prefetch 0" else 2}  # fmt: skip
    async with Engine("cpu", **placement) as engine:
        trainer = await trainer_on(engine, config)
        for line in iter(sys.stdin.readline, ""):
            answer: dict[str, Any] = {}
            if line == "step\n":
                before = process.io_counters().read_bytes
                report = await trainer.step(tokens, targets)
                answer = report.as_dict() | {"kernel_read_bytes": process.io_counters().read_bytes - before}
            elif line == "end\n":
                digest = hashlib.sha256()
                for name, value in (await trainer.model.state_dict()).items():
                    digest.update(name.encode() + value.tobytes())
                answer = {"digest": digest.hexdigest()}
                if options.side == "prefetch 2":
                    program = await program_of(trainer, options.batch, options.length)
                    answer["least"] = least_bytes(program, placement["host_memory"]).uploaded_nbytes
            answer["rss"] = peak_rss()
            print(json.dumps(answer), flush=True)


def peak_rss() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


class Side:
    """A process that runs `serve`."""

    def __init__(self, name: str, rate: int, given: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, __file__, *given, "--side", name, "--rate", str(rate)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.reports: list[dict[str, Any]] = []

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def step(self) -> dict[str, Any]:
        report = self.ask("step")
        self.reports.append(report)
        return report

    def median(self, key: str, skip: int) -> float:
        return statistics.median(report[key] for report in self.reports[skip:])

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Transfers:
    """Transfers of the spill tier, one tile of 1 MiB after another, checksums included.

    rate: bytes a second. system_s: CPU seconds of the operating system per byte.
    """

    rate: float
    system_s: float


def measure_disk(folder: str, passes: int = 4) -> tuple[Transfers, Transfers]:
    """Measure writing and reading."""
    tier = SpillTier(folder, 256 * MIB)
    tier.open()
    blocks = [tier.take(MIB, "t") for _ in range(256)]
    view = aligned_array(MIB)
    view[:] = np.random.default_rng(1).integers(0, 256, MIB, np.uint8)
    nbytes = passes * len(blocks) * MIB

    def moved(move: Callable[..., object]) -> Transfers:
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_stime
        for block in blocks * passes:
            move(block, view, "t")
        used = resource.getrusage(resource.RUSAGE_SELF).ru_stime - used
        return Transfers(nbytes / (time.perf_counter() - start), used / nbytes)

    moved(tier.write)  # creates the file
    found = moved(tier.write), moved(tier.read)
    tier.close()
    return found


def main(options: Any) -> None:
    config = config_of(options)
    cap = int(options.share * config.states_nbytes)
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
        given = [f"--{name}={getattr(options, name)}" for name in ("batch", "length", "layers", "width", "vocab", "share")]
        given.append(f"--folder={folder}")
        disk = measure_disk(folder)
        ram = Side("in RAM", 0, given)
        ram.step()
        in_ram_s = min(ram.step()["step_s"] for _ in range(2))
        rate = int(MOVED_OF_STATES * config.states_nbytes / (options.disk * in_ram_s))
        sides = [ram]
        for name in ("prefetch 2", "prefetch 0"):
            folder_of = tempfile.mkdtemp(dir=folder)
            sides.append(Side(name, rate, [*given[:-1], f"--folder={folder_of}"]))
            for _ in ram.reports[:3]:
                sides[-1].step()  # the same number of steps on all sides, so that bits can be compared
        for turn in range(options.rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                side.step()
            print(f"round {turn + 1} of {options.rounds}: "
                  + ", ".join(f"{side.name} {show(side.reports[-1]['step_s'])}" for side in sides),
                  file=sys.stderr, flush=True)  # fmt: skip
        ends = {side.name: side.ask("end") for side in sides}
        for side in sides:
            side.close()
    tables = report(config, options, cap, rate, disk, sides, ends)
    configuration = {
        "model": f"GPT-2, n_layer {config.n_layer}, n_embd {config.n_embd}, n_head {config.n_head}, vocab {config.vocab_size}, "
        f"B {options.batch}, T {options.length}, float32, recompute",
        "states": f"{config.states_nbytes / 1e9:.2f} GB; host_memory {cap / 1e9:.2f} GB ({options.share:.0%})",
        "disk": f"throttled to {rate / 1e6:,.0f} MB/s, reads and writes together; its own rate, one transfer at a time: "
        f"write {disk[0].rate / 1e6:,.0f}, read {disk[1].rate / 1e6:,.0f} MB/s",
        "the operating system's CPU time": ", ".join(
            f"{what} {one.system_s * 1e12:.0f} us a MB" for what, one in zip(("write", "read"), disk, strict=True)),
        "repeats": f"median of {options.rounds} steps, sides in turn, after 3 steps each",
    }
    publish("bench_tiers", __doc__, configuration, tables, write=options.write)


def report(
    config: GPT2Config,
    options: Any,
    cap: int,
    rate: int,
    disk: tuple[Transfers, Transfers],
    sides: list[Side],
    ends: dict[str, Any],
) -> list[Table]:
    """Return the tables. disk: the measured transfers of writing and reading."""
    speed = Table("speed", ("side", "s a step", "of in RAM", "of the ceiling", "stalled", "GFLOP/s", "target"))
    in_ram_s, ours = sides[0].median("step_s", 3), sides[1]
    read, written = ours.median("spill_read_bytes", 3), ours.median("spill_written_bytes", 3)
    system_s = written * disk[0].system_s + read * disk[1].system_s
    least_s = in_ram_s + system_s / CORES
    flops = step_flops(config, options.batch * options.length, options.length)
    for side in sides:
        seconds = side.median("step_s", 3)
        goal = target(least_s / seconds, 0.97) if side is ours else None
        of_ceiling = None if side is sides[0] else least_s / seconds
        stalled = side.median("stall_s", 3) / seconds
        speed.rows.append((side.name, seconds, in_ram_s / seconds, of_ceiling, stalled, flops / seconds / 1e9, goal))
    disk_s = (read + written) / rate
    ceiling = f"ceiling: in RAM, and {system_s:.2f} s of the operating system's on {CORES} cores"
    speed.rows.append((ceiling, least_s, in_ram_s / least_s, 1.0, None, None, None))
    speed.rows.append(("the disk alone", disk_s, disk_s / in_ram_s, None, None, None, None))
    bound = tile_gemm_gflops()
    speed.rows.append(("the GEMM rate of this machine", flops / bound / 1e9, None, None, None, bound, None))
    least, most = ends["prefetch 2"]["least"], most_at(options.share)
    moved = Table("bytes of a step, prefetch 2", ("what", "MB", "share", "target"))
    moved.rows += [
        ("read from the disk", read / 1e6, read / least, most and target(read / least, most, above=False)),
        ("the least possible under that cap", least / 1e6, 1.0, None),
        ("written to the disk", written / 1e6, None, None),
        ("read by the kernel's count, against ours", ours.median("kernel_read_bytes", 3) / 1e6,
         ours.median("kernel_read_bytes", 3) / read, target(ours.median("kernel_read_bytes", 3) / read, 0.9)),
    ]  # fmt: skip
    held = Table("held", ("what", "MiB", "target"))
    for side in sides[1:]:
        rss = max(found["rss"] for found in side.reports)
        goal = target((rss - cap) / MIB, 300, above=False) + " above host_memory"
        held.rows.append((f"resident set, {side.name}", rss / MIB, goal))
    held.rows.append(("host_memory", cap / MIB, None))
    same = len({end["digest"] for end in ends.values()}) == 1 and len({s.reports[-1]["loss"] for s in sides}) == 1
    held.rows.append(("weights and losses equal bit for bit on all sides", None, "yes" if same else "NO"))
    return [speed, moved, held]


if __name__ == "__main__":
    chosen = arguments(__doc__, folder="", rounds=3, batch=2, length=1024, layers=20, width=1024, vocab=16384, share=0.4,
                       disk=0.6, side="", rate=0)  # fmt: skip
    asyncio.run(serve(chosen)) if chosen.side else main(chosen)
