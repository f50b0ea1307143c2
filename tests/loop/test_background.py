"""Tasks whose parent is the engine: the end waits for all of them, and nothing begins after they were stopped."""

import asyncio

from asynctile.loop.background import Background
from tests.settle import turns


async def test_the_end_also_waits_for_tasks_spawned_meanwhile_and_raises_the_first_error():
    background, seen = Background(), []

    async def child():
        await turns()
        seen.append("child")

    async def parent():
        await asyncio.sleep(0)
        background.spawn(child())
        raise KeyError("parent")

    background.spawn(parent())
    failed = await background.end()
    assert isinstance(failed, KeyError)
    assert seen == ["child"]


async def test_a_task_spawned_after_the_background_was_stopped_is_stopped_as_well():
    background = Background()
    background.cancel()
    task = background.spawn(asyncio.Event().wait())
    assert await background.end() is None
    assert task.cancelled()
