"""Replayed steps in which something fails: an unchanged model goes on as if the step had never been, any other is torn.

tests/layers/test_cuda_not_captured.py tests steps that cannot be captured.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asynctile import DeviceError, TierError, TornModelError
from asynctile.errors import AsynctileError
from asynctile.kernels import cpu as cpu_kernels
from asynctile.memory.spill_link import SpillLink
from asynctile.storage.faults import SURVIVED, Faults
from tests.execute.interleaving import BATCHES, played
from tests.inside_engine import device_of
from tests.laws import law
from tests.layers.replaying import Once, by_coroutines, place_of, training
from tests.layers.training import assert_same_tensors, states_of
from tests.settle import HANG_S


class Reads(Faults):
    """Faults that also count reads."""

    reads = 0

    def due(self, direction: Any) -> list[str]:
        self.reads += direction == "read"
        return super().due(direction)


@pytest.mark.parametrize("options", [law({}), {"update": "host", "clip_norm": 0.3}], ids=str)
async def test_a_read_that_fails_before_the_updates_leaves_the_model_unchanged(
    options: dict[str, Any], soft_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.storage.spill.PAUSES_S", (0.001,))
    expected = await by_coroutines(soft_gpu.opened, **options)
    soft_gpu(seed=5)
    faults = Faults()
    async with training(place_of("over a file", tmp_path, wrap_spill=faults.wrap), **options) as (_, trainer):
        await played(trainer, 0, 1, 2)
        for after in (0, 5):
            faults.arm("eio_read", after=after, lasting=True)
            with pytest.raises(TierError, match=r"tile .*: cannot read .*spill.* offset \d+"):
                await trainer.step(*BATCHES[5])
            faults.disarm()
            assert trainer.model.torn is None and trainer.step_count == 3
        assert (await played(trainer, 3, 4))[1]
        assert_same_tensors(await states_of(trainer), expected.states)


async def test_a_failed_read_leaves_zeros_for_later_graphs_because_zeros_are_valid_indices(
    soft_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []
    carry = SpillLink.carry

    def watched(link: Any, tile: Any, block: Any, pages: Any, writes: bool, told: Any = bool, *rest: Any, **more: Any) -> Any:
        def tell(error: BaseException | None) -> None:
            told(error)
            if error is not None and not writes:
                left.append(bool(pages.any()))

        return carry(link, tile, block, pages, writes, tell, *rest, **more)

    monkeypatch.setattr(SpillLink, "carry", watched)
    faults = Faults()
    async with training(place_of("over a file", tmp_path, wrap_spill=faults.wrap)) as (_, trainer):
        await played(trainer, 0, 1, 2)
        faults.arm("eio_read", lasting=True)
        with pytest.raises(TierError, match="cannot read"):
            await trainer.step(*BATCHES[3])
        faults.disarm()
    assert left and not any(left)


async def test_a_read_that_fails_after_the_first_update_tears_the_model(soft_gpu: Any, tmp_path: Path) -> None:
    soft_gpu(seed=5)
    faults = Reads()
    async with training(place_of("over a file", tmp_path, wrap_spill=faults.wrap)) as (engine, trainer):
        await played(trainer, 0, 1, 2)
        before = faults.reads
        await played(trainer, 3)
        faults.arm("eio_read", after=faults.reads - before - 3, lasting=True)
        with pytest.raises(TornModelError, match=r"step 5 failed after its first update: tile .*: cannot read"):
            await trainer.step(*BATCHES[4])
        faults.disarm()
        with pytest.raises(TornModelError, match="cannot step"):
            await trainer.step(*BATCHES[4])
        await trainer.model.release()
        left = engine.statistics()
        assert (left.device_used_bytes, left.host_used_bytes, left.spill_used_bytes) == (0, 0, 0)


@pytest.mark.parametrize("after", [0, 30])
async def test_a_failed_write_leaves_a_torn_or_an_unchanged_model(
    after: int, soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    soft_gpu(seed=after)
    faults = Faults()
    async with training(place_of("over a file", tmp_path, wrap_spill=faults.wrap)) as (_, trainer):
        await played(trainer, 0, 1, 2)
        faults.arm("enospc", after=after, lasting=True)
        with pytest.raises((TierError, TornModelError), match="spill") as caught:
            await trainer.step(*BATCHES[3])
        faults.disarm()
        assert (trainer.model.torn is None) is isinstance(caught.value, TierError)
        if trainer.model.torn is None:
            await played(trainer, 3, 4)
            assert_same_tensors(await states_of(trainer), expected.states)


async def test_disk_faults_that_pass_change_no_bit_of_a_replayed_step(soft_gpu: Any, tmp_path: Path) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    faults = Faults(seed=3)
    async with training(place_of("over a file", tmp_path, wrap_spill=faults.wrap)) as (_, trainer):
        await played(trainer, 0, 1)
        for batch in (2, 3, 4):
            for number, kind in enumerate(sorted(SURVIVED)):
                faults.arm(kind, after=3 * batch + 9 * number)
            assert await played(trainer, batch) == [True]
        assert all(faults.injected[kind] == 3 for kind in SURVIVED)
        assert_same_tensors(await states_of(trainer), expected.states)


@pytest.mark.parametrize(("where", "call"), [law("all there", 1), ("over a file", 4)])
async def test_an_update_in_ram_that_fails_tears_the_model(
    where: str, call: int, soft_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adamw = Once(cpu_kernels.KERNELS["adamw"])
    async with training(place_of(where, tmp_path), update="host") as (engine, trainer):
        await played(trainer, 0, 1, 2)
        monkeypatch.setitem(cpu_kernels.KERNELS, "adamw", adamw)
        adamw.at(call)
        with pytest.raises(TornModelError, match=r"step 4 failed after its first update: .*it broke"):
            await trainer.step(*BATCHES[3])
        await trainer.model.release()
        left = engine.statistics()
        assert (left.device_used_bytes, left.host_used_bytes) == (0, 0)


@pytest.mark.parametrize(("where", "first"), [law("all there", False), ("under a cap", True), ("over a file", False)])
async def test_a_gpu_that_fails_in_a_graph_fails_the_step_and_the_engine_closes(
    where: str, first: bool, soft_gpu: Any, tmp_path: Path
) -> None:
    async with asyncio.timeout(HANG_S):
        async with training(place_of(where, tmp_path)) as (engine, trainer):
            driver = device_of(engine).driver
            await played(trainer, 0, 1)
            before = driver.graphs
            await played(trainer, 2)
            call = 1 if first else driver.graphs - before
            launch = driver.launch_graph

            def fails(graph: Any, stream: int) -> None:
                nonlocal call
                call -= 1
                if not call:
                    driver.error = RuntimeError("an illegal address")
                launch(graph, stream)

            driver.launch_graph = fails
            with pytest.raises(AsynctileError, match=r"the GPU failed at or before .*an illegal address") as caught:
                await trainer.step(*BATCHES[3])
            assert isinstance(caught.value, DeviceError | TornModelError)
            assert first or isinstance(caught.value, TornModelError)
            with pytest.raises(AsynctileError):
                await trainer.step(*BATCHES[3])


@pytest.mark.parametrize(("where", "first"), [("all there", True), ("under a cap", False)])
async def test_a_graph_that_fails_to_launch_leaves_a_torn_or_an_unchanged_model(
    where: str, first: bool, soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        driver = device_of(engine).driver
        fails = driver.launch_graph = Once(driver.launch_graph)
        await played(trainer, 0, 1)
        before = fails.calls
        await played(trainer, 2)
        fails.at(1 if first else fails.calls - before)
        with pytest.raises((DeviceError, TornModelError), match="it broke") as caught:
            await trainer.step(*BATCHES[3])
        assert (trainer.model.torn is None) is not isinstance(caught.value, TornModelError)
        if trainer.model.torn is None:
            assert first and (await played(trainer, 3, 4))[1]
            assert_same_tensors(await states_of(trainer), expected.states)
        assert where != "all there" or (trainer.model.torn is None) is first, "nothing was on its way down"
