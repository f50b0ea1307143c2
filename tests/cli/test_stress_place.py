"""An engine of stress is one engine: all of its parts know the device that it was given."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from asynctile.cli.stress.models import draw_recipe, draw_training_place
from asynctile.cli.stress.place import MOST_DEVICES, EngineSetup, StressEngine, draw_place
from asynctile.cli.stress.writer import write_program
from asynctile.share import runtime_of
from asynctile.streams.gate import CLOSED
from tests.settle import until


def test_several_devices_are_drawn_where_they_are_allowed_and_share_the_work_of_one_program() -> None:
    chance, drawn = random.Random(1), Counter[str]()
    work = write_program(chance)
    for _ in range(100):
        place = draw_place(chance, work.demand, devices=MOST_DEVICES)
        drawn[place.name] += 1
        assert work.over(place.devices, chance).program.devices == place.devices
        assert draw_place(chance, work.demand).devices == 1
        recipe = draw_recipe(chance)
        assert draw_training_place(chance, recipe).devices <= recipe.replicas
    assert drawn.keys() == {"cpu", "emulated", "emulated*2", "emulated*3"}


async def test_all_devices_of_an_engine_have_the_workers_and_the_cap_of_its_place(tmp_path: Path) -> None:
    place = EngineSetup(device="emulated", devices=3, device_memory=1 << 20, spill=False, workers=3)
    async with StressEngine(place, tmp_path) as engine:
        tiers, now = runtime_of(engine).tiers, engine.statistics()
        assert (place.kind, now.device, len(now.queues)) == ("emulated*3", "emulated*3", len({one.name for one in now.queues}))
        assert [device.threads for device in tiers.devices] == [3, 3, 3]
        assert [top.arena.cap for top in tiers.tops] == [1 << 20] * 3


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
