"""Numbers and sizes that a user types, checked one by one.

Each function here is a `type=` of argparse: text in, value out, or a sentence that names the text, what was expected
and an example. What values mean together is checked in options.py.
"""

from __future__ import annotations

import argparse
import math

from asynctile.storage.sizes import parse_size

__all__ = ["count", "fraction", "natural", "positive", "rate", "size"]


def count(text: str) -> int:
    """A whole number of 1 or more."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number of 0 or more."""
    return _whole(text, 0)


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if value <= 0:
        raise _refusal(text, "a number above 0, such as 0.001")
    return value


def fraction(text: str) -> float:
    """A finite number of 0 or more."""
    value = _number(text)
    if value < 0:
        raise _refusal(text, "a number of 0 or more, such as 0.1")
    return value


def size(text: str) -> int:
    """A size in bytes above 0, as in "512MiB"."""
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes == 0:
        raise _refusal(text, 'a size above 0, such as "512MiB"')
    return nbytes


#: Bytes a second are written like bytes.
rate = size


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise _refusal(text, f"a whole number of {least} or more, such as {least + 7}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refusal(text, "a finite number, such as 0.001")
    return value


def _refusal(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} cannot be used; expected {expected}")
