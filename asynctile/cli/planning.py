"""Plans of a training run without its model and device: `plan_of`, for the commands that plan before anything runs.

asynctile/layers/plan.py does the planning. This module supplies the rates of this machine, measured if necessary, or those of a
machine file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from asynctile import Engine
from asynctile.cli.model import length_of
from asynctile.cli.options import Options
from asynctile.cli.placement import machine_of, work_of
from asynctile.errors import AsynctileError
from asynctile.layers.config import Config
from asynctile.layers.machine import Machine
from asynctile.layers.plan import Plan, plan_step
from asynctile.measure.hardware import Hardware
from asynctile.measure.known import known
from asynctile.measure.virtual import Timeline
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import Schedule

__all__ = ["Stage", "plan_of"]

#: Is told what is being worked out.
Stage = Callable[[str], object]
#: Is given a schedule, and when the virtual clock ran it.
Keep = Callable[[Schedule, Timeline], object]


def plan_of(shape: Config, options: Options, there: Hardware | None, *, rates: Rates | None, gemm_rate: float | None,
            sent_per_s: float | None = None, stage: Stage, keep: Keep = lambda schedule, clock: None) -> Plan:
    """Return the plan of a run of a model of this shape, on a machine, or on this one for None.

    rates: by which the run plans, None for those of this machine. gemm_rate: FLOP/s of products, None for those of the rates.
    sent_per_s: bytes a second of the network between nodes, None for an assumed one. stage: is told what takes long. keep: is
    given the schedule, and when the virtual clock ran it. BudgetError if a cap has no room for one operation.
    """
    machine = machine_of(options)
    if there is not None:
        machine = replace(machine, measured=there.rates(options.precision), passed_per_s=there.passed_per_s, verbs=there.verbs,
                          own_cores=there.count)  # fmt: skip
    else:
        machine = replace(machine, measured=_rates(machine, stage) if rates is None else rates)
    work = work_of(options, length_of(options.seq_len, shape))
    return plan_step(shape, work, replace(machine, gemm_rate=gemm_rate, sent_per_s=sent_per_s), stage, keep)


def _rates(machine: Machine, stage: Stage) -> Rates | None:
    """Return the rates by which an engine plans here, measuring the cores if necessary; None: assume them."""
    found = known(machine.device, machine.precision)
    if found is not None or machine.is_gpu:
        return found
    stage("measuring the speed of this machine")
    try:
        return asyncio.run(_measured())
    except AsynctileError:  # too little memory to measure, or kernels that cannot be compiled
        return None


async def _measured() -> Rates:
    async with Engine("cpu") as engine:
        return engine.rates
