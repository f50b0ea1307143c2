"""Played steps between other work of an engine: the results are those of coroutines, and nothing is left behind.

tests/execute/workers/test_player.py tests the workers alone, test_scheduled_job.py how a step is left at its marks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine, TornModelError
from asynctile.layers import Trainer
from asynctile.ops import fill
from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES, PLACES, SHORT, a_weight, breaks, launch_as, played, training
from tests.inside_engine import schedule_of
from tests.laws import law
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, lively, states_of
from tests.settle import HANG_S, settle


async def test_a_step_waits_for_an_operation_launched_by_hand_before_it(place: dict[str, Any]) -> None:
    found = []
    for plays in (True, False):
        async with training(place, plays=plays) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            go, true = threading.Event(), runtime_of(engine).device.kernels["fill"]

            def held(*args: Any, go: threading.Event = go, true: Callable[..., None] = true) -> None:
                assert go.wait(HANG_S)
                true(*args)

            await launch_as(engine, fill(a_weight(trainer), 0.5), held)
            step = asyncio.create_task(trainer.step(*BATCHES[3]))
            await settle(engine)
            assert not step.done(), "a weight of it is still being written"
            go.set()
            assert (await step).played is plays
            found.append(await states_of(trainer))
    assert_same_tensors(*found)


async def test_a_tile_that_a_failed_launch_did_not_write_is_not_trained_on(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1, 2)
        await launch_as(engine, fill(a_weight(trainer), 0.5), breaks)
        with pytest.raises(RuntimeError, match="the launch broke"):
            await runtime_of(engine).synchronize()
        with pytest.raises(TornModelError, match=r"c_fc\.bias.* was lost.*the launch broke"):
            await trainer.step(*BATCHES[3])


async def test_reading_between_steps_does_not_keep_them_from_being_played(place: dict[str, Any], tmp_path: Path) -> None:
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1)
        await trainer.model.state_dict()
        assert await played(trainer, 2) == [True]
        await trainer.save(tmp_path / "checkpoint", wait=False)
        assert await played(trainer, 3) == [True]
        await trainer.saved()
        await trainer.model.save_pretrained(tmp_path / "model")
        assert await played(trainer, 4) == [True]
        expected = await states_of(trainer)
        other = await Trainer.load(engine, tmp_path / "checkpoint", update="device")
        await played(other, 3, 4)
        assert_same_tensors(await states_of(other), expected)


@pytest.mark.parametrize(
    "place", [law(PLACES["cpu"]), law(PLACES["resident"]), PLACES["under a cap"]], ids=["cpu", "resident", "under a cap"]
)
async def test_other_shapes_models_and_requests_between_steps_change_no_bit(place: dict[str, Any]) -> None:
    async def story(plays: bool) -> tuple[list[Any], Tensors, Tensors]:
        seen: list[Any] = []
        async with training(place, plays=plays, clip_norm=0.3) as (engine, trainer):
            other = Trainer(await lively(engine, SHORT, seed=2), OPTIMIZER, update="host")
            tokens, targets = BATCHES[0]
            for number in range(3):
                flags = await played(trainer, number, number + 1) + await played(other, number, number + 1, number + 2)
                again = plays and number > 0
                assert flags == [again, plays, again, plays, plays]
                seen.append((await trainer.step(tokens[:, :4], targets[:, :4])).loss)
                seen += [token async for token in trainer.model.generate([1, 2], max_new_tokens=2, seed=number)]
                seen += [loss async for loss in _in_a_share(engine, plays)]
                seen.append((await other.model.logits(tokens)).tobytes())
            return seen, await states_of(trainer), await states_of(other)

    one, another = await story(True), await story(False)
    assert one[0] == another[0]
    assert_same_tensors(one[1], another[1])
    assert_same_tensors(one[2], another[2])


async def _in_a_share(engine: Engine, plays: bool) -> AsyncIterator[float]:
    """Yield the losses of a training on a share that lasts as long as the training."""
    small: dict[str, Any] = {"device_memory": SHORT.config.states_nbytes // 8} if engine.device != "cpu" else {}
    async with engine.share(host_memory="4MiB", **small) as part:
        part.plays = plays
        trainer = Trainer(await lively(part, SHORT, seed=3), OPTIMIZER, update="device")
        for number in range(3):
            report = await trainer.step(*BATCHES[number])
            assert report.played is (plays and number > 0)
            yield report.loss


async def test_two_shares_play_at_the_same_time(place: dict[str, Any]) -> None:
    async def steps(trainer: Trainer) -> list[bool]:
        return await played(trainer, *range(6))

    found = []
    for plays in (True, False):
        async with training(place, plays=plays) as (engine, trainer):
            small: dict[str, Any] = {"device_memory": SHORT.config.states_nbytes // 8} if engine.device != "cpu" else {}
            async with engine.share(host_memory="4MiB", **small) as part:
                part.plays = plays
                other = Trainer(await lively(part, SHORT, seed=3), OPTIMIZER, update="device")
                flags = await asyncio.gather(steps(trainer), steps(other))
                assert flags == [[False] + 5 * [plays]] * 2
                found.append(await states_of(trainer) | {f"other {name}": x for name, x in (await states_of(other)).items()})
    assert_same_tensors(*found)


async def test_a_released_model_leaves_no_bytes_and_no_program(place: dict[str, Any]) -> None:
    async with Engine(**place) as engine:
        trainer = Trainer(await lively(engine, SHORT), OPTIMIZER, update="device")
        await played(trainer, 0, 1, 2)
        program = weakref.ref(schedule_of(engine).program)
        await trainer.model.release()
        left = engine.statistics()
        assert (left.device_used_bytes, left.host_used_bytes) == (0, 0)
        del trainer
        await settle(engine)
        gc.collect()
        assert program() is None


async def test_engines_that_played_leave_no_thread_and_no_descriptor(place: dict[str, Any]) -> None:
    def held() -> tuple[int, list[str]]:
        names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("asynctile"))
        return len(os.listdir("/proc/self/fd")), names

    before = held()
    for _ in range(2):
        async with training(place) as (_, trainer):
            assert (await played(trainer, 0, 1))[1]
        assert held() == before


async def test_the_peak_of_a_played_step_counts_other_tiles_too(place: dict[str, Any]) -> None:
    peaks = []
    for plays in (True, False):
        async with training(place, plays=plays) as (engine, trainer):
            await played(trainer, 0, 1)
            await lively(engine, SHORT, seed=2)
            assert await played(trainer, 2) == [plays]
            now = engine.statistics()
            peaks.append((now.device_peak_bytes, now.host_peak_bytes))
    if "device_memory" in place:  # a schedule moves other bytes than a run that decides anew
        assert all(0 < on_device <= place["device_memory"] for on_device, _ in peaks)
    else:
        assert peaks[0] == peaks[1]
