"""The public errors. They are defined in asynctile/storage/errors.py, so that storage can raise them too."""

from asynctile.storage.errors import (
    AsynctileError,
    BudgetError,
    CheckpointError,
    DeviceError,
    NodeError,
    StalledError,
    TierError,
    TornModelError,
)

__all__ = [
    "AsynctileError", "BudgetError", "CheckpointError", "DeviceError", "NodeError", "StalledError", "TierError",
    "TornModelError",
]  # fmt: skip
