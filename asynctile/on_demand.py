"""Lazy imports: a package imports a module when one of its names is first used, so that `import asynctile` is fast.

Covers `on_demand`, which makes the `__getattr__` and `__dir__` of such a package (PEP 562). Type checkers read the package's
imports under TYPE_CHECKING instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_demand"]


def on_demand(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. places: by public name, its module and its name there, as "a.b:Name"."""
    there = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, inner = places[name].partition(":")
        there[name] = found = getattr(import_module(module), inner)
        return found

    return get, lambda: sorted({*there, *places})
