"""An engine of stress is one engine: all of its parts know the device that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.share import runtime_of
from asynctile.streams.gate import CLOSED
from tests.settle import until


@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_work_held_back_by_a_turn_goes_on_after_the_turn(tmp_path: Path, device: str) -> None:
    async with StressEngine(EngineSetup(device=device, spill=False, workers=3), tmp_path, watchdog=2.0) as engine:

        async def job() -> None:
            runtime = runtime_of(engine)
            turn, turns, stream = runtime.turn, runtime.life.turns, runtime.tiers.device.streams()[0]
            async with runtime_of(engine).exclusive():
                turns.begin(turn)
                turn.let(CLOSED)  # as if another share had all turns
                event = stream.enqueue((), int, ())
                runtime_of(engine).tiers.run_ahead.add(event)
                await until(lambda: stream.waiting)
                turns.end(turn)
                await runtime_of(engine).tiers.run_ahead.drain()

        await runtime_of(engine).call(job())
