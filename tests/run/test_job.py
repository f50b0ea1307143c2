"""A job that is broken off and goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynctile import Engine
from asynctile.ops import fill
from asynctile.program.needs import demand_of
from asynctile.run.stage import Stage
from tests.by_hand import NBYTES, prepared, program_of, standing


async def test_an_entry_that_was_enqueued_is_counted_though_the_prefetch_behind_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles = standing(*"abc")
    program = program_of(*(fill(tile, float(index)) for index, tile in enumerate(tiles)))
    step, waiting = Stage.step, asyncio.Event()

    async def held_up(stage: Stage, index: int) -> None:
        if index == 1 and not waiting.is_set():
            waiting.set()
            await asyncio.get_running_loop().create_future()
        await step(stage, index)

    monkeypatch.setattr(Stage, "step", held_up)
    async with Engine("emulated", device_memory=3 * NBYTES) as engine:
        await prepared(engine, program, tiles)

        async def broken_off() -> Any:
            async with engine.exclusive():
                job = await engine.start(program, demand_of([program], tiles), {})
                first = asyncio.ensure_future(job.finish())
                await waiting.wait()
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                issued = job.issued
                await job.finish()
                return issued

        assert await engine.call(broken_off()) == engine.statistics().operations - 1 == 2, "no entry ran twice"
