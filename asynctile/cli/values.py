"""Checks of single values, typed or remembered: numbers, sizes and names.

Each function here is a `type=` of argparse. It takes text and returns a value, or raises ArgumentTypeError with a sentence that
names the text, what was expected and an example. fitting.py checks which values fit together.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

from asynctile.storage.input import shown
from asynctile.storage.sizes import parse_size

__all__ = [
    "adapter", "adapter_settings", "address", "below_one", "count", "count_or_none", "duration", "fraction", "name",
    "name_of_class", "name_or_none", "natural",
    "one_of", "positive", "power_of_two", "share", "size", "size_or_none", "steps",
]  # fmt: skip

#: The value that removes an option from a resumed run.
NONE = "none"
#: The largest seed. No other count comes near it.
_MOST = 2**64 - 1
#: Days, hours, minutes and seconds, each optional, or h:mm:ss.
_UNITS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
#: Seconds; the longest time that the system's clock functions still accept.
_LONGEST = 10**9


def address(text: str) -> tuple[str, int]:
    """Return a host and a port from 1 to 65535, written HOST:PORT; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise _refusal(text, "HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:29500")
    return host, int(port)


def adapter(text: str) -> str:
    """Return the settings of an adapter, r=N, alpha=X and targets=NAME+NAME, each at most once, separated by commas."""
    adapter_settings(text)
    return text


def adapter_settings(text: str) -> dict[str, Any]:
    """Return the settings of an adapter as `adapter` writes them: r a count, alpha a positive number, targets a tuple."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in _ADAPTER or key in found or not value:
            raise _refusal(text, "settings such as r=16,alpha=32,targets=q_proj+v_proj, each at most once")
        try:
            found[key] = _ADAPTER[key](value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{key} {error}") from error
    return found


def name_of_class(text: str) -> str:
    """Return a Python class name of the form MODULE:CLASS."""
    module, colon, kind = text.partition(":")
    if not (colon and kind.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise _refusal(text, "MODULE:CLASS, such as tracker:Tracker")
    return text


def count(text: str) -> int:
    """Return a whole number of 1 or more."""
    return _whole(text, 1)


def count_or_none(text: str) -> int | None:
    """Return a whole number of 1 or more, or None for "none"."""
    return None if text == NONE else count(text)


def power_of_two(text: str) -> int:
    """Return 1, 2, 4, 8 or a higher power of two."""
    value = count(text)
    if value & (value - 1):
        raise _refusal(text, "a power of two, such as 1, 2, 4 or 8")
    return value


def steps(text: str) -> tuple[int, int | None]:
    """Return the first and last step of "A:B", both included: "A:" has no last (None), ":B" starts at step 1."""
    begin, colon, end = text.partition(":")
    if not colon or not (begin or end):
        raise _refusal(text, "steps A:B, such as 5:8, 5: or :8")
    first, last = count(begin) if begin else 1, count(end) if end else None
    if last is not None and first > last:
        raise _refusal(text, f"steps A:B with A at most B, such as {last}:{first}")
    return first, last


def natural(text: str) -> int:
    """Return a whole number of 0 or more."""
    return _whole(text, 0)


def positive(text: str) -> float:
    """Return a finite number above 0."""
    value = _number(text)
    if value <= 0:
        raise _refusal(text, "a number above 0, such as 0.001")
    return value


def fraction(text: str) -> float:
    """Return a finite number of 0 or more."""
    value = _number(text)
    if value < 0:
        raise _refusal(text, "a number of 0 or more, such as 0.1")
    return value


def share(text: str) -> float:
    """Return a number above 0 and below 1."""
    value = _number(text)
    if not 0 < value < 1:
        raise _refusal(text, "a number above 0 and below 1, such as 0.05")
    return value


def below_one(text: str) -> float:
    """Return a number of at least 0 and below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise _refusal(text, "a number of at least 0 and below 1, such as 0.95")
    return value


def duration(text: str) -> float:
    """Return the seconds, above 0, of a time such as 90s, 30m, 1h30m, 2d or 1:30:00."""
    if clock := _CLOCK.fullmatch(text):
        parts: tuple[str | None, ...] = (None, *clock.groups())
    else:
        units = _UNITS.fullmatch(text)
        parts = units.groups() if units else ()
    seconds = sum(float(part or 0) * each for part, each in zip(parts, (86400, 3600, 60, 1), strict=False))
    if not 0 < seconds <= _LONGEST:
        raise _refusal(text, "a time above 0 with units, such as 90s, 30m, 1h30m or 1:30:00")
    return seconds


def one_of(*words: str) -> Callable[[str], str]:
    """Return a check that accepts only these words."""

    def check(text: str) -> str:
        if text not in words:
            raise _refusal(text, f"{', '.join(words[:-1])} or {words[-1]}")
        return text

    return check


def size(text: str) -> int:
    """Return a size in bytes above 0, from text such as "512MiB"."""
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes == 0:
        raise _refusal(text, 'a size above 0, such as "512MiB"')
    return nbytes


def size_or_none(text: str) -> int | None:
    """Return a size in bytes, or None for "none"."""
    return None if text == NONE else size(text)


def name(text: str) -> str:
    """Return a path or a word of at least one character."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; give one or leave the option out")
    if "\0" in text:
        raise _refusal(text, "a name without a NUL character")
    return text


def name_or_none(text: str) -> str | None:
    """Return a path, or None for "none" (a folder of that name is "./none")."""
    return None if text == NONE else name(text)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise _refusal(text, f"a whole number of {least} or more, such as {least + 7}")
    if value > _MOST:
        raise _refusal(text, f"a whole number of at most {_MOST}")
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
    return argparse.ArgumentTypeError(f"{shown(text)} cannot be used; expected {expected}")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split("+"))
    if not all(names):
        raise _refusal(text, "names of layers, such as q_proj+v_proj")
    return names


#: The settings of an adapter, by key, each with its check.
_ADAPTER: dict[str, Callable[[str], Any]] = {"r": count, "alpha": positive, "targets": _names}
