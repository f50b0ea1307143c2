"""Which value of an option counts: its default, the file of --config, what a run that goes on remembers, what was typed; of
these the later one wins.

Covers `new_options` and `resumed_options`. What run.json may say is checked here as if it had been typed; where it is kept is
run_folder.py.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from asynctile.cli.config_file import read_config
from asynctile.cli.fitting import check_fit
from asynctile.cli.option import flag, shown_value, typed
from asynctile.cli.options import CHANGEABLE, CHECKS, CONSTANT, FORGOTTEN, Options
from asynctile.layers.gpt2_config import STANDARD
from asynctile.storage.input import shown

__all__ = ["new_options", "resumed_options"]

#: One of both is meant: what says one of them leaves aside what a file or a run says of the other.
_EITHER = (("steps", "epochs"), ("validation_data", "validation_share"))
#: What makes a learning rate's schedule another one.
_SCHEDULE = ("lr", "schedule", "min_lr", "warmup")
#: A path that is relative means another place when the run goes on from elsewhere.
_PATHS = ("data", "validation_data", "model", "tokenizer", "spill")


def new_options(given: Mapping[str, Any]) -> Options:
    """The options of a new run from those that were typed, with those of the file that --config names."""
    config, said = _sources(given)
    return check_fit(Options(**_over(config, said)))


def resumed_options(given: Mapping[str, Any], recorded: Mapping[str, Any], folder: Path) -> Options:
    """The options of a run that goes on: the recorded ones, with those of CHANGEABLE that were typed.

    A file of --config says only what the run does not remember; a warning names what else it says otherwise. Raises ValueError
    for one that was typed, may not change and differs, and for one that was recorded and could not have been typed.
    """
    config, said = _sources(given)
    found = _checked(recorded, folder)
    options = Options(**_over({name: value for name, value in config.items() if name in CHANGEABLE}, found))
    others = sorted(name for name, value in _beside(config, found).items()
                    if name not in said and value != getattr(options, name))
    if others:
        warnings.warn(f"--config {given['config']}: the run {folder} remembers its own {', '.join(others)}; what may change is "
                      "typed", stacklevel=2)  # fmt: skip
    for name, value in said.items():
        was = getattr(options, name)
        if name not in CHANGEABLE and value != was and not (name in _PATHS and _is_same_place(value, was)):
            raise ValueError(f"{typed(name, value)} differs from {shown_value(name, was)} in the run {folder}; leave "
                             f"{flag(name, value)} out, or start another run with another --out")
    changes = {name: value for name, value in said.items() if name in CHANGEABLE}
    if changes.get("device", options.device) != options.device:
        # Caps and rates belong to the device they were chosen for.
        options = replace(options, device_memory=None, host_memory=None, link_rate=None)
    if "spill" in changes and changes["spill"] is None:
        options = replace(options, spill_limit=None)
    if options.epochs is None:
        # The schedule was fixed when the run began; a warm-up that `steps` implied stays what it was.
        options = replace(options, warmup=options.warmup_steps)
    elif "steps" in changes:  # the run ended before it knew how many steps its epochs are
        options = replace(options, epochs=None)
    if changes.get("schedule") == CONSTANT:
        options = replace(options, min_lr=None)
    if options.warmup is not None and "warmup" not in changes and changes.get("steps", options.warmup) < options.warmup:
        raise ValueError(f"--steps {changes['steps']} ends within the warm-up of {options.warmup} steps that the run {folder} "
                         "began with; choose at least as many")
    is_new = any(name in changes and changes[name] != getattr(options, name) for name in _SCHEDULE)
    options = replace(options, **changes)
    if is_new and "decay_steps" not in changes:  # it ends with the run, where one that was begun with ends where it was to
        options = replace(options, decay_steps=None if options.epochs is not None else options.steps)
    return check_fit(options)


def _sources(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file of --config says, and what was typed. ValueError if one of them says two things that exclude each other."""
    said = _settled({name: value for name, value in given.items() if name != "config"})
    config = _settled(read_config(given["config"])) if "config" in given else {}
    for source, whence in ((config, f"--config {given.get('config')}: "), (said, "")):
        for one, other in _EITHER:
            if source.get(one) is not None and source.get(other) is not None:
                both = f"{typed(one, source[one])} and {typed(other, source[other])}"
                raise ValueError(f"{whence}{both} exclude each other; leave one of them out")
    return config, said


def _over(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where they say the same thing `higher`."""
    return {**_beside(lower, higher), **higher}


def _beside(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` without what `higher` says in the other of two ways."""
    aside = {two[1 - n] for two in _EITHER for n in range(2) if higher.get(two[n]) is not None}
    return {name: value for name, value in lower.items() if name not in aside}


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


def _is_same_place(one: str | None, other: str | None) -> bool:
    """Whether two paths lead to one file or folder, by links or as they are written."""
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, with paths that lead to the same place from everywhere. Links keep their names, which say what is read:
    what they lead to may have another, as in caches.
    """
    said: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for name in _PATHS:
        if said.get(name) not in (None, "bytes", *STANDARD) and Path(said[name]).exists():
            said[name] = str(Path(said[name]).absolute())
    return said
