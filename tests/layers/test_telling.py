"""Events, counts and logs of models and trainings: every end of a step and of a save.

test_step_failures.py, test_step_cancellations.py and test_saving.py test how a step or a save may end, tests/test_events.py the
events of the engine itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import CheckpointError, DeviceError, Engine, TornModelError
from asynctile.events import (
    OPERATION,
    SKIPPED,
    TORN,
    Closing,
    DataEnded,
    Event,
    Fault,
    Pressure,
    SaveBegun,
    SaveDone,
    SaveFailed,
    StepDone,
    Waiting,
)
from asynctile.hub import Events
from asynctile.layers import Trainer
from asynctile.share import runtime_of
from asynctile.storage.tensors import TensorWriter
from asynctile.streams import run_ahead
from tests.layers.saving import BATCHES, trainer_on
from tests.layers.training import NARROW


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="asynctile.layers")


async def rest(reader: Events) -> list[Event]:
    """Return the events that a closed engine still has for this reader, without the last, Closing."""
    told = [event async for event in reader]
    assert isinstance(told.pop(), Closing)
    return told


async def named(engine: Engine, steps: int = 0, **more: Any) -> Trainer:
    trainer = await trainer_on(engine, steps, **more)
    trainer.model.name = "tuned"
    return trainer


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_a_step_is_told_with_its_report_and_counted_with_or_without_a_reader(
    caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine("cpu") as engine:
        trainer = await named(engine, steps=1)
        reader = engine.events()
        reports = [await trainer.step(*batch) for batch in BATCHES[1:4]]
        counted = engine.statistics()
    told = await rest(reader)
    names = {field.name for field in fields(StepDone)} - {field.name for field in fields(Event)} - {"model"}
    assert len(told) == 3
    for event, report in zip(told, reports, strict=True):
        assert isinstance(event, StepDone)
        assert (event.share, event.model) == ("engine", "tuned")
        assert {name: getattr(event, name) for name in names} == {name: getattr(report, name) for name in names}
    learned = sum(int(np.count_nonzero(targets != -100)) for _, targets in BATCHES[:4])
    assert (counted.steps, counted.skipped_steps, counted.step_tokens) == (4, 0, learned)
    assert counted.step_s >= sum(report.step_s for report in reports)
    assert logged(caplog) == []


@pytest.mark.parametrize(("asked", "told"), [(5, [(3, 5)]), (3, []), (2, []), (None, [])])
async def test_batches_that_end_before_the_run_are_told_once(
    caplog: pytest.LogCaptureFixture, asked: int | None, told: list[tuple[int, int]]
) -> None:
    async with Engine("cpu") as engine:
        trainer = await named(engine)
        reader = engine.events()
        run = trainer.run(BATCHES[:3], steps=asked)
        assert len([report async for report in run]) == min(asked or 3, 3)
        with pytest.raises(StopAsyncIteration):
            await anext(run)
        stopped = trainer.run(BATCHES, steps=9)
        await anext(stopped)
        await stopped.aclose()
        left = trainer.run(BATCHES, steps=9)
        await anext(left)
    with pytest.raises(StopAsyncIteration):
        await anext(left)  # the engine is closed; the batches go on
    ends = [(event.steps, event.asked) for event in await rest(reader) if isinstance(event, DataEnded)]
    assert ends == told
    text = "the batches of tuned ended after 3 of 5 steps; give more batches, or ask for fewer steps"
    assert logged(caplog) == [("WARNING", text)] * len(told)


async def test_steps_on_a_share_count_there() -> None:
    async with Engine("cpu", host_memory="64MiB") as engine, engine.share(host_memory="16MiB", name="night") as night:
        reader = engine.events()
        await Trainer((await trainer_on(night)).model).step(*BATCHES[0])  # type: ignore[arg-type]
        assert (night.statistics().steps, engine.statistics().steps) == (1, 0)
        told = await anext(reader)
    assert (type(told), told.share) == (StepDone, "night")


def not_finite(number: int) -> Callable[[Any], Callable[..., None]]:
    """Return a wrapper of kernels that makes the reported number, or one of the arrays, not finite."""

    def disguise(true: Any) -> Callable[..., None]:
        def kernel(*args: Any) -> None:
            true(*args)
            next(array for array in args[number:] if isinstance(array, np.ndarray) and array.ndim == 1)[...] = np.nan

        return kernel

    return disguise


async def test_a_skipped_step_is_a_step_a_fault_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine("cpu") as engine:
        trainer = await named(engine, clip_norm=1.0)
        await trainer.step(*BATCHES[0])
        reader, true = engine.events(), runtime_of(engine).device.kernels["column_sums"]
        runtime_of(engine).device.kernels["column_sums"] = not_finite(0)(true)
        assert (await trainer.step(*BATCHES[1])).skipped
        assert (engine.statistics().steps, engine.statistics().skipped_steps) == (1, 1)
        runtime_of(engine).device.kernels["column_sums"] = true
    step, fault = await rest(reader)
    assert isinstance(step, StepDone) and isinstance(fault, Fault)
    assert (step.step, step.skipped, fault.kind) == (1, True, SKIPPED)
    assert fault.text == "the step after step 1 of tuned was skipped: its gradient (nan) was not finite"
    assert logged(caplog) == [("WARNING", fault.text)]


def broken(*args: Any) -> None:
    raise FloatingPointError("it broke")


@pytest.mark.parametrize(("kernel", "error", "kind", "logs"), [
    ("gelu", DeviceError, OPERATION, 0), ("adamw", TornModelError, TORN, 1),
])  # fmt: skip
async def test_a_failed_step_is_told_with_the_state_of_the_model(
    kernel: str, error: type[Exception], kind: str, logs: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine("cpu") as engine:
        trainer = await named(engine)
        await trainer.step(*BATCHES[0])
        reader = engine.events()
        runtime_of(engine).device.kernels[kernel] = broken
        with pytest.raises(error):
            await trainer.step(*BATCHES[1])
        assert engine.statistics().steps == 1
    (fault,) = await rest(reader)
    assert isinstance(fault, Fault)
    assert fault.kind == kind
    assert "tuned" in fault.text and "it broke" in fault.text
    assert [level for level, _ in logged(caplog)] == ["WARNING"] * logs


async def test_computing_without_training_tells_of_its_failures_too() -> None:
    async with Engine("cpu") as engine:
        model = (await named(engine)).model
        reader = engine.events()
        runtime_of(engine).device.kernels["gelu"] = broken
        with pytest.raises(FloatingPointError):
            await model.logits(BATCHES[0][0])
    (fault,) = await rest(reader)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.text) == (OPERATION, "a run of tuned failed: it broke")


@pytest.mark.parametrize("kind", ["checkpoint", "behind", "model"])
async def test_a_save_is_told_when_it_begins_and_when_it_is_done(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "saved"
    async with Engine("cpu") as engine:
        trainer = await named(engine, steps=1)
        reader = engine.events()
        if kind == "model":
            await trainer.model.save_pretrained(path)
        else:
            await trainer.save(path, wait=kind == "checkpoint")
            await trainer.saved()
    begun, done = await rest(reader)
    assert isinstance(begun, SaveBegun) and isinstance(done, SaveDone)
    assert (begun.model, begun.path, begun.step, begun.behind) == ("tuned", str(path), 1, kind == "behind")
    assert (done.model, done.path, done.step) == ("tuned", str(path), 1)
    assert done.seconds > 0
    assert [level for level, _ in logged(caplog)] == ["INFO"]


@pytest.mark.parametrize("behind", [False, True])
async def test_a_failed_save_is_told_and_logged_if_nobody_may_ask_for_its_error(
    behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any) -> None:
        raise CheckpointError("the disk is full")

    async with Engine("cpu") as engine:
        trainer = await named(engine, steps=1)
        reader = engine.events()
        monkeypatch.setattr(TensorWriter, "write", full)
        if behind:
            await trainer.save(tmp_path / "c", wait=False)
        with pytest.raises(CheckpointError, match="the disk is full"):
            await (trainer.saved() if behind else trainer.save(tmp_path / "c"))
    begun, failed = await rest(reader)
    assert isinstance(begun, SaveBegun) and isinstance(failed, SaveFailed)
    assert (begun.behind, failed.path, failed.error) == (behind, str(tmp_path / "c"), "the disk is full")
    assert [level for level, _ in logged(caplog)] == ["WARNING"] * behind


async def test_a_cancelled_save_is_told_as_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, loop, write = asyncio.Event(), asyncio.get_running_loop(), TensorWriter.write

    def telling(writer: TensorWriter, *args: Any) -> None:
        loop.call_soon_threadsafe(reached.set)
        write(writer, *args)

    monkeypatch.setattr(TensorWriter, "write", telling)
    async with Engine("cpu") as engine:
        trainer = await named(engine, steps=1)
        reader = engine.events()
        saving = asyncio.create_task(trainer.save(tmp_path / "c"))
        await reached.wait()
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    _, failed = await rest(reader)
    assert isinstance(failed, SaveFailed)
    assert failed.error == "it was cancelled"


async def test_a_save_without_room_beside_the_training_says_what_it_lacked(tmp_path: Path) -> None:
    async with Engine("cpu", host_memory=2 * NARROW.config.states_nbytes) as engine:
        trainer = await named(engine, steps=1)
        reader = engine.events()
        await trainer.save(tmp_path / "c", wait=False)
        assert not trainer.saving
    told = [event for event in await rest(reader) if isinstance(event, Pressure)]
    assert [(event.tier, event.cap_bytes) for event in told][-1] == ("host_memory", 2 * NARROW.config.states_nbytes)
    assert f"for the save of {tmp_path / 'c'}, which goes on without it" in told[-1].text


async def test_models_are_numbered_until_they_are_named() -> None:
    async with Engine("cpu") as engine:
        one, other = (await trainer_on(engine)).model, (await trainer_on(engine)).model
        kinds, numbers = zip(*[model.name.split("-") for model in (one, other)], strict=True)
        assert kinds == ("gpt2", "gpt2") and int(numbers[1]) == int(numbers[0]) + 1


@pytest.mark.parametrize("part", [False, True], ids=["engine", "share"])
async def test_a_wait_names_the_calls_that_users_know(part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a share as well, where each call is counted, and for calls whose work another class does."""
    async with Engine("cpu", host_memory="64MiB") as engine, engine.share(host_memory="16MiB") as share:
        on: Any = share if part else engine
        trainer = await trainer_on(on)
        monkeypatch.setattr(run_ahead, "LONG_S", 0.0)
        reader, reached = engine.events(), asyncio.Event()

        async def hold() -> None:
            here = asyncio.get_running_loop()
            free = here.create_future()
            async with runtime_of(on).exclusive():
                loop.call_soon_threadsafe(reached.set)
                release.append(lambda: here.call_soon_threadsafe(free.set_result, None))
                await free

        async def lend() -> None:
            async with engine.share(host_memory="1MiB"):
                pass

        loop, release = asyncio.get_running_loop(), list[Callable[[], object]]()
        holder = asyncio.create_task(runtime_of(on).call(hold()))
        await reached.wait()
        calls = [trainer.model.logits(BATCHES[0][0]), trainer.model.release(), *([] if part else [lend()])]
        tasks = [asyncio.create_task(call) for call in calls]
        found: set[str] = set()
        while len(found) < len(tasks):
            told = await anext(reader)
            if isinstance(told, Waiting):
                found.add(told.text.partition(" waits for ")[0])
                assert told.text.endswith("which is held by test_a_wait_names_the_calls_that_users_know")
        release.pop()()
        await asyncio.gather(holder, *tasks, return_exceptions=True)
    assert found == {"Model.logits", "Model.release"} | (set() if part else {"Engine.share"})
