"""A run after another program begins where that one has left the tiles: same bits, played like all others, counted whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile import DeviceError, Engine
from asynctile.execute import space
from asynctile.layers import Trainer
from asynctile.schedule.schedule import Kind
from asynctile.schedule.start import Start
from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES, PLACES, SHORT, by_coroutines, played, training
from tests.execute.traps import set_trap
from tests.inside_engine import schedule_of
from tests.laws import covering
from tests.layers.training import assert_same_tensors, states_of

UNDER_A_CAP = PLACES["under a cap"]
MOVED = ("uploaded_bytes", "downloaded_bytes", "spill_read_bytes", "spill_written_bytes")


def over_a_disk(folder: Path) -> dict[str, Any]:
    """Return options under which tiles come and go on the device and in RAM."""
    return {**UNDER_A_CAP, "host_memory": SHORT.config.states_nbytes // 2, "spill": folder}


async def validates(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.model.loss(*BATCHES[5])


async def writes(engine: Engine, trainer: Trainer, folder: Path) -> None:
    assert len([token async for token in trainer.model.generate([1, 2], max_new_tokens=3, seed=1)]) == 3


async def saves(engine: Engine, trainer: Trainer, folder: Path) -> None:
    await trainer.save(folder / f"step {trainer.step_count}")


async def fails(engine: Engine, trainer: Trainer, folder: Path) -> None:
    trap = set_trap(engine, "gelu")
    trap.spring_at(2)
    with pytest.raises(DeviceError, match="before it changed the model"):
        await trainer.step(*BATCHES[5])
    assert trap.has_sprung


async def is_cancelled(engine: Engine, trainer: Trainer, folder: Path) -> None:
    step = asyncio.create_task(trainer.step(*BATCHES[trainer.step_count]))
    for _ in range(3):
        await runtime_of(engine).call(asyncio.sleep(0))
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)  # behind its first update, it counts


BETWEEN = {
    "a validation": validates, "a failed step": fails, "a cancelled step": is_cancelled, "a text": writes, "a save": saves,
}  # fmt: skip


@pytest.mark.parametrize(
    ("happens", "disk"), covering(BETWEEN, {"device over RAM over a disk": True, "device over RAM": False}, few=3)
)
async def test_steps_with_other_work_between_have_the_same_bits_and_are_played(
    happens: Callable[[Engine, Trainer, Path], Awaitable[None]], disk: bool, tmp_path: Path
) -> None:
    place = over_a_disk(tmp_path) if disk else UNDER_A_CAP
    async with training(place) as (engine, trainer):
        flags = await played(trainer, 0, 1)
        while trainer.step_count < 4:
            await happens(engine, trainer, tmp_path)
            flags += await played(trainer, trainer.step_count)
        flags += await played(trainer, *range(trainer.step_count, 5))
        assert flags[0] is False and all(flags[1:])
        assert_same_tensors(await states_of(trainer), await by_coroutines(5))


async def test_a_step_after_a_validation_reports_every_byte_that_moves_for_it(tmp_path: Path) -> None:
    async with training(over_a_disk(tmp_path)) as (engine, trainer):
        await played(trainer, 0, 1)
        for number in (2, 3):
            await trainer.model.loss(*BATCHES[5])
            before = engine.statistics()
            report = await trainer.step(*BATCHES[number])
            after = engine.statistics()
            assert not schedule_of(engine).repeats
            assert [getattr(report, name) for name in MOVED] == [getattr(after, name) - getattr(before, name) for name in MOVED]
            up = sum(entry.nbytes for entry in schedule_of(engine).entries if entry.kind is Kind.UPLOAD)
            assert report.uploaded_bytes == up


async def test_behind_a_step_from_elsewhere_the_next_step_moves_the_usual_bytes(tmp_path: Path) -> None:
    async with training(over_a_disk(tmp_path)) as (engine, trainer):
        usual = [await trainer.step(*BATCHES[number]) for number in range(3)][-1]
        await trainer.model.loss(*BATCHES[5])
        await played(trainer, 3)
        found = await trainer.step(*BATCHES[4])
        assert found.played and schedule_of(engine).repeats
        assert [getattr(found, name) for name in MOVED] == [getattr(usual, name) for name in MOVED]


async def test_a_start_that_comes_again_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[Start] = []
    arrive = space.arrive

    def counted(steady: Any, where: Any, start: Start) -> Any:
        decided.append(start)
        return arrive(steady, where, start)

    monkeypatch.setattr(space, "arrive", counted)
    async with training(UNDER_A_CAP) as (_, trainer):
        await played(trainer, 0, 1)
        assert len(decided) == 1
        for number in range(2, 5):
            await trainer.model.loss(*BATCHES[5])
            await played(trainer, number)
        assert len(decided) == 3 and len(set(decided)) == 3


async def test_where_everything_stays_no_program_begins_elsewhere_than_at_its_seam() -> None:
    async with training(PLACES["resident"]) as (engine, trainer):
        await played(trainer, 0, 1)
        await trainer.model.loss(*BATCHES[5])
        before = engine.statistics()
        assert await played(trainer, 2) == [True]
        assert schedule_of(engine).repeats
        inputs = sum(tile.nbytes for tile in schedule_of(engine).program.inputs.values())
        assert engine.statistics().uploaded_bytes - before.uploaded_bytes <= inputs
