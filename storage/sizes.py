"""Sizes in bytes: from the text that people write to ints, and back.

Covers `parse_size` ("512MiB" to 536870912) and `format_size` (back, for sentences). Rates in bytes per second are written the
same way and use the same two functions. Comparing a size with a cap or a floor is the ledger's job.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction

__all__ = ["format_size", "parse_size"]

_UNITS = (
    {"": 1, "B": 1}
    | {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
    | {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
)
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)", re.ASCII)
_WAY_OUT = (
    'write a whole number of bytes such as 536870912, or a number with a unit, such as "512MiB" or "1.5GB"'
)


def parse_size(size: str | int) -> int:
    """Return a size in bytes, given an int of bytes or a string such as "512MiB", "1.5 GB" or "4096".

    Units are B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024), in either case. A fraction of a byte
    is dropped. The result is >= 0. Raises ValueError if the size is negative, not a number or a bool, or has another unit.
    """
    if isinstance(size, str):
        return _parse_text(size)
    try:
        if isinstance(size, bool):
            raise TypeError
        nbytes = operator.index(size)  # accepts numpy's integers, refuses floats (and so NaN)
    except TypeError:
        given = " ".join(repr(size).split())  # an array has several lines
        raise ValueError(f"size {given} is not a size in bytes; {_WAY_OUT}") from None
    if nbytes < 0:
        raise ValueError(f"size {size!r} is negative; {_WAY_OUT}")
    return nbytes


def _parse_text(text: str) -> int:
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        fault = "is negative" if re.match(r"\s*-\s*[0-9.]", text) else "is not a size in bytes"
        raise ValueError(f"size {text!r} {fault}; {_WAY_OUT}")
    number, unit = match.groups()
    if unit.upper() not in _UNITS:
        raise ValueError(
            f"size {text!r} has the unknown unit {unit!r}; expected one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    return int(Fraction(number) * _UNITS[unit.upper()])  # exact: 1.1GB is 1100000000, not one byte less


def format_size(nbytes: int) -> str:
    """Return bytes as text: "512 B", "1.50 GiB". Binary units, two decimals, the largest unit that gives at least 1."""
    value, sign = abs(nbytes), "-" if nbytes < 0 else ""
    if value < 1024:
        return f"{sign}{value} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB"), 1):
        if round(value / 1024**power, 2) < 1024:  # 1048575 is "1.00 MiB", never "1024.00 KiB"
            return f"{sign}{value / 1024**power:.2f} {unit}"
    return f"{sign}{value / 1024**4:.2f} TiB"
