"""asynctile: a GPT-2 larger than its device, trained at the speed of one that fits, inside one asyncio program."""

from asynctile.engine import Engine, Statistics
from asynctile.errors import (
    AsynctileError,
    BudgetError,
    CheckpointError,
    DeviceError,
    StalledError,
    TierError,
    TornModelError,
)

__version__ = "0.1.0"

__all__ = [
    "AsynctileError",
    "BudgetError",
    "CheckpointError",
    "DeviceError",
    "Engine",
    "StalledError",
    "Statistics",
    "TierError",
    "TornModelError",
]
