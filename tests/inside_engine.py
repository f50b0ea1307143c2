"""The one place where tests and benchmarks reach inside an engine: for its device, links, driver, launches to watch; and for
what is played.

Another kernel is put in through `device_of(engine).kernels`.
"""

from typing import Any

from asynctile import Engine
from asynctile.schedule.schedule import Schedule
from asynctile.share import runtime_of


def device_of(engine: Engine) -> Any:
    """As the class that it is, since what is looked at is not in the contract of every device."""
    return engine._life.device


def schedule_of(engine: Engine) -> Schedule:
    """That of the program which is played now."""
    bound = runtime_of(engine).schedules._attached
    assert bound is not None, "nothing is played"
    return bound.schedule
