"""Every public name has a docstring, which `help(Engine)` shows. Whether the text is good is for readers to judge."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import asynctile
import asynctile.layers

FACES = (asynctile, asynctile.layers)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that are asynctile's own, inherited ones included."""
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] == "asynctile":
            for name, found in vars(base).items():
                function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
                if not name.startswith("_") and inspect.isfunction(function):
                    yield f"{owner.__name__}.{name}", function


def speechless() -> Iterator[str]:
    for face in FACES:
        for name in face.__all__:
            found = getattr(face, name)
            if (inspect.isclass(found) or inspect.isfunction(found)) and not (found.__doc__ or "").strip():
                yield name
            if inspect.isclass(found):
                yield from (inner for inner, function in members(found) if not (function.__doc__ or "").strip())


def test_everything_public_has_a_docstring() -> None:
    assert list(speechless()) == []


def test_no_dataclass_has_a_generated_docstring() -> None:
    """A dataclass without a docstring gets its signature as one, which would pass for a docstring."""
    classes = [getattr(face, name) for face in FACES for name in face.__all__ if inspect.isclass(getattr(face, name))]
    assert classes
    assert [found.__name__ for found in classes if (found.__doc__ or "").startswith(f"{found.__name__}(")] == []


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_all_lists_exactly_the_names_that_are_there(face: Any) -> None:
    """`dir` knows names whose modules are not loaded yet."""
    there = {name for name in dir(face) if not name.startswith("_") and not inspect.ismodule(getattr(face, name))}
    assert there - {"TYPE_CHECKING"} == set(face.__all__)
