"""How much faster is a step on several devices of one engine?

    python bench/bench_devices.py [--rounds 5] [--steps 2] [--write]

The same batch, as N replicas, on one emulated device and on N. Two cores compute no faster for more devices. So kernels sleep,
in machine code, for the CPU time that each takes on one core (asleep.py), on one thread for each device. Everything else is
real: the schedule, the workers that play it, their mutex, copies and links. This shows how well the engine keeps devices busy.
It does not show how kernels on several devices disturb each other; two cores prove no more. devices_model.py has the model,
the cap, the links and the targets.

- speed: against one device in the same round, the median of rounds.
- by arithmetic: the speed of the same schedules if only sleeps and copies over links took time (asynctile/measure/virtual.py).
- computing, link busy: the part of a step in which a device computes, and in which the busiest way of a link to RAM is busy.
- MB passed: from device to device in a step.
- bytes as planned: whether workers have carried over each link, each way, the bytes that the plan of the step says.

The second table is for real kernels: a digest of losses and weights for each number of replicas and devices.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import threadpoolctl
from asleep import measured, sleep_exactly, sleeping
from common import Table, arguments, batch, commit, in_turn, publish, steps, target
from devices_model import BATCH, CAP, CONFIG, LINK_SHARE, PEERS, SHARE, TARGETS

from asynctile import Engine
from asynctile.device.workers import Siblings
from asynctile.execute.workers.places import OK
from asynctile.execute.workers.player import Player
from asynctile.execute.workers.tables import DOWNLOAD, PASS, UPLOAD
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.measure.calls import Call, call_of
from asynctile.measure.simulate import Traffic, simulate
from asynctile.measure.virtual import Timeline, timelines
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.schedule.rates import CORES, Rates
from asynctile.schedule.schedule import Kind, Schedule, Scheduled
from asynctile.share import runtime_of

LENGTH = CONFIG.block_size
#: Updates are on the device: RAM has no cores of its own here. Activations are recomputed, as under caps of every size.
UPDATE, RECOMPUTE = "device", True
#: Times that the rate of links is computed from the bytes of a plan, which depend on that rate a little.
SETTLED = 3
#: Steps with real kernels.
REAL_STEPS = 3
#: Bytes by device and way: over its link from RAM, to RAM, and from other devices.
Links = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Setting:
    """One comparison. rates: of one device and its link, by which moves are decided. computed_s: the sum of all kernels."""

    replicas: int
    rates: Rates
    computed_s: float

    @property
    def link_rate(self) -> int:
        return round(self.rates.up_per_s)

    @property
    def peer_rate(self) -> int:
        return PEERS * self.link_rate


def named(devices: int) -> str:
    return "emulated" if devices == 1 else f"emulated*{devices}"


def planned(replicas: int, devices: int, rates: Rates) -> tuple[Program, Traffic]:
    """Return a step's program and what it moves."""
    work = Work(batch_size=BATCH, seq_len=LENGTH, replicas=replicas, update=UPDATE, recompute=RECOMPUTE)
    machine = Machine(device=named(devices), device_memory=CAP, measured=rates)
    step = planned_step(CONFIG, work, machine)
    traffic = simulate(step.program, step.standing, demand=step.demand, device=machine.device, device_memory=CAP, rates=rates)
    return step.program, traffic


def setting(replicas: int, seconds: Mapping[Call, float]) -> Setting:
    """Return the comparison of one device with as many as there are replicas; see LINK_SHARE."""
    program, _ = planned(replicas, 1, CORES)
    computed_s = sum(seconds[call_of(operation)] for operation in program.operations())
    rates = replace(CORES, flops_per_s=sum(operation.flops for operation in program.operations()) / computed_s)
    for _ in range(SETTLED):
        _, traffic = planned(replicas, replicas, rates)
        rates = rates.limited(round(traffic.busiest_nbytes * replicas / LINK_SHARE / computed_s))
    return Setting(replicas, rates, computed_s)


def planned_links(schedule: Schedule) -> Links:
    """Return the bytes that a schedule carries over links. Results that are fetched come down, too."""
    ways = {Kind.UPLOAD: UPLOAD, Kind.DOWNLOAD: DOWNLOAD, Kind.FETCH: DOWNLOAD, Kind.PASS: PASS}
    found = Counter[tuple[int, int]]()
    for entry in schedule.entries:
        if entry.kind in ways:
            found[entry.device, ways[entry.kind]] += entry.nbytes
    return found


def carried_links(trainer: Trainer) -> Links:
    """Return the bytes that workers have carried over links in the last step."""
    player = runtime_of(trainer.model.engine).tiers.player
    assert isinstance(player, Player) and player.tables is not None
    tables, found = player.tables, Counter[tuple[int, int]]()
    moves = np.flatnonzero((tables.kinds >= UPLOAD) & (tables.kinds <= PASS) & (player.statuses == OK))
    for entry in moves.tolist():
        found[int(tables.devices[entry]), int(tables.kinds[entry])] += int(tables.words[tables.words_at[entry] + 2])
    return found


async def open_trainer(stack: AsyncExitStack, devices: int, chosen: Setting) -> Trainer:
    peer_rate = chosen.peer_rate if devices > 1 else None
    engine = await stack.enter_async_context(
        Engine(named(devices), device_memory=CAP, link_rate=chosen.link_rate, peer_rate=peer_rate, rates=chosen.rates))
    model = await GPT2.create(engine, CONFIG, seed=1)
    return Trainer(model, AdamW(lr=1e-4), replicas=chosen.replicas, recompute=RECOMPUTE, update=UPDATE)


async def measured_s(
    chosen: Setting, seconds: Mapping[Call, float], rounds: int, count: int
) -> dict[int, tuple[list[float], Links]]:
    """Return, by the number of devices, the seconds of a step in each round, and the bytes that a step carries."""
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    numbers = (1, chosen.replicas)
    with ExitStack() as patched:
        patched.enter_context(patch.object(Siblings, "threads", 1))
        patched.enter_context(sleeping(seconds))
        async with AsyncExitStack() as stack:
            trainers = {devices: await open_trainer(stack, devices, chosen) for devices in numbers}
            sides = {named(devices): steps(trainer, tokens, targets, count) for devices, trainer in trainers.items()}
            for trainer in trainers.values():
                for _ in range(2):  # by coroutines, then played
                    await trainer.step(tokens, targets)
            found = await in_turn(sides, rounds)
            last = [await trainer.step(tokens, targets) for trainer in trainers.values()]
            assert all(report.played for report in last), "kernels that sleep have machine code"
            carried = {devices: carried_links(trainer) for devices, trainer in trainers.items()}
    return {devices: (found[named(devices)], carried[devices]) for devices in numbers}


def by_arithmetic(schedule: Schedule, seconds: Mapping[Call, float], rate: float, peer_rate: float) -> Timeline:
    """Return a step in which only these calls and the copies over links take time.

    rate: bytes a second of each way of a link to RAM. peer_rate: from other devices.
    """

    def seconds_of(entry: Scheduled) -> float:
        if isinstance(entry.what, Operation):
            return seconds[call_of(entry.what)]
        if entry.kind is Kind.COPY:
            return 0.0
        return entry.nbytes / (peer_rate if entry.kind is Kind.PASS else rate)

    return timelines([schedule], [seconds_of])[0]


def rows_of(
    chosen: Setting, seconds: Mapping[Call, float], found: Mapping[int, tuple[Sequence[float], Links]]
) -> Iterator[Sequence[object]]:
    """Yield the rows of one comparison."""
    one_s, one_by_arithmetic_s = found[1][0], 0.0
    for devices, (step_s, carried) in found.items():
        _, traffic = planned(chosen.replicas, devices, chosen.rates)
        middle_s = statistics.median(step_s)
        busy = max(nbytes for (_, way), nbytes in carried.items() if way != PASS) / chosen.link_rate / middle_s
        passed = sum(nbytes for (_, way), nbytes in carried.items() if way == PASS) / 1e6
        row = (chosen.replicas, devices, 1e3 * middle_s, chosen.computed_s / devices / middle_s, busy, passed,
               carried == planned_links(traffic.schedule))  # fmt: skip
        by_arithmetic_s = by_arithmetic(traffic.schedule, seconds, chosen.link_rate, chosen.peer_rate).seconds
        if devices == 1:
            one_by_arithmetic_s = by_arithmetic_s
            yield (*row, None, None, None)
        else:
            speed = statistics.median(before / now for before, now in zip(one_s, step_s, strict=True))
            yield (*row, speed, target(speed, TARGETS[devices]), one_by_arithmetic_s / by_arithmetic_s)


async def digest(replicas: int, devices: int) -> str:
    """Return the digest of a few steps with real kernels, played from the second on."""
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    async with AsyncExitStack() as stack:
        trainer = await open_trainer(stack, devices, Setting(replicas, CORES, 0.0))
        reports = [await trainer.step(tokens, targets) for _ in range(REAL_STEPS)]
        found = hashlib.sha256(repr([(report.loss, report.grad_norm) for report in reports]).encode())
        for name, tensor in (await trainer.model.state_dict()).items():
            found.update(name.encode() + tensor.tobytes())
    return found.hexdigest()[:16]


async def digests() -> Table:
    table = Table(f"digests of losses and weights after {REAL_STEPS} steps with real kernels",
                  ("replicas", "one device", "two devices", "four devices", "equal"))  # fmt: skip
    for replicas in TARGETS:
        found = [await digest(replicas, devices) if devices <= replicas else None for devices in (1, 2, 4)]
        table.rows.append((replicas, *found, len({*found} - {None}) == 1))
    return table


async def main() -> None:
    options = arguments(__doc__, rounds=5, steps=2)
    sleep_exactly()
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        seconds = measured(operation for replicas in TARGETS for operation in planned(replicas, 1, CORES)[0].operations())
    speed = Table("speed", ("replicas", "devices", "ms a step", "computing", "link busy", "MB passed", "bytes as planned",
                            "speed", "target", "by arithmetic"))  # fmt: skip
    links = []
    for replicas in TARGETS:
        chosen = setting(replicas, seconds)
        links.append(f"{chosen.link_rate / 1e6:.0f} MB/s each way for {replicas} replicas")
        found = await measured_s(chosen, seconds, options.rounds, options.steps)
        speed.rows += rows_of(chosen, seconds, found)
    configuration = {
        "commit": commit(),
        "model": f"{CONFIG.summary}, B {BATCH}, T {LENGTH}, float32, device_memory {SHARE:.0%} of the states",
        "links": f"{', '.join(links)}: busy for {LINK_SHARE} of the time that N devices compute",
        "links between devices": f"{PEERS} times as fast",
        "kernels": f"asleep, {len(seconds)} kinds of calls; {chosen.computed_s:.2f} s for a step on one core",
        "repeats": f"median of {options.rounds} rounds of {options.steps} steps, in turn",
    }
    publish("bench_devices", __doc__, configuration, [speed, await digests()], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
