"""A model and its trainer inside another program's service: several loops at once, timeouts, a save whose disk hangs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine, StalledError
from asynctile.layers.model import model_state_of
from asynctile.memory.caps import Loan
from asynctile.share import runtime_of
from asynctile.storage.tensors import TensorWriter
from tests.inside_engine import watch
from tests.layers.saving import BATCHES, trainer_on
from tests.layers.training import NARROW, states_of
from tests.settle import HANG_S


async def test_every_timeout_of_a_save_gives_its_ram_back(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine, steps=1)
        await trainer.saved()
        used = engine.statistics().host_used_bytes
        for turns in range(12):
            saving = asyncio.create_task(trainer.save(tmp_path / "c", wait=False))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            await trainer.saved()
            assert engine.statistics().host_used_bytes == used


async def test_steps_saves_and_reads_from_two_loops_at_once(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        expected = await trainer_on(engine, steps=4)

        async def reads() -> None:
            for _ in range(4):
                await trainer.model.state_dict()
                await trainer.save(tmp_path / "c", wait=False)
                await trainer.saved()

        elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, reads()))
        for batch in BATCHES[:4]:
            await trainer.step(*batch)
            await trainer.saved()
        await elsewhere
        found, wanted = await states_of(trainer), await states_of(expected)
        assert all((found[name] == wanted[name]).all() for name in wanted)


async def test_a_save_that_got_ram_comes_before_a_program_that_wants_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAM is enough for either. Otherwise the program would hold the engine and wait for RAM, the save for the engine."""
    asked: list[asyncio.Task[Any]] = []
    states, tokens = NARROW.config.states_nbytes, np.zeros((40, NARROW.length), np.int64)
    async with Engine("emulated", device_memory=states) as engine:
        model = (await trainer_on(engine)).model
        state = model_state_of(model)
        wanted = state.demand(state.program("logits", state.tiling.rows(*tokens.shape))).resident_nbytes
    async with Engine("emulated", device_memory=states, host_memory=wanted + states // 2, watchdog=60) as engine:
        trainer = await trainer_on(engine, steps=1)
        runtime, state = runtime_of(engine), model_state_of(trainer.model)
        borrow, demand = runtime.tiers.caps.borrow, state.demand(state.program("logits", state.tiling.rows(*tokens.shape)))

        def borrowed(nbytes: int, who: str) -> Loan | None:
            loan = borrow(nbytes, who)
            asked.append(runtime.spawn(runtime.reserve(demand)))
            return loan

        monkeypatch.setattr(runtime.tiers.caps, "borrow", borrowed)
        await trainer.save(tmp_path / "c", wait=False)
        assert trainer.saving
        await trainer.saved()
        await runtime_of(engine).call(asyncio.wait(asked))
        asked[0].result()
        await trainer.model.logits(tokens)


async def test_no_ram_is_lent_to_a_save_while_another_job_holds_the_engine(tmp_path: Path) -> None:
    """That job may be about to divide all RAM among its own tiles."""

    async def held() -> None:
        async with runtime_of(engine).exclusive():
            saving = runtime_of(engine).spawn(trainer.save(tmp_path / "c", wait=False))
            async with asyncio.timeout(HANG_S):
                while not runtime_of(engine).busy.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert not runtime_of(engine).tiers.caps.loans
        await saving

    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine, steps=1)
        await runtime_of(engine).call(held())
        await trainer.saved()


async def test_a_hanging_save_beside_training_is_named_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, write = threading.Event(), TensorWriter.write
    monkeypatch.setattr(TensorWriter, "write", lambda *args: (answers.wait(HANG_S), write(*args)))
    async with Engine("cpu", watchdog=None) as engine:
        trainer = await trainer_on(engine, steps=1)
        watch(engine, 0.4)
        await trainer.save(tmp_path / "hangs", wait=False)
        with pytest.raises(StalledError, match=r"the save of .*hangs waits for its disk"):
            await trainer.saved()
        watch(engine, HANG_S)
        assert engine.statistics().host_used_bytes < 2 * trainer.model.config.states_nbytes
        assert (await trainer.step(*BATCHES[1])).step == 2
        answers.set()
        await trainer.save(tmp_path / "answers")
    assert [path.name for path in tmp_path.iterdir()] == ["answers"]
