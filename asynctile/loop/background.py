"""Tasks on the device's loop whose parent is the engine, such as a save behind training: none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """`spawn` tasks; `end` waits for those that still run. All of it on the device's loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_over:
            task.cancel()
        return task

    def cancel(self) -> None:
        """Break off what runs, and whatever is spawned from now on."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def end(self) -> Exception | None:
        """Wait for the tasks, also for those that come meanwhile; the first error among them."""
        failed: Exception | None = None
        while self._tasks:
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
            failed = failed or next((result for result in results if isinstance(result, Exception)), None)
        return failed
