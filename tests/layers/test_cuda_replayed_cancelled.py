"""Replayed steps that are cancelled or have no finite loss: the model is unchanged, or the step counts.

The watchdog names work that never ends. test_cuda_replayed_failures.py tests failures.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine, StalledError, TornModelError
from asynctile.kernels import cpu as cpu_kernels
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES, played
from tests.inside_engine import device_of, watch
from tests.laws import law
from tests.layers.replaying import Endless, Held, by_coroutines, place_of, training
from tests.layers.training import assert_same_tensors, states_of
from tests.settle import HANG_S, settle, until
from tests.test_failures import Deaf


async def graphs_of_a_step(trainer: Trainer, driver: Any, batch: int) -> int:
    before: int = driver.graphs
    await trainer.step(*BATCHES[batch])
    return driver.graphs - before


FUSED: dict[str, Any] = {}
TWO_PHASE = {"clip_norm": 0.3}


@pytest.mark.parametrize(
    ("where", "options"),
    [law("all there", FUSED), ("under a cap", TWO_PHASE | {"update": "mixed"}), law("over a file", FUSED)],
    ids=str,
)
async def test_a_step_cancelled_at_any_turn_leaves_the_model_unchanged_or_counts(
    where: str, options: dict[str, Any], soft_gpu: Any, tmp_path: Path
) -> None:
    soft_gpu(seed=3)
    async with training(place_of(where, tmp_path), **options) as (engine, trainer):
        await played(trainer, 0, 1)
        counted = []
        for turns in (0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 40, 60, 90, 130):
            before = await states_of(trainer) if turns in (3, 13) else None
            count = trainer.step_count
            step = asyncio.create_task(trainer.step(*BATCHES[2]))
            for _ in range(turns):
                await runtime_of(engine).call(asyncio.sleep(0))
            step.cancel()
            (ended,) = await asyncio.gather(step, return_exceptions=True)
            counted.append(trainer.step_count - count)
            assert trainer.model.torn is None
            assert isinstance(ended, asyncio.CancelledError) or counted[-1] == 1
            if counted[-1]:
                break
            if before is not None:
                assert_same_tensors(await states_of(trainer), before)
        if not counted[-1]:
            await trainer.step(*BATCHES[2])
        assert counted[0] == 0, "given up before anything was begun"
        assert (await played(trainer, 3, 4))[1]
        expected = await by_coroutines(soft_gpu.opened, **options)
        assert_same_tensors(await states_of(trainer), expected.states)


async def cancel_step(engine: Engine, trainer: Trainer, batch: int, call: int) -> None:
    """Cancel a step while it launches graph number `call`, and see it raise CancelledError."""
    held = Held(engine, call)
    step = asyncio.create_task(trainer.step(*BATCHES[batch]))
    try:
        async with asyncio.timeout(HANG_S):
            await until(held.reached.is_set)
            step.cancel()
            await settle(engine)
    finally:
        held.release()
    with pytest.raises(asyncio.CancelledError):
        await step


@pytest.mark.parametrize("where", [law("under a cap"), "over a file"])
async def test_a_step_cancelled_before_its_first_graph_never_began_and_after_its_updates_counts(
    where: str, soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    soft_gpu(seed=4)
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        await played(trainer, 0, 1)
        await cancel_step(engine, trainer, 2, 1)
        assert trainer.step_count == 2
        graphs = await graphs_of_a_step(trainer, device_of(engine).driver, 2)
        assert graphs > 1
        await cancel_step(engine, trainer, 3, 1)
        assert trainer.step_count == 3
        await cancel_step(engine, trainer, 3, graphs)  # it begins where the step began whose graphs were counted
        assert trainer.step_count == 4
        assert (await played(trainer, 4)) == [True]
        assert trainer.last_report.loss == expected.losses[4]
        assert_same_tensors(await states_of(trainer), expected.states)


@pytest.mark.parametrize(("where", "options"), [law("under a cap", FUSED), ("over a file", TWO_PHASE)], ids=str)
async def test_a_replayed_step_without_a_finite_loss_is_skipped(
    where: str, options: dict[str, Any], soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened, **options)
    soft_gpu(seed=6)
    async with training(place_of(where, tmp_path), **options) as (engine, trainer):
        await played(trainer, 0, 1, 2)
        parameter = model_state_of(trainer.model).parameters["transformer.ln_f.bias"]
        tile = parameter.weights[0, 0]
        kept = await runtime_of(engine).read(tile)
        await runtime_of(engine).store([(tile, np.full(tile.shape, np.nan, np.float32))])
        report = await trainer.step(*BATCHES[0])
        assert (report.skipped, report.played) == (True, True)
        await runtime_of(engine).store([(tile, kept)])
        assert await played(trainer, 3, 4) == [True, True]
        assert_same_tensors(await states_of(trainer), expected.states)


async def assert_stalls(trainer: Trainer, says: str) -> None:
    async with asyncio.timeout(HANG_S):
        with pytest.raises(StalledError, match=says):
            await trainer.step(*BATCHES[3])
        with pytest.raises((StalledError, TornModelError)):
            await trainer.step(*BATCHES[3])


async def test_an_update_in_ram_that_never_ends_is_named_and_the_engine_closes(
    soft_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adamw = Endless(cpu_kernels.KERNELS["adamw"])
    async with asyncio.timeout(HANG_S):
        place = place_of("over a file", tmp_path, watchdog=None)
        async with training(place, update="host", **TWO_PHASE) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            monkeypatch.setitem(cpu_kernels.KERNELS, "adamw", adamw)
            adamw.hangs.set()
            watch(engine, 0.4)
            await assert_stalls(trainer, r"nothing has moved for 0.4 s: adamw\(.*has run on host")
    adamw.answer.set()


async def test_a_disk_that_never_answers_is_named_and_the_engine_closes(soft_gpu: Any, tmp_path: Path) -> None:
    deaf = Deaf("preadv")
    place = place_of("over a file", tmp_path, watchdog=None, wrap_spill=deaf.wrap)
    async with asyncio.timeout(HANG_S):
        async with training(place) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            deaf.hangs.set()
            watch(engine, 0.4)
            await assert_stalls(trainer, r"nothing has moved for 0.4 s: the copy of tile .* has run on spill")
    deaf.answer.set()


async def test_a_gpu_that_never_answers_is_named_and_the_engine_closes(soft_gpu: Any, tmp_path: Path) -> None:
    async with asyncio.timeout(HANG_S):
        async with training(place_of("under a cap", tmp_path, watchdog=None)) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            driver, threads = device_of(engine).driver, [thread for thread in threading.enumerate() if is_ours(thread)]
            Held(engine, 1, then=lambda: watch(engine, 0.4))  # for ever
            await assert_stalls(trainer, r"nothing has moved for 0.4 s: .*graph.* has run on compute")
        driver.die()  # threads that watch work land were left behind, and other tests count threads
        await until(lambda: not any(thread.is_alive() for thread in threads))


def is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("asynctile")


@pytest.mark.parametrize("where", [law("all there"), "over a file"])
async def test_closing_the_engine_during_a_replayed_step_ends_the_step(
    where: str, soft_gpu: Any, tmp_path: Path
) -> None:
    async with asyncio.timeout(HANG_S):
        async with training(place_of(where, tmp_path)) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            held = Held(engine, 1)
            step = asyncio.create_task(trainer.step(*BATCHES[3]))
            await until(held.reached.is_set)
            asyncio.get_running_loop().call_later(0.1, held.release)
        (ended,) = await asyncio.gather(step, return_exceptions=True)
        assert isinstance(ended, BaseException) or trainer.step_count == 4
