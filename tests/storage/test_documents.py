"""Documents written from a coroutine: the bytes of the plain functions, a loop that goes on, and work that ends once begun."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from asynctile.storage.documents import finish, load_json, store_json
from asynctile.storage.folder import read_json, write_json
from tests.settle import HANG_S

DOCUMENT = {"lr": 0.1 + 0.2, "text": "žluť", "none": None}


async def test_both_ways_write_the_same_bytes(tmp_path: Path) -> None:
    await store_json(tmp_path / "a.json", DOCUMENT)
    write_json(tmp_path / "b.json", DOCUMENT)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert await load_json(tmp_path / "b.json") == read_json(tmp_path / "a.json") == DOCUMENT
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


async def test_a_document_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_json(tmp_path / "a.json", [1])
    with pytest.raises(TypeError):
        await store_json(tmp_path / "a.json", object())

    def fail(*_: object, **folders: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        await store_json(tmp_path / "a.json", [2])
    assert os.listdir(tmp_path) == ["a.json"]
    assert await load_json(tmp_path / "a.json") == [1]


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_document_is_still_written_after_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancels: int
) -> None:
    """The loop also goes on while the disk is slow."""
    go, reached, fsync = threading.Event(), asyncio.Event(), os.fsync
    loop = asyncio.get_running_loop()

    def slow(fd: int) -> None:
        loop.call_soon_threadsafe(reached.set)
        assert go.wait(HANG_S)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    task = asyncio.create_task(store_json(tmp_path / "a.json", DOCUMENT))
    await reached.wait()
    for _ in range(cancels):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == ["a.json"]
    assert await load_json(tmp_path / "a.json") == DOCUMENT


async def test_an_error_is_raised_even_after_a_cancellation() -> None:
    go = asyncio.Event()

    async def broken() -> Any:
        await go.wait()
        raise KeyError("broken")

    task = asyncio.create_task(finish(broken()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(KeyError):
        await task
