"""The only module through which tests and benchmarks reach inside an engine: its device, links, driver and current schedule.

Another kernel is put in through `device_of(engine).kernels`.
"""

from typing import Any

from asynctile import Engine
from asynctile.schedule.schedule import Schedule
from asynctile.share import runtime_of


def device_of(engine: Engine) -> Any:
    """Return the engine's device, typed Any because tests look at attributes that not every device has."""
    return engine._life.device


def schedule_of(engine: Engine) -> Schedule:
    """Return the schedule of the program that the engine is playing."""
    bound = runtime_of(engine).schedules._attached
    assert bound is not None, "nothing is played"
    return bound.schedule
