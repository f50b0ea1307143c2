"""Background tasks on the device's loop, such as a save behind training. The engine is their parent; none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """The engine's background tasks: `spawn` starts one, `end` waits for all. Use it on the device's loop only."""

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
        """Cancel the running tasks, and every task that is spawned from now on."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def end(self) -> Exception | None:
        """Wait for all tasks, including those spawned meanwhile; return the first error among them, or None."""
        failed: Exception | None = None
        while self._tasks:
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
            failed = failed or next((result for result in results if isinstance(result, Exception)), None)
        return failed
