"""Names of another commit's package, mapped to the names that this tree's benchmarks use.

Only for `--against` (bench/against.py). Remove this file when nobody compares with commits from before shares had runtimes.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

#: Modules that have moved: their name now, and their old name.
MOVED = {
    "asynctile.program.operation": "asynctile.operation",
    "asynctile.program.program": "asynctile.program",
}


def add_missing_names() -> None:
    """Make today's names available in a package that has them elsewhere. Changes nothing in a current package."""
    # An editable install finds the modules that the other tree lacks, in the tree that is installed.
    finders = sys.meta_path[:]
    sys.meta_path[:] = [finder for finder in finders if "__editable__" not in getattr(finder, "__module__", "")]
    if _missing("asynctile"):  # the folder is no checkout: against.py says so, with the package that is imported in its place
        sys.meta_path[:] = finders
        return
    for now, before in MOVED.items():
        if _missing(now):
            sys.modules[now] = importlib.import_module(before)
    if _missing("asynctile.program.needs"):
        needs = ModuleType("asynctile.program.needs")
        needs.demand_of = importlib.import_module("asynctile.demand").measure  # type: ignore[attr-defined]
        sys.modules[needs.__name__] = needs
    if not _missing("asynctile.handle"):  # in that package a program's tiles have a class of their own
        tile = importlib.import_module("asynctile.storage.tile")
        tile.Tile = importlib.import_module("asynctile.handle").Handle  # type: ignore[attr-defined]
    if _missing("asynctile.runtime"):  # there a share and a model have no inside of their own
        _module("asynctile.share").runtime_of = _Inside
        _module("asynctile.layers.model").model_state_of = lambda model: model


class _Inside:
    """The inside of a share from before there were runtimes: the share itself."""

    def __init__(self, share: Any) -> None:
        self._share, self.device = share, share._device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._share, name)


def _module(name: str) -> Any:
    """Return a module by name; an empty new one if there is none."""
    if _missing(name):
        sys.modules[name] = ModuleType(name)
    return importlib.import_module(name)


def _missing(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return True
    return False
