"""The engine that a command's options ask for."""

from __future__ import annotations

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.device.base import Report
from asynctile.schedule.rates import Rates

__all__ = ["engine_of"]


def engine_of(options: Options, report: Report | None = None, rates: Rates | None = None) -> Engine:
    """Return an engine that is not open yet. report: called while kernels are compiled. rates: as in Engine."""
    return Engine(options.device, device_memory=options.device_memory, host_memory=options.host_memory,
                  spill=options.spill, spill_limit=options.spill_limit, link_rate=options.link_rate,
                  prefetch=options.prefetch, precision=options.precision, rates=rates, report=report)
