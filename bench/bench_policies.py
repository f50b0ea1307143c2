"""How fast would eight A100 train as planned, under LRU, under StarPU's dmdasd, and layer by layer? Simulated: nothing ran.

    python bench/bench_policies.py [--write]

The same operations of the same steps, by the virtual clock, on the machine a100-node (900 GB of RAM for tiles). The models are
those of the NNTile paper and deeper ones (nntile_paper.py), in TF32. TFLOP/s count three times the products of forward, as the
paper does; work that is done twice does not count. More tables have the paper's experiments with tiles and with little memory,
and every assumption. Machine and models were committed before the first comparison, and none is fitted. Rivals have memory
without addresses, and decisions that take no time (policies/). bench_largest.py asks for the largest models.

Targets: planned within 5% from 4 to 32 layers; dmdasd falls from 4 to 8 layers at 10.6 B as NNTile did there, within 15%.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from common import Table, arguments, commit, publish, show, target
from nntile_paper import BATCH, FSDP, HEAD, LENGTH, MODELS, NNTILE, RAM, VOCABULARY, model
from simulated import GREEDY, PLANNED, POLICIES, Setting, Simulated, Step, with_memory

from asynctile.measure.hardware import hardware
from asynctile.measure.virtual import Resource
from asynctile.schedule.schedule import Kind

MACHINE = "a100-node"
#: Tiles are 8,192 elements wide, twice the default for GPUs, so that programs have 10,000 to 40,000 operations.
TILE = 8192
#: The model of the experiments with tiles and memory, as (layers, width): one of the paper's, 5.3 B parameters.
STRESSED = (8, 7168)
TILES = (1792, 3584, 7168)
#: Caps of each GPU in GB, for the tile in the middle.
CAPS = (8, 10, 15, 20, 40, 80)
#: The cap under which the course of a step is shown, and the number of its parts.
SHOWN, PARTS = 10, 24

ASSUMPTIONS = [
    ("products in TF32", "125 TFLOP/s a GPU", "0.8 of NVIDIA's 156 TFLOP/s; the machine file says so"),
    ("memory of a GPU", "79.25 GiB at 1.63 TB/s", "0.8 of NVIDIA's 2.039 TB/s"),
    ("a kernel", "at least 3 us", "assumed, as in a CUDA graph"),
    ("link to RAM", "25 GB/s each way, for each GPU",
     "PCIe 4 x16; here GPUs share no switch and no bandwidth of RAM, in a real node they do: favours who moves more"),
    ("links between GPUs", "240 GB/s into each GPU", "0.8 of NVLink 3; nothing is shared"),
    ("updates in RAM", "200 GB/s", "assumed: half of 16 channels of DDR4-3200"),
    ("vocabulary, positions", f"{VOCABULARY:,} and {LENGTH:,}",
     "their sum follows from the axes of the paper's figures; 1,024 is the default of its scripts"),
    ("heads", f"of {HEAD} elements", "assumed"),
    ("batch", f"{BATCH} sequences, 8 a GPU", "assumed: no source gives one"),
    ("replicas", "one for each GPU", "ours; NNTile has none, and its tasks add into one gradient"),
    ("recomputation, passes, place of updates", "as the plan chooses, for all policies alike; layer by layer updates in RAM",
     "NNTile computes nothing twice"),
    ("tiles", f"{TILE:,} wide", "NNTile's are unknown"),
    ("dmdasd", "StarPU's rule, alpha = beta = 1, two operations ahead, LRU",
     "its sources; deciding, submitting and allocating cost nothing here: favours it"),
    ("rivals' memory", "bytes without addresses", "favours them"),
]  # fmt: skip


def main() -> None:
    options = arguments(__doc__)
    gc.disable()
    there = hardware(MACHINE)
    speeds = Table("TFLOP/s by policy, simulated, and what the paper measured",
                   ("layers", "width", "billions", "RAM GB", "fits in RAM", *POLICIES, "NNTile", "FSDP, TF32"))  # fmt: skip
    ways = (f"{policy}, {way}" for policy in POLICIES for way in ("RAM", "GPUs"))
    links = Table("GB over all links to RAM, and between GPUs, simulated", ("layers", "billions", *ways))
    for layers, widths in MODELS.items():
        for width in widths:
            step = Step(Setting(model(layers, width), there, BATCH, tile=TILE))
            runs = {policy: step.under(policy) for policy in POLICIES}
            billions = step.setting.config.parameter_count / 1e9
            measured = (paper.get(layers, {}).get(width) for paper in (NNTILE, FSDP))
            speeds.rows.append((layers, width, billions, step.ram_gb, step.ram_gb <= RAM / 1e9, *_tflops(runs), *measured))
            links.rows.append((layers, billions, *_moved(runs)))
            print(" ".join(map(show, speeds.rows[-1])), flush=True)
    tables = [held(speeds), speeds, links]
    tables += [*_stress(), Table("assumptions", ("what", "value", "why, and whom it favours"), ASSUMPTIONS)]
    configuration = {"commit": commit(), "machine file": there.title, "batch": f"{BATCH} sequences of {LENGTH} tokens, TF32",
                     "nothing ran": "every figure but those under 'measured' is simulated"}  # fmt: skip
    publish("bench_policies", __doc__, configuration, tables, write=options.write)


def _tflops(runs: dict[str, Simulated | None]) -> Iterator[float | None]:
    """Yield TFLOP/s by policy; None where two layers do not fit on a GPU."""
    return (run.tflops if run else None for run in runs.values())


def _moved(runs: dict[str, Simulated | None]) -> Iterator[float | None]:
    for run in runs.values():
        yield run.moved(Kind.UPLOAD, Kind.DOWNLOAD) if run else None
        yield run.moved(Kind.PASS) if run else None


def held(speeds: Table) -> Table:
    """Return how each policy holds from 4 to 32 layers, by size, and how dmdasd falls beside NNTile."""
    table, found = Table("from 4 to 32 layers", ("what", "value", "target")), dict[tuple[int, int], dict[str, float | None]]()
    for layers, width, _, _, _, *rates in speeds.rows:
        found[layers, width] = dict(zip(POLICIES, rates, strict=False))
    for number, size in enumerate(("10.6 B", "23 B", "50 B")):
        for policy in POLICIES:
            speed = [found[layers, widths[number]][policy] for layers, widths in MODELS.items()]
            rates = [rate for rate in speed if rate is not None]
            if len(rates) == len(MODELS):
                fall = 1 - min(rates) / max(rates)
                table.rows.append((f"{policy}, about {size}: slowest depth below the fastest", fall,
                                   target(fall, 0.05, above=False) if policy == PLANNED else None))  # fmt: skip
    (four, eight), measured = (14336, 10240), NNTILE
    theirs = measured[8][eight] / measured[4][four]
    ours = (found[8, eight][GREEDY] or 0.0) / (found[4, four][GREEDY] or 1.0)
    table.rows += [("NNTile at 10.6 B, measured: 8 layers over 4", theirs, None),
                   ("dmdasd at 10.6 B, simulated: 8 layers over 4", ours,
                    target(abs(ours / theirs - 1), 0.15, above=False))]  # fmt: skip
    return table


def _stress() -> list[Table]:
    """Return the experiments with tiles and memory, and the course of a step."""
    layers, width = STRESSED
    base = Setting(model(layers, width), hardware(MACHINE), BATCH, tile=TILES[1])
    tiles = Table(f"TFLOP/s by tile, {layers} layers of width {width:,}, simulated", ("tile", "operations", *POLICIES))
    for tile in TILES:
        step = Step(base._replace(tile=tile))
        tiles.rows.append((tile, step.operations, *_tflops({policy: step.under(policy) for policy in POLICIES})))
        print(" ".join(map(show, tiles.rows[-1])), flush=True)
    memory = Table(f"TFLOP/s by the memory of each GPU, tiles of {TILES[1]:,}, simulated",
                   ("GB of each GPU", *POLICIES, *(f"{policy}, GB over links to RAM" for policy in POLICIES)))  # fmt: skip
    course = Table(f"share of GPUs that compute, by part of a step, {SHOWN} GB a GPU, simulated", ("part", *POLICIES))
    for cap in CAPS:
        step = Step(with_memory(base, cap * 1_000_000_000))
        runs = {policy: step.under(policy) for policy in POLICIES}
        memory.rows.append((cap, *_tflops(runs), *list(_moved(runs))[::2]))
        print(" ".join(map(show, memory.rows[-1])), flush=True)
        if cap == SHOWN:
            course.rows += _course(runs, base.hardware.count)
    return [tiles, memory, course]


def _course(runs: dict[str, Simulated | None], devices: int) -> Iterator[Sequence[Any]]:
    """Yield the rows of the course of a step: every policy's own step in PARTS parts."""
    busy = {policy: computing(run, devices) if run else [None] * PARTS for policy, run in runs.items()}
    yield from ((part + 1, *(busy[policy][part] for policy in POLICIES)) for part in range(PARTS))


def computing(run: Simulated, devices: int) -> list[float]:
    """Return, for each part of a step, the share of devices that compute."""
    clock, shares = run.clock, [0.0] * PARTS
    length = clock.seconds / PARTS
    for begin, end, unit in zip(clock.begins, clock.ends, clock.units, strict=True):
        if unit.resource is Resource.COMPUTE:
            for part in range(int(begin / length), min(PARTS, int(end / length) + 1)):
                shares[part] += max(0.0, min(end, (part + 1) * length) - max(begin, part * length))
    assert statistics.fmean(shares) > 0
    return [share / length / devices for share in shares]


if __name__ == "__main__":
    main()
