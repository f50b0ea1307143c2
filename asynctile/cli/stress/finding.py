"""Findings of stress: `Finding`, the error that a scenario, or a check around it, raises for a fault of asynctile.

Covers the error only. tally.py counts findings; output.py shows them.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

__all__ = ["KINDS", "Finding", "Kind", "expect_bytes"]

#: lost: wrong bytes. leaked: something outlives its engine. hung: nothing moves any more. touched: the command changed
#: something that is not its own. greedy: more memory than the input is worth. failed: an unplanned error, or no error where one
#: was due.
Kind = Literal["lost", "leaked", "hung", "touched", "greedy", "failed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Finding(Exception):
    """Something that must not happen. kind: one of KINDS. sentence: describes it. nbytes: number of lost bytes."""

    def __init__(self, kind: Kind, sentence: str, nbytes: int = 0) -> None:
        super().__init__(sentence)
        self.kind: Kind = kind
        self.nbytes = nbytes


def expect_bytes(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Raise Finding if two arrays are not bitwise equal."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        what = f"{found.shape} {found.dtype} instead of {expected.shape} {expected.dtype}"
        raise Finding("lost", f"{name} came back as {what}", expected.nbytes)
    one, other = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    if one.tobytes() != other.tobytes():
        wrong = int((one.reshape(-1).view(np.uint8) != other.reshape(-1).view(np.uint8)).sum())
        raise Finding("lost", f"{name}: {wrong} of {expected.nbytes} bytes differ from the expected ones", wrong)
