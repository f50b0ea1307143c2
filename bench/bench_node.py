"""What does a step of 50 billion parameters on eight GPUs carry over each link and through RAM?

    python bench/bench_node.py [--layers 27] [--updates auto host device] [--write]

Bytes of one step from its plan; nothing runs. The model is about as large as the largest that NNTile trained on eight GPUs
(49.9 B parameters, arXiv 2504.13236). Its shape is chosen here: the width of GPT-3, and blocks for that many parameters. There
is one replica for each GPU, in bf16, under a cap of 80 GB each. Partial gradients go from GPU to GPU, and so do weights that
another GPU has.

P/D is a byte for each parameter, divided by the number of devices. Over each link, ZeRO-Infinity carries 6 P/D up and 2 down,
and FSDP2 with offload 8 up and 4 down; both pass weights on over links between devices. Wanted here: 4 each way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from common import Table, arguments, commit, publish

from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.layers.update_placement import updates_of
from asynctile.measure.simulate import simulate
from asynctile.program.operation import HOST
from asynctile.schedule.schedule import Kind

DEVICES = 8
CAP = 80_000_000_000
WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 12288, 96, 50257, 1024, 64
#: Bytes up and down over each link, in P/D.
OTHERS = {"ZeRO-Infinity": (6, 2), "FSDP2 with offload": (8, 4), "the aim": (4, 4)}
GB = 1e9


@dataclass(frozen=True)
class Carried:
    """The bytes of a step. up, down: of each link to RAM. received: by each device from others.

    updates_in_ram: the share of updates that run there.
    """

    up: list[int]
    down: list[int]
    received: list[int]
    updates_in_ram: float
    operations: int
    made_s: float


def carried(config: GPT2Config, update: str) -> Carried:
    began = time.process_time()
    machine = Machine(device=f"cuda:0-{DEVICES - 1}", device_memory=CAP, precision="bf16")
    work = Work(batch_size=BATCH, seq_len=LENGTH, replicas=DEVICES, update=update)
    step = planned_step(config, work, machine)
    traffic = simulate(step.program, step.standing, demand=step.demand, device=machine.device, grain=machine.grain,
                       device_memory=CAP, rates=machine.rates)  # fmt: skip
    found = Counter[tuple[Kind, int]]()
    for entry in traffic.schedule.entries:
        found[entry.kind, entry.device] += entry.nbytes
    ways = ([found[kind, device] for device in range(DEVICES)] for kind in (Kind.UPLOAD, Kind.DOWNLOAD, Kind.PASS))
    updates = updates_of(step.program)
    in_ram = sum(operation.device == HOST for operation in updates) / len(updates)
    return Carried(*ways, in_ram, sum(1 for _ in step.program.operations()), time.process_time() - began)


def row(name: str, share: float, up: float, down: float, in_ram: float) -> list[object]:
    """Return the first cells of a row. share: P/D. up, down: bytes over the busiest link. in_ram: through RAM."""
    return [name, up / GB, up / share, down / GB, down / share, in_ram / 1e12]


def main() -> None:
    options = arguments(__doc__, layers=27, updates=("auto", "host", "device"))
    config = GPT2Config(n_layer=options.layers, n_head=HEADS, n_embd=WIDTH, block_size=LENGTH, vocab_size=VOCABULARY)
    share = config.parameter_count / DEVICES
    rows = list[Sequence[object]]()
    table = Table("bytes of a step over the busiest link, and through RAM",
                  ("who", "up GB", "up P/D", "down GB", "down P/D", "through RAM TB", "least busy link, up P/D",
                   "from other devices P/D", "updates in RAM", "operations", "s to plan"), rows)  # fmt: skip
    for update in options.updates:
        found = carried(config, update)
        name = f"asynctile, update={update}"
        in_ram = sum(found.up) + sum(found.down)
        rows.append([*row(name, share, max(found.up), max(found.down), in_ram), min(found.up) / share,
                     max(found.received) / share, found.updates_in_ram, found.operations, found.made_s])  # fmt: skip
        print(rows[-1], flush=True)
    for name, (up, down) in OTHERS.items():
        rows.append([*row(name, share, up * share, down * share, DEVICES * (up + down) * share), *[None] * 5])
    configuration = {
        "commit": commit(),
        "model": f"{config.summary}, {config.parameter_count / 1e9:.1f} B parameters, states of "
                 f"{config.states_nbytes / GB:.0f} GB and copies in bf16",
        "batch": f"B {BATCH}, T {LENGTH}, {DEVICES} replicas, bf16",
        "devices": f"{DEVICES}, each with a cap of {CAP / GB:.0f} GB",
    }  # fmt: skip
    publish("bench_node", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    main()
