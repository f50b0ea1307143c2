"""The one place where tests and benchmarks reach inside an engine, for its device: links, driver, launches to watch.

Another kernel is put in through Engine.kernels.
"""

from typing import Any

from asynctile import Engine


def device_of(engine: Engine) -> Any:
    """As the class that it is, since what is looked at is not in the contract of every device."""
    return engine._device
