"""What an option of a training run is: its check, its help, and where a value of it may come from.

Covers `Option`, `option`, which makes a field of a dataclass of one, and how options are written in messages. Which there are
is options.py; how they are typed arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Option", "flag", "option", "options_of", "shown_value", "typed"]

_KEY = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One entry of the table."""

    check: Callable[[str], Any] | None
    """From text, typed or remembered, to a value; None: a switch, --name and --no-name."""
    metavar: str
    help: str
    """As `--help` shows it; {default} stands for the default."""
    group: str
    """The heading in `--help` under which it stands."""
    changeable: bool
    """A resumed run may set it anew."""
    forgotten: bool
    """Neither written to run.json nor taken from there: it is said by who calls, each time."""
    config: bool
    """A file named by --config may say it."""
    plans: bool
    """What `asynctile plan` says depends on it."""
    repeatable: bool
    """May be typed several times; its value is a tuple."""


def option(default: Any, check: Callable[[str], Any] | None, metavar: str, help: str, *, group: str, changeable: bool = False,
           forgotten: bool = False, config: bool = True, plans: bool = False, repeatable: bool = False) -> Any:
    """A field of `Options`; as in `Option`. What is forgotten is changeable."""
    entry = Option(check=check, metavar=metavar, help=help, group=group, changeable=changeable or forgotten,
                   forgotten=forgotten, config=config, plans=plans, repeatable=repeatable)  # fmt: skip
    return field(default=default, metadata={_KEY: entry})


def options_of(table: type) -> Mapping[str, Option]:
    """The entries of a dataclass made with `option`, by name, in their order."""
    return {item.name: item.metadata[_KEY] for item in fields(table)}


def flag(name: str, value: Any = None) -> str:
    """How an option is typed, without its value."""
    return ("--no-" if value is False else "--") + name.replace("_", "-")


def typed(name: str, value: Any) -> str:
    """An option with its value, as on a command line."""
    return flag(name, value) if isinstance(value, bool) else f"{flag(name, value)} {value}"


def shown_value(name: str, value: Any) -> str:
    """What a run remembers: a switch as it is typed, anything else by its value."""
    if value is None:
        return "the default"
    return flag(name, value) if isinstance(value, bool) else str(value)
