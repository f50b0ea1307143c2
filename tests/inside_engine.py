"""The only module through which tests and benchmarks reach inside an engine: its device, links, driver and current schedule.

Another kernel is put in through `device_of(engine).kernels`.
"""

from typing import Any

from asynctile import Engine
from asynctile.lifetime import Lifetime
from asynctile.schedule.schedule import Schedule
from asynctile.share import runtime_of


def life_of(engine: Engine) -> Lifetime:
    """Return the life of an engine, also before it is opened, when it has no runtime yet."""
    return engine._life  # runtime_of refuses an engine that is not open


def device_of(engine: Engine) -> Any:
    """Return the engine's device, typed Any because tests look at attributes that not every device has."""
    return life_of(engine).device


def schedule_of(engine: Engine) -> Schedule:
    """Return the schedule of the program that the engine is playing."""
    bound = runtime_of(engine).schedules._attached  # the rest of the engine never asks which one it is
    assert bound is not None, "nothing is played"
    return bound.schedule


def watch(engine: Engine, patience_s: float) -> None:
    """Set the patience of the watchdog for all waits that begin from now on.

    Tests of what hangs open their engine without a watchdog and set a short one when the hang is ready: on a busy machine
    healthy work also stands still for a while.
    """
    for tiers in life_of(engine).tiers:
        tiers.run_ahead.patience_s = patience_s
