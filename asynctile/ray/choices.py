"""The options of a run on Ray: from names and values of a program to those of `asynctile train`, checked before Ray starts.

Imports nothing of Ray.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asynctile.cli.config_file import value_of
from asynctile.cli.nearest import nearest
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import RunFolder, existing_run

__all__ = ["as_typed", "checked", "most_workers"]

_TABLE = options_of(Options)
#: Options that Ray replaces: it numbers the nodes, and the workers of each start meet by themselves.
_OF_RAY = ("node", "join", "secret_file")
#: Options of one start of a process, of which a run on Ray may have several.
_OF_ONE_START = ("trace", "trace_steps")


def as_typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as if they had been typed. ValueError for a name or a value that `asynctile train` does not have."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "resume":
            found[name] = bool(value)
            continue
        if name in ("nodes", "ray"):
            raise ValueError(f"options set {name}; num_workers of the scaling_config says how many nodes there are, and "
                             "ray.init(address=...) where; leave it out")
        if name not in _TABLE:
            raise ValueError(f"options set {name!r}, which is not an option of `asynctile train`{nearest(name, _TABLE)}")
        try:
            if value is None and getattr(Options, name) is not None:
                raise ValueError(f"options set {name}: None is no value for it; leave it out")
            found[name] = value if value is None else value_of(name, _plain(value))
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"options set {name}: {error}") from error
    return found


def checked(given: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return the options of a run on at most `most` workers, with its device, and its folder as an absolute path.

    ValueError for options that no number of workers can have, and for a run's folder that `asynctile train` would refuse.
    """
    for name in _OF_RAY:
        if name in given:
            raise ValueError(f"{flag(name)} does not go with Ray, whose workers meet by themselves; leave it out")
    for name in _OF_ONE_START:
        if name in given:
            raise ValueError(f"{flag(name)} does not go with Ray, which may start a run several times; trace a run without Ray")
    typed = {name: value for name, value in given.items() if name not in ("ray", "resume")} | {"nodes": most}
    if given.get("resume"):
        folder = existing_run(typed)
        options = resumed_options(typed, folder.read_record()["options"], folder.path)
        out = folder.path
    else:
        options = new_options(typed)
        out = Path(options.out or "runs/" + time.strftime("%Y-%m-%d-%H%M%S"))
        if RunFolder.holds_run(out):
            raise ValueError(f"--out {out} already holds a run; resume it, or name another folder")
    if most > options.replicas:
        raise ValueError(f"{most} nodes need as many replicas, but --replicas is {options.replicas}; choose --replicas of at "
                         f"least {most}, a power of two that divides --batch-size, or fewer nodes")
    kept = {name: value for name, value in given.items() if name not in ("ray", "resume", "nodes")}
    limit = {} if options.max_time is None else {"max_time": options.max_time}  # perhaps from a file of options
    return {**kept, **limit, "device": options.device, "out": str(out.absolute())}


def most_workers(num_workers: int | tuple[int, int] | None) -> int:
    """Return the most workers that a ScalingConfig allows. ValueError for a number that starts none."""
    most = num_workers[1] if isinstance(num_workers, tuple) else num_workers
    if most is None or most < 1:
        raise ValueError(f"num_workers of the scaling_config is {num_workers}, expected at least 1 worker")
    return most


def _plain(value: Any) -> Any:
    """Return paths as text and several values as a list, as a file of options would have them."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
