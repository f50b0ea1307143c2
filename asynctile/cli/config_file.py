"""Options from a --config file: flat TOML whose keys are option names, each value checked as if it were typed.

Covers `read_config`, and `value_of` for options that a program sets. precedence.py decides which value wins. No file can set
where to write.
"""

from __future__ import annotations

import argparse
import tomllib
from typing import Any, get_type_hints

from asynctile.cli.nearest import nearest
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from asynctile.storage.input import LINE_NBYTES, read_file, shown

__all__ = ["read_config", "value_of"]

_TABLE = options_of(Options)
#: Options that a file may set.
_NAMES = [name for name, entry in _TABLE.items() if entry.config]
_KINDS = get_type_hints(Options)
#: Options of one call, not of a run.
_TYPED = ("config", "resume")
#: More bits than any option takes. Python refuses to print very long whole numbers.
_BITS = 1 << 10


def read_config(path: str) -> dict[str, Any]:
    """Return the options that a file sets, by name. ValueError names the file and the key if it could not have been typed."""
    found: dict[str, Any] = {}
    for key, value in _parsed(path).items():
        name = key.replace("-", "_")
        if name in _TYPED or (name in _TABLE and not _TABLE[name].config):
            raise ValueError(f"--config {path} sets {key}, which no file may set; type {flag(name)} instead")
        if name not in _TABLE:
            near = nearest(name, _NAMES) or "; `asynctile train --help` lists the options"
            raise ValueError(f"--config {path} sets {shown(key)}, which is not an option{near}")
        if name in found:
            raise ValueError(f"--config {path} sets {name} twice, with - and with _; remove one")
        try:
            found[name] = value_of(name, value)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--config {path}, {key}: {error}") from error
    return found


def _parsed(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(path, LINE_NBYTES).decode())
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}; name a TOML file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--config {path} is not TOML: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"--config {path} is nested too deeply; expected lines such as lr = 0.001") from error
    except ValueError as error:
        raise ValueError(f"--config {path} is not TOML: {error}; expected lines such as lr = 0.001") from error


def value_of(name: str, found: Any) -> Any:
    """Return the checked value. ArgumentTypeError if its type is not the option's, or if it could not have been typed."""
    check, kind = _TABLE[name].check, _KINDS[name]
    if isinstance(found, dict):
        raise argparse.ArgumentTypeError("a table cannot be used; put options above all [headings]")
    if _TABLE[name].repeatable:
        return _each(check, found)
    if check is None:
        return found if isinstance(found, bool) else _refuse(found, "true or false, without quotes")
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        _refuse(found, "text in quotes" if _is_text(kind) else "a number, or text such as \"512MiB\" where it has a unit")
    if _is_text(kind) and not isinstance(found, str):
        _refuse(found, "text in quotes")
    if not _is_text(kind) and isinstance(found, str) and _is_number(found):
        _refuse(found, "a number without quotes")
    if isinstance(found, int) and found.bit_length() > _BITS:
        raise argparse.ArgumentTypeError(f"a number of {found.bit_length()} bits cannot be used; expected a smaller number")
    return check(str(found))


def _each(check: Any, found: Any) -> tuple[Any, ...]:
    """Return the checked values of an option that may be typed several times."""
    items = found if isinstance(found, list) else [found]
    if not all(isinstance(item, str) for item in items):
        _refuse(found, "text in quotes, or a list of such texts")
    return tuple(check(item) for item in items)


def _refuse(found: Any, expected: str) -> None:
    raise argparse.ArgumentTypeError(f"{shown(found)} cannot be used; expected {expected}")


def _is_text(kind: Any) -> bool:
    return kind in (str, str | None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
