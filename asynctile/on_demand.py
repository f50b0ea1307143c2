"""The names of a package whose modules are imported when one of their names is asked for: `import asynctile` itself is light.

Covers `on_demand`, which makes the `__getattr__` and `__dir__` of such a package (PEP 562). Type checkers read its imports
under TYPE_CHECKING instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_demand"]


def on_demand(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. places: by public name, the module of it and its name there: "a.b:Name"."""
    there = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, inner = places[name].partition(":")
        there[name] = found = getattr(import_module(module), inner)
        return found

    return get, lambda: sorted({*there, *places})
