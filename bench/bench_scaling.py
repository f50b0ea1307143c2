"""Where does a training scale over nodes of eight A100, and where not? By the virtual clock: nothing runs.

    python bench/bench_scaling.py [--nodes 1 2 4 8] [--write]

Weak scaling: eight sequences of 1,024 tokens and one replica for each GPU, in tf32. Bytes are those that node 0 sends
in a step. The clock counts what node 0 computes and what its network carries each way, but no wait for another node. So real
steps are likely to take longer.

ZeRO's formulas (arXiv 1910.02054, section 7) count what each GPU sends: 2 values for each parameter with stage 2 and with plain
data parallelism, 3 with stage 3. The paper counts values in half precision; here they have 4 bytes, as those of tf32.
A flat ring of all GPUs crosses the border of a node once, so a node sends that volume, not eight times that volume.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from common import Table, arguments, commit, publish
from nntile_paper import LENGTH, model

from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step
from asynctile.measure.hardware import hardware
from asynctile.measure.virtual import Timeline
from asynctile.schedule.schedule import Schedule

GPUS, SEQUENCES, PRECISION, BYTES = 8, 8, "tf32", 4
GBITS = (25, 200)
#: Values that a GPU sends for each parameter.
ZERO = {"ZeRO-2, data parallel": 2, "ZeRO-3": 3}


@dataclass(frozen=True)
class Step:
    """A step on some nodes. sent, received: bytes of node 0. seconds, busy: by Gbit/s, of the step and of a GPU's compute.

    made_s: the seconds that its plan took.
    """

    nodes: int
    sent: int
    received: int
    seconds: dict[int, float]
    busy: float
    made_s: float


def step_of(config: GPT2Config, nodes: int) -> Step:
    """Plan a step once, and time the same schedule at each rate of the network."""
    began, there, kept = time.process_time(), hardware("a100-node"), list[Schedule]()
    machine = Machine(
        device=f"cuda:0-{GPUS - 1}", precision=PRECISION, nodes=nodes, device_memory=there.memory, host_memory=there.ram,
        measured=there.rates(PRECISION), passed_per_s=there.passed_per_s, verbs=there.verbs, own_cores=there.count,
    )  # fmt: skip
    work = Work(batch_size=SEQUENCES * GPUS * nodes, seq_len=LENGTH, replicas=GPUS * nodes, update="device")

    def keep(schedule: Schedule, clock: Timeline) -> None:
        kept.append(schedule)

    plan = plan_step(config, work, machine, keep=keep)
    seconds, busy = {}, 0.0
    for gbits in GBITS:
        clock = replace(machine, sent_per_s=gbits * 1e9 / 8).costs(plan.tile).timeline(kept[0])
        seconds[gbits], busy = clock.seconds, clock.shares()["compute"] * clock.seconds
    return Step(nodes, plan.sent_bytes, plan.received_bytes, seconds, busy, time.process_time() - began)


def rows(config: GPT2Config, steps: Sequence[Step]) -> Iterator[list[object]]:
    """Yield the rows of one model. The first step is that of one node."""
    zero = [values * BYTES * config.parameter_count for values in ZERO.values()]
    for gbits in GBITS:
        alone = steps[0].seconds[gbits]
        for step in steps:
            seconds, of_zero = step.seconds[gbits], [volume * (step.nodes > 1) for volume in zero]
            tokens = SEQUENCES * GPUS * step.nodes * LENGTH
            yield [step.nodes, gbits, seconds, step.busy, tokens / seconds, step.nodes * alone / seconds, step.sent / 1e9,
                   step.received / 1e9, *(volume / 1e9 for volume in of_zero),
                   *(volume / (gbits * 1e9 / 8) for volume in of_zero), step.made_s]  # fmt: skip


def main() -> None:
    options = arguments(__doc__, nodes=(1, 2, 4, 8), layers=4, width=14336)
    columns = ("nodes", "Gbit/s", "s a step", "s a GPU computes", "tokens/s", "times one node",
               "GB sent", "GB received", *(f"{name}: GB sent" for name in ZERO), *(f"{name}: s of network" for name in ZERO),
               "s to plan")  # fmt: skip
    tables = []
    for config in (GPT2Config.named("gpt2-xl"), model(options.layers, options.width)):
        steps = []
        for nodes in options.nodes:
            steps.append(step_of(config, nodes))
            print(config.summary, steps[-1], flush=True)
        title = f"{config.summary}: {config.parameter_count / 1e9:.2f} B parameters"
        tables.append(Table(title, columns, list(rows(config, steps))))
    configuration = {
        "commit": commit(),
        "batch": f"{SEQUENCES} sequences of {LENGTH} tokens and a replica for each GPU, {PRECISION}",
        "nodes": f"{GPUS} A100 of 80 GB, the rates of a100-node",
    }
    publish("bench_scaling", __doc__, configuration, tables, write=options.write)


if __name__ == "__main__":
    main()
