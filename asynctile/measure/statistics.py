"""Statistics of a share, as a frozen snapshot: what it holds, has moved and waits for.

Nothing is reported from here; events are asynctile/events.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from asynctile.device.base import name_of
from asynctile.launch.assembly import Assembly
from asynctile.schedule.turns import Party


@dataclass(slots=True)
class Counters:
    """Counts of what was done on a share, made on the device's loop and never reset. The fields are those of Statistics."""

    steps: int = 0
    skipped_steps: int = 0
    step_tokens: int = 0
    step_s: float = 0.0
    requests: int = 0
    request_tokens: int = 0
    request_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Work behind the loop at this moment: pieces that wait, and pieces that run.

    On a GPU a piece counts as running once its driver has it.
    name: of the stream, such as "compute"; "player" for steps that are played.
    """

    name: str
    waiting: int
    running: int


class StepTraffic(NamedTuple):
    """The fields of Statistics by which a step is reported.

    They are read twice a step; a whole Statistics takes 20 us.
    """

    stall_s: float
    uploaded_bytes: int
    downloaded_bytes: int
    passed_bytes: int
    sent_bytes: int
    received_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    device_peak_bytes: int
    host_peak_bytes: int
    spill_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a share. Sizes are in bytes; counts begin with the share; a cap is None where there is none.

    On cpu, RAM is the device, and device_* and uploaded_bytes are 0. On several devices, sizes of device memory are those of
    one device, the one that holds most; operations and moved bytes are sums. Memory that an engine has lent to a share
    counts there, and no more in the engine's caps; in the spill file it counts as used. A played step counts in operations
    and bytes when it ends.

    uploaded_bytes, downloaded_bytes: between RAM and devices. passed_bytes: from one device to another. sent_bytes,
        received_bytes: tiles to and from other nodes.
    share: its name, "engine" for the engine's own.
    spill_retries: transfers that succeeded after being repeated.
    stall_s: seconds in which operations waited for copies and nothing else ran, for the device as a whole; the mean of
        several devices. On a GPU it counts from `Engine.start_trace` and is nan before: measuring takes time there, and
        cannot be done in replayed steps.
    steps: training steps that updated the weights.
    skipped_steps: steps that updated nothing because a loss or gradient was not finite.
    step_tokens, step_s: targets that count, and seconds, of both kinds of steps.
    requests, request_s: requests for text that are over, however they ended, and their seconds.
    request_tokens: tokens written for them.
    waiting_jobs: jobs that wait until another job of the share is over.
    waited_s: seconds that jobs have waited for things that other jobs hold (the share, a model, lent RAM), over the
        waits that have ended.
    turn_s: seconds in which the share had a job and the turn.
    turn_waited_s: seconds in which it had a job but not the turn.
    queues: streams of the devices as a whole, and the player of this share.
    """

    device: str
    device_memory_bytes: int | None
    device_used_bytes: int
    device_peak_bytes: int
    host_memory_bytes: int | None
    host_used_bytes: int
    host_peak_bytes: int
    spill_limit_bytes: int | None
    spill_used_bytes: int
    spill_peak_bytes: int
    uploaded_bytes: int
    downloaded_bytes: int
    passed_bytes: int
    sent_bytes: int
    received_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    spill_retries: int
    operations: int
    stall_s: float
    share: str = "engine"
    steps: int = 0
    skipped_steps: int = 0
    step_tokens: int = 0
    step_s: float = 0.0
    requests: int = 0
    request_tokens: int = 0
    request_s: float = 0.0
    waiting_jobs: int = 0
    waited_s: float = 0.0
    turn_s: float = 0.0
    turn_waited_s: float = 0.0
    queues: tuple[Queue, ...] = ()


def traffic(assembly: Assembly) -> StepTraffic:
    """Return the share's moved bytes and stalled seconds until now, and its peaks. Safe from any thread."""
    tiers = assembly.tiers
    host, spill, player = tiers.host, tiers.spill, tiers.player
    above = tiers.tops if tiers.link is not None else ()
    stalled_s = sum([device.stall_s() for device in tiers.devices]) / len(tiers.devices)
    return StepTraffic(
        stall_s=stalled_s + (0.0 if player is None else player.stall_s),
        uploaded_bytes=sum([top.loaded_nbytes for top in above]),
        downloaded_bytes=sum([top.written_nbytes for top in above]) + assembly.fetched_nbytes,
        passed_bytes=assembly.passed_nbytes,
        sent_bytes=assembly.sent_nbytes,
        received_bytes=assembly.received_nbytes,
        spill_read_bytes=0 if spill is None else spill.read_nbytes,
        spill_written_bytes=0 if spill is None else spill.written_nbytes,
        device_peak_bytes=max([top.ledger.peak_nbytes for top in above], default=0),
        host_peak_bytes=host.ledger.peak_nbytes,
        spill_peak_bytes=0 if spill is None else spill.peak_nbytes,
    )


def snapshot(share: str, assembly: Assembly, waiting_jobs: int, counts: Counters, turn: Party) -> Statistics:
    """Return the statistics at this moment. Safe from any thread; loops over nothing but the streams."""
    tiers = assembly.tiers
    host, spill, player = tiers.host, tiers.spill, tiers.player
    above = tiers.tops if tiers.link is not None else ()
    runners = [*tiers.streams(), *([] if player is None else [player])]
    return Statistics(
        **traffic(assembly)._asdict(),
        device=name_of(tiers.devices),
        device_memory_bytes=tiers.top.arena.cap if above else None,
        device_used_bytes=max([top.arena.used_nbytes for top in above], default=0),
        host_memory_bytes=host.arena.cap,
        host_used_bytes=host.arena.held_nbytes,
        spill_limit_bytes=None if spill is None else spill.limit,
        spill_used_bytes=0 if spill is None else spill.used_nbytes,
        spill_retries=0 if spill is None else spill.retries,
        operations=assembly.operations,
        share=share,
        **asdict(counts),
        waiting_jobs=waiting_jobs,
        waited_s=assembly.run_ahead.waited_s,
        turn_s=turn.used_s,
        turn_waited_s=turn.waited_s,
        queues=tuple([Queue(runner.name, *runner.depth) for runner in runners]),
    )
