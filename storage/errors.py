"""The typed errors of asynctile, all under `AsynctileError`.

Covers the classes only; `asynctile.errors` re-exports them for users. Wrong arguments raise the built-in `ValueError` or
`TypeError` instead. Every message names the object, what was given, what was expected and the way out; it is written where the
error is raised. The classes are defined in `storage`, the lowest package, because imports run one way and every layer raises
them.
"""

from __future__ import annotations

__all__ = [
    "AsynctileError", "BudgetError", "CheckpointError", "DeviceError", "NodeError", "StalledError", "TierError",
    "TornModelError",
]  # fmt: skip


class AsynctileError(Exception):
    """Base class of everything that asynctile raises on purpose, except for wrong arguments."""


class BudgetError(AsynctileError):
    """A memory cap is too small for the request; raised before any work is done.

    `floor` is the smallest cap in bytes that would have worked.
    """

    def __init__(self, message: str, floor: int) -> None:
        # Exception gets both: pickling rebuilds the error from `args`, and the message alone would lose the floor.
        super().__init__(message, floor)
        self.message = message
        self.floor = floor

    def __str__(self) -> str:
        return self.message


class TierError(AsynctileError):
    """A memory tier (device, host or spill) failed to hold, read or write bytes."""


class CheckpointError(AsynctileError):
    """A saved file cannot be written, or it is missing, truncated, damaged or of another model when it is read back."""


class DeviceError(AsynctileError):
    """A device is missing, unusable, or one of its operations failed."""


class NodeError(AsynctileError):
    """Another process of a training refused this one, was lost, gave up or has left."""


class StalledError(TierError):
    """Nothing has moved for longer than the watchdog's patience; the engine can only be closed."""


class TornModelError(AsynctileError):
    """A fused step failed after its first update: some weights are updated and some are not, and only a checkpoint helps."""
