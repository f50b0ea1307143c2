"""The engine, the machine and the work that a command's options ask for."""

from __future__ import annotations

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.device.base import Report
from asynctile.layers.machine import Machine, Work
from asynctile.schedule.rates import Rates

__all__ = ["engine_of", "machine_of", "work_of"]


def engine_of(options: Options, report: Report | None = None, rates: Rates | None = None) -> Engine:
    """Return an engine that is not open yet. report: called while kernels are compiled. rates: as in Engine."""
    return Engine(options.device, device_memory=options.device_memory, host_memory=options.host_memory,
                  spill=options.spill, spill_limit=options.spill_limit, link_rate=options.link_rate,
                  prefetch=options.prefetch, precision=options.precision, rates=rates, report=report)


def machine_of(options: Options) -> Machine:
    """Return the settings of the same engine, for a plan."""
    return Machine(device=options.device, precision=options.precision, device_memory=options.device_memory,
                   host_memory=options.host_memory, spill=options.spill is not None, spill_limit=options.spill_limit,
                   prefetch=options.prefetch, link_rate=options.link_rate)  # fmt: skip


def work_of(options: Options, seq_len: int) -> Work:
    """Return the work of a training step on sequences of `seq_len` tokens."""
    return Work(batch_size=options.sequences, seq_len=seq_len, micro_batches=options.parts, replicas=options.replicas,
                tile=options.tile, recompute=options.recomputing, clip_norm=options.clip_norm,
                update=options.update)  # fmt: skip
