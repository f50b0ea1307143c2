"""Where the value of an option comes from.

When an option is set in several places, the last of these wins: its default, the --config file, the options that a resumed run
remembers, the command line. Covers `new_options` and `resumed_options`, which also checks the options in run.json as if they
had been typed. run_folder.py says where run.json is kept.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from asynctile.cli.config_file import read_config
from asynctile.cli.fitting import check_fit
from asynctile.cli.option import flag, shown_value, typed
from asynctile.cli.options import CHANGEABLE, CHECKS, CONSTANT, FORGOTTEN, REPEATABLE, Options
from asynctile.layers.gpt2.config import STANDARD
from asynctile.storage.input import shown

__all__ = ["new_options", "resumed_options"]

#: Pairs of which one option replaces the other. A source that sets one of a pair overrides both in a weaker source.
_EITHER = (("steps", "epochs"), ("validation_data", "validation_share"))
#: The option that names the base of an adapter, which may be moved: the checkpoint knows its weights.
_BASE = "model"
#: Options that change the learning-rate schedule.
_SCHEDULE = ("lr", "schedule", "min_lr", "warmup")
#: Options that are paths. A relative path would mean another place when the run is resumed from another folder.
_PATHS = ("data", "validation_data", "model", "tokenizer", "chat_template", "spill")


def new_options(given: Mapping[str, Any]) -> Options:
    """Return the options of a new run: the typed ones over those of the --config file. ValueError if they do not fit together.
    """
    config, said = _sources(given)
    return check_fit(Options(**_over(config, said)))


def resumed_options(given: Mapping[str, Any], recorded: Mapping[str, Any], folder: Path) -> Options:
    """Return the options of a resumed run: the recorded ones, with the typed ones of CHANGEABLE.

    A --config file sets only options that the run does not remember; a warning names those that it sets differently. Raises
    ValueError for a typed option that differs and may not change, and for a recorded one that could not have been typed.
    """
    config, said = _sources(given)
    found = _checked(recorded, folder)
    options = Options(**_over({name: value for name, value in config.items() if name in CHANGEABLE}, found))
    others = sorted(name for name, value in _beside(config, found).items()
                    if name not in said and value != getattr(options, name))
    if others:
        warnings.warn(f"--config {given['config']}: the run {folder} keeps its own {', '.join(others)}; to change an option, "
                      "type it", stacklevel=2)  # fmt: skip
    changeable = CHANGEABLE if options.lora is None else {*CHANGEABLE, _BASE}
    for name, value in said.items():
        was = getattr(options, name)
        if name not in changeable and value != was and not (name in _PATHS and _is_same_place(value, was)):
            raise ValueError(f"{typed(name, value)} differs from {shown_value(name, was)} in the run {folder} and cannot be "
                             f"changed; leave {flag(name, value)} out, or start a new run with another --out")
    changes = {name: value for name, value in said.items() if name in changeable}
    if changes.get("device", options.device) != options.device:
        # Caps and rates were chosen for the old device.
        options = replace(options, device_memory=None, host_memory=None, link_rate=None)
    if "spill" in changes and changes["spill"] is None:
        options = replace(options, spill_limit=None)
    if options.epochs is None:
        # The schedule was fixed when the run began, and so was a warm-up that followed from `steps`.
        options = replace(options, warmup=options.warmup_steps)
    elif "steps" in changes:  # the run stopped before it could turn its epochs into steps
        options = replace(options, epochs=None)
    if changes.get("schedule") == CONSTANT:
        options = replace(options, min_lr=None)
    if options.warmup is not None and "warmup" not in changes and changes.get("steps", options.warmup) < options.warmup:
        raise ValueError(f"--steps {changes['steps']} is less than the warm-up of {options.warmup} steps of the run {folder}; "
                         "choose at least as many steps")
    is_new = any(name in changes and changes[name] != getattr(options, name) for name in _SCHEDULE)
    options = replace(options, **changes)
    if is_new and "decay_steps" not in changes:  # a new schedule ends with the run; the schedule it began with keeps its end
        options = replace(options, decay_steps=None if options.epochs is not None else options.steps)
    return check_fit(options)


def _sources(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the --config file and the typed ones; ValueError if either sets two that exclude each other."""
    said = _settled({name: value for name, value in given.items() if name != "config"})
    config = _settled(read_config(given["config"])) if "config" in given else {}
    for source, whence in ((config, f"--config {given.get('config')}: "), (said, "")):
        for one, other in _EITHER:
            if source.get(one) is not None and source.get(other) is not None:
                both = f"{typed(one, source[one])} and {typed(other, source[other])}"
                raise ValueError(f"{whence}{both} exclude each other; leave one of them out")
    return config, said


def _over(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings as one; where both set the same thing, `higher` wins."""
    return {**_beside(lower, higher), **higher}


def _beside(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    """Return `lower` without the options that `higher` replaces by the other one of a pair."""
    aside = {two[1 - n] for two in _EITHER for n in range(2) if higher.get(two[n]) is not None}
    return {name: value for name, value in lower.items() if name not in aside}


def _checked(recorded: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of run.json, each checked as on a command line."""
    kinds, found = get_type_hints(Options), dict[str, Any]()
    for option in ({field.name for field in fields(Options)} - FORGOTTEN) & recorded.keys():
        value, kind = recorded[option], str if option in REPEATABLE else kinds[option]
        whole_for_float = kind in (float, float | None) and type(value) is int
        try:
            if option in REPEATABLE:
                found[option] = tuple(_texts(option, value))
                continue
            if not (isinstance(value, kind) or whole_for_float) or (isinstance(value, bool) and kind != bool | None):
                raise argparse.ArgumentTypeError(f"{shown(value)} cannot be used")
            found[option] = value if value is None or isinstance(value, bool) else CHECKS[option](str(value))
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{folder / 'run.json'} was damaged or edited: {option}: {error}; restore the file, or "
                             "start a new run with another --out") from error
    return found


def _texts(option: str, value: Any) -> Iterator[Any]:
    """Return the checked values of an option that may be typed several times."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError(f"{shown(value)} cannot be used")
    return (CHECKS[option](item) for item in value)


def _is_same_place(one: str | None, other: str | None) -> bool:
    """Return whether two paths lead to the same file or folder, directly or through links."""
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed options, with paths made absolute so that they lead to the same place from everywhere.

    Links are not resolved: the name of a link says what it is, and its target may have another name, as in caches.
    """
    said: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for name in _PATHS:
        if said.get(name) not in (None, "bytes", *STANDARD) and Path(said[name]).exists():
            said[name] = str(Path(said[name]).absolute())
    return said
