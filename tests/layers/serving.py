"""Requests to a server as the tests of this folder make them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from asynctile.layers import GPT2
from asynctile.layers.cache import KVCache
from asynctile.layers.model import model_state_of
from asynctile.layers.pages import Pages
from asynctile.layers.requests import Request, Token
from asynctile.layers.server import Server
from asynctile.share import Share, runtime_of
from tests.layers.shapes import shape

#: Groups of heads, tiles of K and of the vocabulary, five pages a text.
SHAPE = shape(20, 2, 35, 40, tile=12, batch=2, length=17, n_layer=1)
#: Prompts of several lengths, one longer than a run has rows.
PROMPTS = ([1, 2, 3], [4], list(range(30)), [7, 7, 7, 7, 7, 7, 7, 7], [34, 0])


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], set[bytes]]:
    """Return the logits that each later token is chosen from, all bits seen, by the tokens before it."""
    seen: dict[tuple[int, ...], set[bytes]] = {}
    choose = Request.choose

    def watch(request: Request, logits: Any) -> Token:
        seen.setdefault(tuple(request.tokens), set()).add(logits.tobytes())
        return choose(request, logits)

    monkeypatch.setattr(Request, "choose", watch)
    return seen


async def text(tokens: AsyncGenerator[Token], most: int | None = None) -> list[int]:
    """Return the ids of a text; with `most`, break it off after that many tokens."""
    found = []
    async with aclosing(tokens):
        async for token in tokens:
            found.append(token.id)
            if len(found) == most:
                break
    return found


async def texts(server: Server, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    """Return all texts, generated at the same time, each with its own seed."""
    wishes = enumerate(prompts)
    return await asyncio.gather(*(text(server.generate(prompt, seed=seed, **options)) for seed, prompt in wishes))


async def one_by_one(server: Server, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    return [await text(server.generate(prompt, seed=seed, **options)) for seed, prompt in enumerate(prompts)]


def asked_of(model: GPT2) -> int:
    """Return how many requests to a model, on its own share, are not over: those that wait and those that are computed."""
    return model_state_of(model).readers


def page_nbytes_of(model: GPT2) -> int:
    """Return the bytes of a page of the model's cache."""
    return KVCache(model_state_of(model).parameters).page_nbytes


def pages_made(monkeypatch: pytest.MonkeyPatch) -> list[Pages]:
    """Return a list that gets the pages of every cache made from now on."""
    made: list[Pages] = []

    def noted(*args: int) -> Pages:
        made.append(Pages(*args))
        return made[-1]

    monkeypatch.setattr("asynctile.layers.caches.Pages", noted)
    return made


def held_by(model: GPT2) -> int:
    """Return the bytes of tiles on the engine of a model."""
    return model.engine.statistics().host_used_bytes


async def hold(engine: Share) -> None:
    """Hold the engine for ever, as a running program would."""
    async with runtime_of(engine).exclusive():
        await asyncio.Event().wait()
