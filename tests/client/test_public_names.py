"""The public names of the classes that users hold: exactly these, so a new name is a decision.

`dir`, completion and `help` show nothing else. Whether each name has a docstring is asked in test_docstrings.py; attributes of
an instance alone are described in the docstring of its class, which is asked here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asynctile import Engine, Events, Share
from asynctile.layers import GPT2, Server, Trainer
from tests.client.whole_face import CONFIG

SHARE = {
    "device", "interactive", "is_open", "link_rate", "name", "plays", "precision", "prefetch", "rates", "statistics", "weight",
}  # fmt: skip
#: By class: the names that the class has, and those that only an instance has.
NAMES: dict[type, tuple[set[str], set[str]]] = {
    Share: (SHARE, set()),
    Engine: (SHARE | {
        "aclose", "events", "is_traced", "open", "share", "shares", "start_trace", "stop_trace", "write_trace",
    }, set()),
    Events: ({"aclose"}, set()),
    GPT2: ({
        "companions", "create", "from_pretrained", "generate", "last_checkpoint", "logits", "loss", "name", "release",
        "save_pretrained", "serve", "state_dict", "step_count", "torn",
    }, {"config", "engine"}),
    Trainer: ({
        "clip_norm", "gemm_rate", "gradients", "load", "micro_batches", "recompute", "run", "save", "saved", "saving", "step",
        "step_count",
    }, {"data_state", "last_report", "model", "optimizer", "skipped_count", "update"}),
    Server: ({"aclose", "generate", "publish"}, set()),
}  # fmt: skip


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def undescribed(kind: type) -> set[str]:
    """The names of an instance alone that the docstring of its class does not describe, as `name: what it is`."""
    return {name for name in NAMES[kind][1] if not re.search(rf"\b{name}: ", kind.__doc__ or "")}


@pytest.fixture
async def instances() -> AsyncIterator[list[Any]]:
    """One of each class, in an open engine."""
    async with Engine("cpu", host_memory="32MiB") as engine, engine.share(host_memory="8MiB") as share:
        model = await GPT2.create(share, CONFIG)
        async with model.serve() as server:
            yield [engine, share, engine.events(), model, Trainer(model), server]


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_a_class_has_exactly_these_public_names(kind: type) -> None:
    assert public(kind) == NAMES[kind][0]


async def test_an_instance_has_exactly_these_public_names(instances: list[Any]) -> None:
    assert {type(one): public(one) for one in instances} == {kind: of_class | own for kind, (of_class, own) in NAMES.items()}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_the_names_of_an_instance_alone_are_described(kind: type) -> None:
    assert not undescribed(kind)
