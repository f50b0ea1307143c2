"""Two-column tables for `plan` and `info`: plain text, one line per row, so that other programs can read them too."""

from __future__ import annotations

from collections.abc import Sequence

from asynctile.cli.terminal import say

__all__ = ["print_rows"]


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Print (name, text) pairs with their texts aligned."""
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        say(f"{name:<{width}}  {text}\n")
