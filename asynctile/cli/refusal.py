"""The refusal of a run whose caps are too small: it names what a whole step needs.

An engine refuses the first call that does not fit. In a run, that is the making of the model, which needs less than a step.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.cli.placement import machine_of, work_of
from asynctile.errors import BudgetError
from asynctile.layers.config import Config
from asynctile.layers.planned_step import planned_step
from asynctile.share import runtime_of

__all__ = ["refusal_of_step"]


async def refusal_of_step(refused: BudgetError, engine: Engine, options: Options, shape: Config) -> BudgetError:
    """Return the refusal of a run's step on an engine without tiles, or `refused` if the step needs no more than that."""
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
