"""An option of a training run: its check, its help, and whether a `--config` file or a resumed run may set it.

Covers `Option`, `option`, which turns a dataclass field into an option, and how messages write options. The options themselves
are in options.py; arguments.py parses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Option", "flag", "option", "options_of", "shown_value", "typed", "with_flags"]

_KEY = "option"
#: Marks of a sentence about a file, whose keys are written with _.
_OF_A_FILE = ("--config ", ".json")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One entry of the option table."""

    check: Callable[[str], Any] | None
    """Turns text, typed or remembered, into a value. None: the option is a switch, --name and --no-name."""
    metavar: str
    help: str
    """The text that `--help` shows; {default} stands for the default."""
    group: str
    """The heading in `--help` above this option."""
    changeable: bool
    """Whether a resumed run may change the value."""
    forgotten: bool
    """Whether run.json neither stores nor sets the option: the user passes it to each call."""
    config: bool
    """Whether a --config file may set it."""
    plans: bool
    """Whether the output of `asynctile plan` depends on it."""
    repeatable: bool
    """Whether the option may be typed several times; its value is a tuple then."""


def option(default: Any, check: Callable[[str], Any] | None, metavar: str, help: str, *, group: str, changeable: bool = False,
           forgotten: bool = False, config: bool = True, plans: bool = False, repeatable: bool = False) -> Any:
    """Return a field of `Options` with these properties, as in `Option`. A forgotten option is always changeable."""
    entry = Option(check=check, metavar=metavar, help=help, group=group, changeable=changeable or forgotten,
                   forgotten=forgotten, config=config, plans=plans, repeatable=repeatable)  # fmt: skip
    return field(default=default, metadata={_KEY: entry})


def options_of(table: type) -> Mapping[str, Option]:
    """Return the entries of a dataclass made with `option`, by name, in order."""
    return {item.name: item.metadata[_KEY] for item in fields(table)}


def flag(name: str, value: Any = None) -> str:
    """Return how an option is typed, without its value."""
    return ("--no-" if value is False else "--") + name.replace("_", "-")


def typed(name: str, value: Any) -> str:
    """Return an option with its value or values, as on a command line."""
    if isinstance(value, tuple):
        return " ".join(f"{flag(name)} {item}" for item in value)
    return flag(name, value) if isinstance(value, bool) else f"{flag(name, value)} {value}"


def shown_value(name: str, value: Any) -> str:
    """Return a remembered value for a message: a switch as it is typed, any other option by its value."""
    if value is None or value == ():
        return "the default"
    if isinstance(value, tuple):
        return typed(name, value)
    return flag(name, value) if isinstance(value, bool) else str(value)


def with_flags(sentence: str, flags: Iterable[str], typed: Iterable[str]) -> str:
    """Return a sentence of the API with options in place of arguments, such as --host-memory for host_memory.

    flags: the options of the command. typed: the words of the command line; a name in one of them is the user's own. A sentence
    about a file keeps its names, because they are keys there.
    """
    if any(mark in sentence for mark in _OF_A_FILE):
        return sentence
    own = " ".join(typed)
    names = {option[2:].replace("-", "_"): option for option in flags}
    words = [rf"\b{name}\b" for name in names if "_" in name and name not in own]
    if "spill" in names:  # also an English word
        words.append(r"(?<=give |with )spill\b")
    return re.sub("|".join(words), lambda found: names[found[0]], sentence) if words else sentence
