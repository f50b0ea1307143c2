"""Which value of an option counts: its default, what the run remembers if it goes on, what was typed; each later one wins.

Covers `new_options` and `resumed_options`. What run.json may say is checked here as if it had been typed; where it is kept is
run_folder.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from asynctile.cli.fitting import check_fit
from asynctile.cli.option import flag, shown_value, typed
from asynctile.cli.options import CHANGEABLE, CHECKS, FORGOTTEN, Options
from asynctile.layers.gpt2_config import STANDARD
from asynctile.storage.input import shown

__all__ = ["new_options", "resumed_options"]

#: A path that is relative means another place when the run goes on from elsewhere.
_PATHS = ("data", "validation_data", "model", "tokenizer", "spill")


def new_options(given: Mapping[str, Any]) -> Options:
    """The options of a new run from those that were typed."""
    return check_fit(Options(**_settled(given)))


def resumed_options(given: Mapping[str, Any], recorded: Mapping[str, Any], folder: Path) -> Options:
    """The options of a run that goes on: the recorded ones, with those of CHANGEABLE that were typed.

    Raises ValueError for one that was typed, may not change and differs, and for one that was recorded and could not have
    been typed.
    """
    options = Options(**_checked(recorded, folder))
    said = _settled(given)
    for name, value in said.items():
        was = getattr(options, name)
        if name not in CHANGEABLE and value != was:
            raise ValueError(f"{typed(name, value)} differs from {shown_value(name, was)} in the run {folder}; leave "
                             f"{flag(name, value)} out, or start another run with another --out")
    changes = {name: value for name, value in said.items() if name in CHANGEABLE}
    if changes.get("device", options.device) != options.device:
        # Caps and rates belong to the device they were chosen for.
        options = replace(options, device_memory=None, host_memory=None, link_rate=None)
    if "spill" in changes and changes["spill"] is None:
        options = replace(options, spill_limit=None)
    # The schedule was fixed when the run began; a warm-up that `steps` implied stays what it was.
    options = replace(options, warmup=options.warmup_steps)
    return check_fit(replace(options, **changes))


def _checked(recorded: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What run.json may say of options, each checked as on a command line."""
    kinds, found = get_type_hints(Options), {}
    for option in ({field.name for field in fields(Options)} - FORGOTTEN) & recorded.keys():
        value, kind = recorded[option], kinds[option]
        whole_for_float = kind in (float, float | None) and type(value) is int
        try:
            if not (isinstance(value, kind) or whole_for_float) or (isinstance(value, bool) and kind != bool | None):
                raise argparse.ArgumentTypeError(f"{shown(value)} cannot be used")
            found[option] = value if value is None or isinstance(value, bool) else CHECKS[option](str(value))
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{folder / 'run.json'} was damaged or edited, its {option}: {error}; put it back, or "
                             "start another run with another --out") from error
    return found


def _settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, with paths that lead to the same place from everywhere."""
    said: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for name in _PATHS:
        if said.get(name) not in (None, "bytes", *STANDARD) and Path(said[name]).exists():
            said[name] = str(Path(said[name]).resolve())
    return said
