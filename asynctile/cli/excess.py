"""Caps above the memory that is here: a warning, and no refusal, because swap may hold them and limits may be raised."""

from __future__ import annotations

import warnings

from asynctile.cli.option import flag
from asynctile.cli.options import Options
from asynctile.device.names import names_of
from asynctile.storage.limits import found
from asynctile.storage.sizes import format_size

__all__ = ["warn_of_excess"]


def warn_of_excess(options: Options) -> None:
    """Warn of each cap on RAM that is above the machine's RAM, or above a limit of this process on memory."""
    caps = {"host_memory": (options.host_memory, 1)}
    devices = names_of(options.device)
    if devices[0] == "emulated":  # their memory is RAM
        caps["device_memory"] = options.device_memory, len(devices)
    limit = min(found(), key=lambda limit: limit.nbytes)
    for name, (cap, count) in caps.items():
        if cap is not None and cap * count > limit.nbytes:
            each = f" on each of {count} devices" if count > 1 else ""
            warnings.warn(f"{flag(name)} of {format_size(cap)}{each} is above the {limit.what} of {format_size(limit.nbytes)} "
                          "here: a run that fills it swaps or is killed; choose less, or add a disk with --spill",
                          stacklevel=2)  # fmt: skip
