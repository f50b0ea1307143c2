"""The public names of the objects that users hold: exactly those that the API page shows, so a new name is a decision.

`dir`, completion and `help` show nothing else. tests/docs/test_reference.py asks the same of the classes. test_docstrings.py
asks whether each name has a docstring. Attributes of an instance alone are described in the docstring of its class: asked here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asynctile_docs.public import SHOWN

from asynctile import Engine, Events, Share
from asynctile.layers import GPT2, Model, Server, Trainer
from tests.client.whole_face import CONFIG

KINDS: dict[type, str] = {
    Share: "asynctile.Share", Engine: "asynctile.Engine", Events: "asynctile.Events", GPT2: "asynctile.layers.GPT2",
    Trainer: "asynctile.layers.Trainer", Server: "asynctile.layers.Server",
}  # fmt: skip
#: The class of GPT2's own names, of which `instances` has no object.
BASES = {Model: "asynctile.layers.Model"}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def shown(kind: type) -> set[str]:
    """The names that the API page shows of a class and its bases."""
    faces = KINDS | BASES
    return {name for base in kind.__mro__ if base in faces for name in SHOWN[faces[base]]}


def undescribed(kind: type) -> set[str]:
    """The names of an instance alone that no docstring of its class or a base describes, as `name: what it is`."""
    said = "\n".join(base.__doc__ or "" for base in kind.__mro__)
    return {name for name in shown(kind) - public(kind) if not re.search(rf"\b{name}: ", said)}


@pytest.fixture
async def instances() -> AsyncIterator[list[Any]]:
    """One of each class, in an open engine."""
    async with Engine("cpu", host_memory="32MiB") as engine, engine.share(host_memory="8MiB") as share:
        model = await GPT2.create(share, CONFIG)
        async with model.serve() as server:
            yield [engine, share, engine.events(), model, Trainer(model), server]


async def test_an_instance_has_exactly_the_public_names_that_the_api_page_shows(instances: list[Any]) -> None:
    assert {type(one): public(one) for one in instances} == {kind: shown(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_names_of_an_instance_alone_are_described(kind: type) -> None:
    assert not undescribed(kind)
