"""asynctile: trains a GPT-2 larger than its device's memory, inside an asyncio program.

Every tile operation of a training step is a coroutine that awaits its inputs and room; one task a job awaits them in program
order, and prefetch runs beside it as coroutine stages.
"""

from asynctile.starting import ended_by_ctrl_c as _ended_by_ctrl_c

with _ended_by_ctrl_c():
    import logging

    from asynctile.engine import Engine
    from asynctile.errors import (
        AsynctileError,
        BudgetError,
        CheckpointError,
        DeviceError,
        StalledError,
        TierError,
        TornModelError,
    )
    from asynctile.hub import Events
    from asynctile.measure.statistics import Statistics
    from asynctile.share import Share

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "AsynctileError",
    "BudgetError",
    "CheckpointError",
    "DeviceError",
    "Engine",
    "Events",
    "Share",
    "StalledError",
    "Statistics",
    "TierError",
    "TornModelError",
]
