"""`import asynctile` imports none of the modules that compute; a name is loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import asynctile
import asynctile.layers
from asynctile.on_demand import on_demand
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("face", [asynctile, asynctile.layers], ids=lambda face: face.__name__)
def test_an_unknown_name_raises_pythons_usual_error(face: object) -> None:
    with pytest.raises(AttributeError, match=r"module 'asynctile(\.layers)?' has no attribute 'Nothing'"):
        face.Nothing  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(face, "Nothing")


def test_a_name_is_imported_once_and_then_stands_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = type(sys)("package_of_a_test")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    package.__getattr__, package.__dir__ = on_demand(package.__name__, {"Path": "pathlib:Path"})  # type: ignore[method-assign]
    assert "Path" not in vars(package) and "Path" in dir(package)
    assert package.Path is Path and vars(package)["Path"] is Path


def test_importing_the_public_modules_imports_nothing_heavy_and_using_them_does() -> None:
    script = """
import sys, asynctile, asynctile.layers
assert not {"numpy", "numba", "scipy", "rich", "asyncio"} & set(sys.modules), sorted(sys.modules)
from asynctile.layers import *
from asynctile import *
assert Engine.__module__ == "asynctile.engine" and issubclass(GPT2, asynctile.layers.Model)
assert "numpy" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
