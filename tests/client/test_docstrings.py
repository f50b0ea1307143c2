"""Everything that the public face names says what it is: what `help(Engine)` shows. What it says is for readers to judge."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import asynctile
import asynctile.layers

FACES = (asynctile, asynctile.layers)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class that are asynctile's own, inherited ones with it."""
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


def test_what_a_dataclass_is_given_for_a_docstring_is_none() -> None:
    """Without one of its own it has its signature, which would pass for one."""
    classes = [getattr(face, name) for face in FACES for name in face.__all__ if inspect.isclass(getattr(face, name))]
    assert classes
    assert [found.__name__ for found in classes if (found.__doc__ or "").startswith(f"{found.__name__}(")] == []


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_what_is_named_is_there_and_what_is_there_is_named(face: Any) -> None:
    """`dir` knows names whose modules nobody has asked for yet."""
    there = {name for name in dir(face) if not name.startswith("_") and not inspect.ismodule(getattr(face, name))}
    assert there - {"Model", "TYPE_CHECKING"} == set(face.__all__)
