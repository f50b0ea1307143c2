"""Tasks on the caller's loop whose parent is the engine, such as a save behind training: none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """`spawn` tasks; `end` waits for those that still run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self, *, cancel: bool) -> Exception | None:
        """Wait for the tasks, or cancel them first; the first error among them."""
        tasks = list(self._tasks)
        for task in tasks:
            if cancel:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return next((result for result in results if isinstance(result, Exception)), None)
