"""Small files from a coroutine, and work in threads, without blocking the loop.

Covers `load_json`, `store_json` and `store_file`, which write with aiofiles, and `finish`. They keep the rules of `folder.py`
(what is read as JSON, how a file gets its name), which does the same for plain functions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiofiles

from asynctile.storage.folder import encode_json, read_json
from asynctile.storage.inside import Folder, part_of

__all__ = ["finish", "load_json", "store_file", "store_json"]

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even if cancelled, then raise CancelledError unless the work itself failed.

    A thread cannot be stopped. If its caller left, the thread could still create a file in a folder that is being removed, or
    rename a file that the caller has given up.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and (task.cancelled() or task.exception() is None):
        raise asyncio.CancelledError
    return task.result()


async def load_json(path: str | os.PathLike[str], *, finite: bool = True, executor: Executor | None = None) -> Any:
    """Read a JSON file as `folder.read_json` does, in a thread of `executor` (None: the loop's default executor)."""
    return await _run(executor, read_json, path, finite=finite)


async def store_json(path: str | os.PathLike[str], obj: Any, *, executor: Executor | None = None) -> None:
    """Write `obj` as JSON, completely or not at all. TypeError for objects that JSON cannot hold, OSError if the disk fails."""
    await store_file(path, encode_json(obj), executor=executor)


async def store_file(path: str | os.PathLike[str], content: bytes, *, executor: Executor | None = None) -> None:
    """Write a small file as `folder.write_file` does. Once begun, the write finishes before a cancellation is raised."""
    await finish(_store(Path(path), content, executor))


async def _store(path: Path, content: bytes, executor: Executor | None) -> None:
    with await _run(executor, Folder.open, path.parent) as parent:
        part = part_of(path.name)
        try:
            async with aiofiles.open(part, "wb", opener=lambda name, _: parent.new_file(name), executor=executor) as file:
                await file.write(content)
                await file.flush()
                await _run(executor, os.fsync, file.fileno())
            await _run(executor, parent.put_in_place, part, path.name)
        except BaseException:
            await _run(executor, parent.remove, part)
            raise


async def _run(executor: Executor | None, work: Callable[..., T], *args: Any, **more: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, partial(work, *args, **more))
