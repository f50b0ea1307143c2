"""Steps that a GPU cannot capture as graphs: they are issued with the same bits, and nothing is left of the attempt."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asynctile.share import runtime_of
from tests.execute.interleaving import BATCHES
from tests.inside_engine import device_of
from tests.laws import law
from tests.layers.replaying import STATES, Once, Trained, assert_same, by_coroutines, place_of, training
from tests.layers.training import states_of
from tests.settle import until


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector, so that an object goes only when its last reference does."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("where", "method", "call"),
    [law("all there", "begin_capture", 1), law("under a cap", "begin_capture", 2), ("under a cap", "end_capture", 2)],
)
async def test_a_step_that_cannot_be_captured_is_issued_with_the_same_bits_and_logged(
    where: str, method: str, call: int, soft_gpu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    soft_gpu(seed=9)
    async with training(place_of(where, tmp_path)) as (engine, trainer):
        driver, found = device_of(engine).driver, Trained()
        fails = Once(getattr(driver, method), late=method == "end_capture")  # the late failure ends the capture, well or not
        setattr(driver, method, fails)
        fails.at(call)
        gone = driver.destroy_graph = Once(driver.destroy_graph)
        with caplog.at_level(logging.WARNING, "asynctile"), uncollected():
            for batch in BATCHES[:5]:
                await found.step(trainer, batch, driver)
            assert gone.calls == call - 1, "those captured before it take memory"
        found.states = await states_of(trainer)
        assert_same(found, expected)
        assert fails.calls >= call
        assert found.launches[1] > 100 and not found.played[1], "this step was issued"
        said = [record for record in caplog.records if "it broke" in record.getMessage() or record.exc_info]
        assert len(said) == 1


async def test_a_step_that_cannot_be_captured_is_issued_even_if_the_last_share_ends_meanwhile(soft_gpu: Any) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    async with training(place_of("all there")) as (engine, trainer):
        driver, capturing, ended = device_of(engine).driver, threading.Event(), threading.Event()
        async with engine.share(device_memory=STATES, host_memory=STATES):
            losses = [(await trainer.step(*BATCHES[0])).loss]

            def breaks(stream: int) -> None:
                capturing.set()
                ended.wait()
                raise RuntimeError("it broke")

            driver.begin_capture = breaks
            step = asyncio.create_task(trainer.step(*BATCHES[1]))
            await until(capturing.is_set)
            alone = asyncio.create_task(until(lambda: not runtime_of(engine).tiers.is_shared))
            alone.add_done_callback(lambda _: ended.set())
        report = await step
        assert not report.played
        assert [*losses, report.loss] == expected.losses[:2]
        await alone
