"""The typed errors of asynctile, one tree under `AsynctileError`.

Covers the classes only; `asynctile.errors` re-exports them for users. Wrong arguments are not here: they
raise the built-in `ValueError` or `TypeError`. Every sentence names the object, what was given, what was
expected and the way out; it is written where the error is raised. The classes stand in `storage`, the lowest
package, because imports run one way and each layer raises.
"""

from __future__ import annotations

__all__ = [
    "AsynctileError", "BudgetError", "CheckpointError", "DeviceError", "StalledError", "TierError", "TornModelError",
]  # fmt: skip


class AsynctileError(Exception):
    """Everything that asynctile raises on purpose, other than a wrong argument."""


class BudgetError(AsynctileError):
    """A memory cap is too small for what was asked, said before any work is done.

    `floor` is the smallest cap in bytes that would have worked.
    """

    def __init__(self, message: str, floor: int) -> None:
        # Both go to Exception: pickling rebuilds the error from `args`, and a lone message would lose the floor.
        super().__init__(message, floor)
        self.message = message
        self.floor = floor

    def __str__(self) -> str:
        return self.message


class TierError(AsynctileError):
    """A memory tier (device, host or spill) failed to hold, read or write bytes."""


class CheckpointError(AsynctileError):
    """A saved file cannot be written, or read back as what it should be: missing, truncated, damaged or of
    another model.
    """


class DeviceError(AsynctileError):
    """A device is missing, unusable, or one of its operations failed."""


class StalledError(TierError):
    """Nothing has moved for longer than the watchdog's patience; the engine can only be closed."""


class TornModelError(AsynctileError):
    """A fused step failed after its first update: the weights are of no single step, and only a checkpoint
    helps.
    """
