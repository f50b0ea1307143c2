"""What the package of another commit calls differently, under the names that benchmarks of this tree use.

For `--against` (bench/against.py) alone. Goes when nobody compares with a commit before asynctile/ had rooms any more.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

#: Modules that have moved since: their name now, and before.
MOVED = {
    "asynctile.program.operation": "asynctile.operation",
    "asynctile.program.program": "asynctile.program",
}


def add_missing_names() -> None:
    """Let names of today be found where the package that is imported has them elsewhere; nothing in one of today."""
    for now, before in MOVED.items():
        if _missing(now):
            sys.modules[now] = importlib.import_module(before)
    if _missing("asynctile.program.needs"):
        needs = ModuleType("asynctile.program.needs")
        needs.demand_of = importlib.import_module("asynctile.demand").measure  # type: ignore[attr-defined]
        sys.modules[needs.__name__] = needs
    if not _missing("asynctile.handle"):  # there a program's tiles are a class of their own
        tile = importlib.import_module("asynctile.storage.tile")
        tile.Tile = importlib.import_module("asynctile.handle").Handle  # type: ignore[attr-defined]
    engine = importlib.import_module("asynctile.engine").Engine
    if not hasattr(engine, "kernels"):
        engine.kernels = property(lambda self: self._device.kernels)


def _missing(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return True
    return False
