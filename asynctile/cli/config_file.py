"""Options from a file that `--config` names: TOML, flat, keys as options are called, each value checked as if it were typed.

Covers `read_config`. Whether such a value counts beside others is precedence.py's. What says where to write stands in no file.
"""

from __future__ import annotations

import argparse
import tomllib
from typing import Any, get_type_hints

from asynctile.cli.nearest import nearest
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from asynctile.storage.input import LINE_NBYTES, read_file, shown

__all__ = ["read_config"]

_TABLE = options_of(Options)
#: Those that a file may say.
_NAMES = [name for name, entry in _TABLE.items() if entry.config]
_KINDS = get_type_hints(Options)
#: Said of a command, and no values of a run.
_TYPED = ("config", "resume")
#: More than any option takes; Python makes no text of a whole number without end.
_BITS = 1 << 10


def read_config(path: str) -> dict[str, Any]:
    """The options that a file says, by name; ValueError, which names the file and the key, for what could not be typed."""
    found: dict[str, Any] = {}
    for key, value in _parsed(path).items():
        name = key.replace("-", "_")
        if name in _TYPED or (name in _TABLE and not _TABLE[name].config):
            raise ValueError(f"--config {path} says {key}, and that is not taken from a file; type {flag(name)} instead")
        if name not in _TABLE:
            near = nearest(name, _NAMES) or "; `asynctile train --help` names them"
            raise ValueError(f"--config {path} says {shown(key)}, which is no option{near}")
        if name in found:
            raise ValueError(f"--config {path} says {name} twice, with - and with _; leave one out")
        try:
            found[name] = _value(name, value)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--config {path}, its {key}: {error}") from error
    return found


def _parsed(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(path, LINE_NBYTES).decode())
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}; name a TOML file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--config {path} is not TOML: byte {error.start} is no UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"--config {path} is nested too deep, expected lines such as lr = 0.001") from error
    except ValueError as error:
        raise ValueError(f"--config {path} is not TOML: {error}; expected lines such as lr = 0.001") from error


def _value(name: str, found: Any) -> Any:
    """ArgumentTypeError for what is of another kind than the option, or could not be typed."""
    check, kind = _TABLE[name].check, _KINDS[name]
    if isinstance(found, dict):
        raise argparse.ArgumentTypeError("a table cannot be used; options stand above all [headings]")
    if check is None:
        return found if isinstance(found, bool) else _refuse(found, "true or false, without quotes")
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        _refuse(found, "text in quotes" if _is_text(kind) else "a number, or text such as \"512MiB\" where it has a unit")
    if _is_text(kind) and not isinstance(found, str):
        _refuse(found, "text in quotes")
    if not _is_text(kind) and isinstance(found, str) and _is_number(found):
        _refuse(found, "a number without quotes")
    if isinstance(found, int) and found.bit_length() > _BITS:
        raise argparse.ArgumentTypeError(f"a number of {found.bit_length()} bits cannot be used")
    return check(str(found))


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
