"""Where a command's bytes are: the engine, the machine and the work that its options ask for.

Covers also two sentences about caps: a warning of caps above the memory that is here, which is no refusal, because swap may
hold them and limits may be raised; and the refusal of caps that are too small for a run.
"""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import replace

from asynctile import Engine
from asynctile.cli.model import adapters_of, kept_weights
from asynctile.cli.option import flag
from asynctile.cli.options import Options
from asynctile.device.base import Report
from asynctile.device.names import names_of
from asynctile.errors import BudgetError
from asynctile.layers.config import Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.layers.tuning import Tuning
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.schedule.rates import Rates
from asynctile.share import runtime_of
from asynctile.storage.limits import found
from asynctile.storage.sizes import format_size

__all__ = ["engine_of", "machine_of", "refusal_of_step", "warn_of_excess", "work_of"]


def engine_of(
    options: Options, report: Report | None = None, rates: Rates | None = None, exchange: TcpExchange | None = None
) -> Engine:
    """Return an engine that is not open yet. report: called while kernels are compiled. rates, exchange: as in Engine."""
    return Engine(options.device, device_memory=options.device_memory, host_memory=options.host_memory,
                  spill=options.spill, spill_limit=options.spill_limit, link_rate=options.link_rate,
                  prefetch=options.prefetch, precision=options.precision, rates=rates, report=report, exchange=exchange)


def machine_of(options: Options) -> Machine:
    """Return the settings of the same engine, for a plan."""
    return Machine(device=options.device, precision=options.precision, device_memory=options.device_memory,
                   host_memory=options.host_memory, spill=options.spill is not None, spill_limit=options.spill_limit,
                   prefetch=options.prefetch, link_rate=options.link_rate, nodes=options.nodes)  # fmt: skip


def work_of(options: Options, seq_len: int) -> Work:
    """Return the work of a training step on sequences of `seq_len` tokens."""
    return Work(batch_size=options.sequences, seq_len=seq_len, micro_batches=options.parts, replicas=options.replicas,
                tile=options.tile, recompute=options.recomputing, clip_norm=options.clip_norm, update=options.update,
                tuning=Tuning(adapters_of(options), options.freeze), weights=kept_weights(options))  # fmt: skip


def warn_of_excess(options: Options) -> None:
    """Warn of each cap on RAM that is above the machine's RAM, or above a limit of this process on memory."""
    caps = {"host_memory": (options.host_memory, 1)}
    devices = names_of(options.device)
    if devices[0] == "emulated":  # their memory is RAM
        caps["device_memory"] = options.device_memory, len(devices)
    limit = min(found(), key=lambda limit: limit.nbytes)
    for name, (cap, count) in caps.items():
        if cap is not None and cap * count > limit.nbytes:
            each = f" on each of {count} devices" if count > 1 else ""
            warnings.warn(f"{flag(name)} of {format_size(cap)}{each} is above the {limit.what} of {format_size(limit.nbytes)} "
                          "here: a run that fills it swaps or is killed; choose less, or add a disk with --spill",
                          stacklevel=2)  # fmt: skip


async def refusal_of_step(refused: BudgetError, engine: Engine, options: Options, shape: Config) -> BudgetError:
    """Return the refusal of a run's step on an engine without tiles, or `refused` if the step needs no more than that.

    An engine refuses the first call that does not fit. In a run, that is the making of the model, which needs less than a step.
    """
    assert options.seq_len is not None
    runtime = runtime_of(engine)
    tiers = runtime.tiers
    machine = replace(machine_of(options), device=engine.device, host_memory=tiers.host.arena.cap, measured=engine.rates,
                      device_memory=tiers.top.arena.cap if tiers.link is not None else None)  # fmt: skip
    try:
        step = await asyncio.to_thread(planned_step, shape, work_of(options, options.seq_len), machine)
        await runtime.reserve(step.demand)
    except BudgetError as whole:
        return whole if whole.floor > refused.floor else refused
    return refused
