"""asynctile trains a language model that is larger than the memory of its device, inside an asyncio program.

A step is a schedule of operations and moves of tiles. Each entry is a coroutine that awaits the futures of the entries that it
depends on. Compiled workers play schedules that repeat.
"""

from asynctile.starting import ended_by_ctrl_c as _ended_by_ctrl_c

with _ended_by_ctrl_c():
    import logging
    from typing import TYPE_CHECKING

    from asynctile.on_demand import on_demand as _on_demand

if TYPE_CHECKING:
    from asynctile.engine import Engine
    from asynctile.errors import (
        AsynctileError,
        BudgetError,
        CheckpointError,
        DeviceError,
        NodeError,
        StalledError,
        TierError,
        TornModelError,
    )
    from asynctile.hub import Events
    from asynctile.measure.statistics import Statistics
    from asynctile.share import Share
else:
    __getattr__, __dir__ = _on_demand(__name__, {
        "AsynctileError": "asynctile.errors:AsynctileError",
        "BudgetError": "asynctile.errors:BudgetError",
        "CheckpointError": "asynctile.errors:CheckpointError",
        "DeviceError": "asynctile.errors:DeviceError",
        "Engine": "asynctile.engine:Engine",
        "Events": "asynctile.hub:Events",
        "NodeError": "asynctile.errors:NodeError",
        "Share": "asynctile.share:Share",
        "StalledError": "asynctile.errors:StalledError",
        "Statistics": "asynctile.measure.statistics:Statistics",
        "TierError": "asynctile.errors:TierError",
        "TornModelError": "asynctile.errors:TornModelError",
    })  # fmt: skip

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "AsynctileError",
    "BudgetError",
    "CheckpointError",
    "DeviceError",
    "Engine",
    "Events",
    "NodeError",
    "Share",
    "StalledError",
    "Statistics",
    "TierError",
    "TornModelError",
]
