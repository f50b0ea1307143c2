"""Counts of things, for sentences and tables."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 slot", "2 slots"."""
    return f"{number} {noun}{'s' * (number != 1)}"
