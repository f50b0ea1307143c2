"""Where does a training scale over nodes of eight A100, and where not? By the virtual clock: nothing runs.

    python bench/bench_scaling.py [--nodes 1 2 4 8 16 32 64] [--write]

Weak scaling: eight sequences of 1,024 tokens and one replica for each GPU, in tf32. All nodes are planned, and one clock runs
over all of them. A transfer takes the rate of the network, for one tile at a time each way of a node, and nothing else: no
latency, no contention within the network. Bytes are those of the node that sends most, and of the node that receives most.
"node 0 alone" is the time of node 0 if it never waited for another node: its own work, and what its network carries each way.

ZeRO's formulas (arXiv 1910.02054, section 7) count what each GPU sends: 2 values for each parameter with stage 2 and with plain
data parallelism, 3 with stage 3. The paper counts values in half precision; here they have 4 bytes, as those of tf32.
A flat ring of all GPUs crosses the border of a node once, so a node sends that volume, not eight times that volume.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from common import Table, arguments, commit, publish
from nntile_paper import LENGTH, model

from asynctile.collector import without_collections
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import traffic_of
from asynctile.layers.planned_step import planned_steps
from asynctile.measure.hardware import hardware
from asynctile.measure.virtual import Resource

GPUS, SEQUENCES, PRECISION, BYTES = 8, 8, "tf32", 4
GBITS = (25, 200)
#: Values that a GPU sends for each parameter.
ZERO = {"ZeRO-2, data parallel": 2, "ZeRO-3": 3}


class Time(NamedTuple):
    """The seconds of a step at one rate of the network. alone: of node 0, if it never waited for others.

    busy: in which a GPU computes. network: in which the busiest way of a node carries tiles.
    """

    seconds: float
    alone: float
    busy: float
    network: float


@dataclass(frozen=True)
class Step:
    """A step on some nodes. sent, received: the most bytes of a node. times: by Gbit/s. made_s: seconds that planning took."""

    nodes: int
    sent: int
    received: int
    times: dict[int, Time]
    made_s: float


def step_of(config: GPT2Config, nodes: int) -> Step:
    """Plan a step on all nodes once, and time the same schedules at each rate of the network."""
    began, there, times = time.process_time(), hardware("a100-node"), {}
    machine = Machine(
        device=f"cuda:0-{GPUS - 1}", precision=PRECISION, nodes=nodes, device_memory=there.memory, host_memory=there.ram,
        measured=there.rates(PRECISION), passed_per_s=there.passed_per_s, verbs=there.verbs, own_cores=there.count,
    )  # fmt: skip
    work = Work(batch_size=SEQUENCES * GPUS * nodes, seq_len=LENGTH, replicas=GPUS * nodes, update="device")
    with without_collections():
        steps = planned_steps(config, work, machine, range(nodes))
        plans = [traffic_of(step, machine) for step in steps]
        made_s = time.process_time() - began
        for gbits in GBITS:
            costs = replace(machine, sent_per_s=gbits * 1e9 / 8).costs(steps[0].parameters.tiling.tile)
            clocks = costs.timelines([plan.schedule for plan in plans])
            spent = {resource: max(clock.shares().get(resource, 0.0) for clock in clocks) * clocks[0].seconds
                     for resource in (Resource.COMPUTE, Resource.SENT, Resource.RECEIVED)}  # fmt: skip
            times[gbits] = Time(clocks[0].seconds, costs.timeline(plans[0].schedule).seconds, spent[Resource.COMPUTE],
                                max(spent[Resource.SENT], spent[Resource.RECEIVED]))  # fmt: skip
    sent, received = max(plan.sent_nbytes for plan in plans), max(plan.received_nbytes for plan in plans)
    return Step(nodes, sent, received, times, made_s)


def rows(config: GPT2Config, steps: Sequence[Step]) -> Iterator[list[object]]:
    """Yield the rows of one model. The first step is that of one node."""
    zero = [values * BYTES * config.parameter_count for values in ZERO.values()]
    for gbits in GBITS:
        one = steps[0].times[gbits].seconds
        for step in steps:
            found, of_zero = step.times[gbits], [volume * (step.nodes > 1) for volume in zero]
            tokens = SEQUENCES * GPUS * step.nodes * LENGTH
            yield [step.nodes, gbits, found.seconds, found.alone, found.busy, found.network, tokens / found.seconds,
                   step.nodes * one / found.seconds, step.nodes * one / found.alone, step.sent / 1e9, step.received / 1e9,
                   *(volume / 1e9 for volume in of_zero), *(volume / (gbits * 1e9 / 8) for volume in of_zero),
                   step.made_s]  # fmt: skip


def main() -> None:
    options = arguments(__doc__, nodes=(1, 2, 4, 8, 16, 32, 64), layers=4, width=14336)
    columns = ("nodes", "Gbit/s", "s a step", "node 0 alone: s", "s a GPU computes", "s of network", "tokens/s",
               "times one node", "node 0 alone: times one node", "GB sent", "GB received",
               *(f"{name}: GB sent" for name in ZERO), *(f"{name}: s of network" for name in ZERO), "s to plan")  # fmt: skip
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
