"""Trainer: cancellation and failure in mid-step, skipped steps, running over batches.

The n-th call of a kernel hangs, raises or cancels, so an event meets a step at exactly one point, without clocks.
test_equal_bits.py tests that results do not depend on budgets, tests/reference that they are right.

Long because each way in which a step can end is tried at several points, with the same few helpers.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import DeviceError, Engine, TornModelError
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.laws import covering, law
from tests.layers.shapes import SHAPES
from tests.layers.training import (
    OPTIMIZER,
    SHORTER,
    Tensors,
    assert_same_tensors,
    batches_of,
    floor_of,
    lively,
    states_of,
)  # fmt: skip
from tests.settle import HANG_S, settle, until

SMALL_DEVICE = {"device": "emulated", "device_memory": SHORTER.config.states_nbytes // 6}
#: Without evictions, with evictions in flight, and with updates in RAM.
DEVICES: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"device": "cpu"}, "device"), "emulated": (SMALL_DEVICE, "device"), "updates on the host": (SMALL_DEVICE, "host"),
}  # fmt: skip
#: Options of a trainer where a test says nothing else.
DEFAULTS = {"update": "device"}
BATCHES = batches_of(SHORTER, 4)
_uninterrupted: dict[Any, Tensors] = {}


#: A device where updates run on the host has every path of one where they do not, but an update.
PLACES = [law(DEVICES[name], id=name) if name == "emulated" else pytest.param(DEVICES[name], id=name) for name in DEVICES]


@pytest.fixture(params=PLACES)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of an engine; trainers on it place their updates by the same parameter."""
    engine_options, update = request.param
    monkeypatch.setitem(DEFAULTS, "update", update)
    return engine_options


async def trainer_on(engine: Engine, **more: Any) -> Trainer:
    return Trainer(await lively(engine, SHORTER), OPTIMIZER, micro_batches=SHORTER.micro_batches, **DEFAULTS | more)


async def loss_of_step_two() -> float:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        return [report.loss async for report in trainer.run(BATCHES[:2])][1]


async def uninterrupted(steps: int, **more: Any) -> Tensors:
    """Return weights and moments after `steps` undisturbed steps."""
    key = (steps, *more.items())
    if key not in _uninterrupted:
        async with Engine("cpu") as engine:
            trainer = await trainer_on(engine, **more)
            for batch in BATCHES[:steps]:
                await trainer.step(*batch)
            _uninterrupted[key] = await states_of(trainer)
    return _uninterrupted[key]


class Once:
    """A stand-in for a kernel of `engine`: before its n-th call from now, `action` runs in the stream's thread.

    kernels: those of one device; None: of all devices.
    """

    def __init__(
        self, engine: Engine, kernel: str, n: int, action: Callable[[], Any], kernels: dict[str, Any] | None = None
    ) -> None:
        self._kernels = runtime_of(engine).device.kernels if kernels is None else kernels
        self._name, self._true, self._left, self._action = kernel, self._kernels[kernel], n, action
        self._lock = threading.Lock()
        self._kernels[kernel] = self
        self.__name__ = kernel

    def __call__(self, *args: Any) -> None:
        with self._lock:
            self._left -= 1
            now = self._left == 0
        if now:
            self._action()
        self._true(*args)

    def restore(self) -> None:
        self._kernels[self._name] = self._true


class Broken(RuntimeError):
    """The error of a broken kernel."""


def broken() -> None:
    raise Broken("the kernel broke")


#: (kernel, call) before the first update, that is, before the loss is known. After that the host may be ahead of a failure.
BEFORE = {"the first operation": ("embed_tokens", 1), "in a block": ("gelu", 5), "in the head": ("cross_entropy", 5)}


@pytest.mark.parametrize(("options", "at", "step"), covering(DEVICES, BEFORE, [1, 2]), indirect=["options"])
async def test_a_failure_before_the_first_update_leaves_the_model_unchanged(
    options: dict[str, Any], at: tuple[str, int], step: int
) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        for batch in BATCHES[: step - 1]:
            await trainer.step(*batch)
        before = await trainer.model.state_dict()
        disguise = Once(engine, *at, broken)
        with pytest.raises(DeviceError, match=f"step {step} failed before it changed the model.*broke.*can be repeated"):
            await trainer.step(*BATCHES[step - 1])
        disguise.restore()
        assert_same_tensors(await trainer.model.state_dict(), before)
        assert (trainer.step_count, trainer.skipped_count) == (step - 1, 0)
        for batch in BATCHES[step - 1 : 3]:
            await trainer.step(*batch)
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(3))


async def test_a_failure_in_the_first_phase_of_a_clipped_step_leaves_the_model_unchanged(options: dict[str, Any]) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine, clip_norm=0.5)
        await trainer.step(*BATCHES[0])
        disguise = Once(engine, "embed_tokens_backward", 1, broken)
        with pytest.raises(DeviceError):
            await trainer.step(*BATCHES[1])
        disguise.restore()
        await trainer.step(*BATCHES[1])
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2, clip_norm=0.5))


#: (kernel, call, clip_norm) behind the first update; with clipping that comes behind all backward passes.
AFTER = {
    "first, fused": ("adamw", 1, None),
    "60th, two-phase": ("adamw", 60, 1e9),
    "backward, fused": ("attention_backward_whole", 4, None),
    "first, two-phase": ("adamw", 1, 1e9),
    "60th, fused": ("adamw", 60, None),
}


@pytest.mark.parametrize(("options", "at"), covering(DEVICES, AFTER, few=3), indirect=["options"])
async def test_a_failure_after_the_first_update_tears_the_model(
    options: dict[str, Any], at: tuple[str, int, float | None], tmp_path: Path
) -> None:
    kernel, call, clip_norm = at
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine, clip_norm=clip_norm)
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "one")
        disguise = Once(engine, kernel, call, broken)
        with pytest.raises(TornModelError, match="broke") as caught:
            await trainer.step(*BATCHES[1])
        disguise.restore()
        assert isinstance(caught.value.__cause__, Broken)
        assert trainer.step_count == 1
        tokens, targets = BATCHES[1]
        refusals: dict[str, Any] = {
            "step": lambda: trainer.step(tokens, targets),
            "gradients": lambda: trainer.gradients(tokens, targets),
            "save": lambda: trainer.save(tmp_path / "two"),
            "save_pretrained": lambda: trainer.model.save_pretrained(tmp_path / "two"),
            "logits": lambda: trainer.model.logits(tokens),
            "loss": lambda: trainer.model.loss(tokens, targets),
        }
        for refused in refusals.values():
            with pytest.raises(TornModelError, match=f"load the last checkpoint .*{tmp_path / 'one'}"):
                await refused()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
        await trainer.model.release()
        again = await Trainer.load(engine, tmp_path / "one")
        await again.step(tokens, targets)
        found = await states_of(again)
    assert_same_tensors(found, await uninterrupted(2, clip_norm=clip_norm))


async def test_a_torn_model_without_a_checkpoint_says_so() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        Once(engine, "adamw", 3, broken)
        with pytest.raises(TornModelError, match="none was saved"):
            await trainer.step(*BATCHES[0])


class Hang:
    """A stream held at one call of one kernel until released; `reached` is awaited on the test's loop. kernels: see Once."""

    def __init__(
        self, engine: Engine, kernel: str, call: int, *, then: Callable[[], Any] | None = None,
        kernels: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._go = threading.Event()
        self._then = then
        self._disguise = Once(engine, kernel, call, self._hold, kernels)

    def _hold(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)
        assert self._go.wait(HANG_S)
        if self._then is not None:
            self._then()

    async def reached(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self._event.wait()

    def release(self) -> None:
        self._disguise.restore()
        self._go.set()


@pytest.mark.parametrize(
    ("options", "at"),
    covering(DEVICES, {"in the head's backward": ("cross_entropy_backward", 1), **BEFORE}, few=3),
    indirect=["options"],
)
async def test_a_step_cancelled_before_its_first_update_leaves_the_model_unchanged(
    options: dict[str, Any], at: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(**options) as engine:
        device = runtime_of(engine).tiers.device
        # On this device the host cannot run ahead to the update, past the hanging kernel.
        device.grain = replace(device.grain, run_ahead=32)
        monkeypatch.setattr("asynctile.streams.run_ahead.RUN_AHEAD_OPERATIONS", 32)
        trainer = await trainer_on(engine, recompute=True)
        first = await trainer.step(*BATCHES[0])
        before = await states_of(trainer)
        hang = Hang(engine, *at)
        task = asyncio.create_task(trainer.step(*BATCHES[1]))
        await hang.reached()
        task.cancel()
        await settle(engine)
        assert not task.done(), "the step ended while its work was under way"
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trainer.step_count == 1
        assert trainer.last_report is first
        assert_same_tensors(await states_of(trainer), before)
        for batch in BATCHES[1:3]:
            await trainer.step(*batch)
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(3))


@pytest.mark.parametrize(
    ("options", "at", "cancels"),
    covering(DEVICES, {"adamw": ("adamw", 1), "later": ("adamw", 50), "backward": ("layernorm_backward", 9)}, [1, 3]),
    indirect=["options"],
)
async def test_a_step_cancelled_after_its_first_update_ends_and_then_raises_the_cancellation(
    options: dict[str, Any], at: tuple[str, int], cancels: int
) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        hang = Hang(engine, *at)
        task = asyncio.create_task(trainer.step(*BATCHES[1]))
        await hang.reached()
        for _ in range(cancels):
            task.cancel()
            await settle(engine)
        assert not task.done()
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trainer.step_count == 2
        assert trainer.last_report is not None
        assert (trainer.last_report.step, trainer.last_report.loss) == (2, await loss_of_step_two())
        assert trainer.model.torn is None
        second = await states_of(trainer)
        await trainer.step(*BATCHES[2])
        third = await states_of(trainer)
    assert_same_tensors(second, await uninterrupted(2))
    assert_same_tensors(third, await uninterrupted(3))


async def test_a_step_that_fails_after_its_first_update_tears_the_model_even_if_it_was_cancelled() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        hang = Hang(engine, "adamw", 5, then=broken)
        task = asyncio.create_task(trainer.step(*BATCHES[0]))
        await hang.reached()
        task.cancel()
        await settle(engine)
        hang.release()
        with pytest.raises(TornModelError):
            await task
        with pytest.raises(TornModelError):
            await trainer.step(*BATCHES[0])


async def test_a_step_cancelled_while_it_waits_for_its_turn_never_begins() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        hang = Hang(engine, "gelu", 1)
        first = asyncio.create_task(trainer.model.logits(BATCHES[0][0]))
        await hang.reached()
        second = asyncio.create_task(trainer.step(*BATCHES[1]))
        await settle(engine)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        hang.release()
        await first
        assert trainer.step_count == 1
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(1))


@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_logits_leave_the_engine_usable_at_the_floor(cancels: int) -> None:
    async with Engine("emulated", device_memory=await floor_of()) as engine:
        model = await lively(engine, SHORTER)
        expected = await model.logits(BATCHES[0][0])
        hang = Hang(engine, "gelu", 2)
        task = asyncio.create_task(model.logits(BATCHES[0][0]))
        await hang.reached()
        for _ in range(cancels):
            task.cancel()
            await settle(engine)
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(2):
            assert np.array_equal(await model.logits(BATCHES[0][0]), expected)


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["fused", "two-phase"])
async def test_a_loss_that_is_not_finite_skips_the_step(options: dict[str, Any], clip_norm: float | None) -> None:
    poison = np.float32(np.nan)

    async with Engine(**options) as engine:
        trainer = await trainer_on(engine, clip_norm=clip_norm)
        await trainer.step(*BATCHES[0])
        before = await states_of(trainer)
        true = runtime_of(engine).device.kernels["cross_entropy"]

        def poisoned(*args: Any) -> None:
            true(*args)
            args[-1][...] = poison

        runtime_of(engine).device.kernels["cross_entropy"] = poisoned
        report = await trainer.step(*BATCHES[1])
        runtime_of(engine).device.kernels["cross_entropy"] = true
        assert report.skipped
        assert math.isnan(report.loss)
        assert json.loads(json.dumps(report.as_dict()))["loss"] == "nan"
        assert (trainer.step_count, trainer.skipped_count, report.step) == (1, 1, 1)
        assert_same_tensors(await states_of(trainer), before)
        report = await trainer.step(*BATCHES[1])
        assert not report.skipped
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2, clip_norm=clip_norm))


async def test_a_gradient_that_is_not_finite_tears_a_fused_step_and_skips_a_clipped_one() -> None:
    def poisoned(kernels: Any) -> Callable[..., None]:
        true = kernels["column_sums"]

        def kernel(*args: Any) -> None:
            true(*args)
            next(array for array in args if isinstance(array, np.ndarray) and array.ndim == 1)[...] = np.nan

        return kernel

    async with Engine("cpu") as engine:
        kernels = runtime_of(engine).device.kernels
        true = kernels["column_sums"]
        for clip_norm in (1.0, None):
            trainer = await trainer_on(engine, clip_norm=clip_norm)
            await trainer.step(*BATCHES[0])
            before = await trainer.model.state_dict()
            kernels["column_sums"] = poisoned(kernels)
            if clip_norm is None:
                with pytest.raises(TornModelError, match=r"gradient of step 2 was not finite \(norm\[.*clip_norm skips"):
                    await trainer.step(*BATCHES[1])
                with pytest.raises(TornModelError):
                    await trainer.model.logits(BATCHES[1][0])
            else:
                report = await trainer.step(*BATCHES[1])
                assert report.skipped
                assert math.isfinite(report.loss)
                assert not math.isfinite(report.grad_norm)
                assert trainer.skipped_count == 1
                assert_same_tensors(await trainer.model.state_dict(), before)
            kernels["column_sums"] = true


async def test_a_checkpoint_is_a_model_folder_too_and_replaces_an_older_one(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        await trainer.save(tmp_path / "deep" / "run")
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "deep" / "run")
        model = await GPT2.from_pretrained(engine, tmp_path / "deep" / "run")
        assert_same_tensors(await model.state_dict(), await trainer.model.state_dict())
        again = await Trainer.load(engine, str(tmp_path / "deep" / "run"))
        assert again.step_count == 1
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run"]


async def test_a_checkpoint_of_other_libraries_warns(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await (await trainer_on(engine)).save(tmp_path / "c")
        state = json.loads((tmp_path / "c" / "trainer.json").read_text())
        state["surroundings"]["numpy"] = "0.1"
        (tmp_path / "c" / "trainer.json").write_text(json.dumps(state))
        (tmp_path / "c" / "checksums.json").unlink()
        with pytest.warns(UserWarning, match=r"numpy '0\.1' -> "):
            await Trainer.load(engine, tmp_path / "c")


async def test_computing_gradients_changes_nothing(options: dict[str, Any]) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        before = await states_of(trainer)
        one = await trainer.gradients(*BATCHES[1])
        assert_same_tensors(one, await trainer.gradients(*BATCHES[1]))
        assert one.keys() == model_state_of(trainer.model).parameters.keys()
        assert_same_tensors(await states_of(trainer), before)
        report = await trainer.step(*BATCHES[1])
        norm = math.sqrt(sum(np.square(value, dtype=np.float64).sum() for value in one.values()))
        assert report.grad_norm == pytest.approx(norm, rel=1e-12)
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


async def test_another_trainer_of_a_model_continues_with_its_moments_and_its_step_count(options: dict[str, Any]) -> None:
    async with Engine(**options) as engine:
        first = await trainer_on(engine)
        await first.step(*BATCHES[0])
        second = Trainer(first.model, OPTIMIZER, micro_batches=SHORTER.micro_batches, **DEFAULTS)
        assert (second.step_count, second.last_report) == (1, None)
        await model_state_of(second.model).prepare_moments()
        for trainer, batch in zip((second, first), BATCHES[1:3], strict=True):
            await trainer.step(*batch)
        assert (first.step_count, second.step_count) == (3, 3)
        assert first.last_report is not None and second.last_report is not None
        assert (first.last_report.step, second.last_report.step) == (3, 2)
        found = await states_of(second)
    assert_same_tensors(found, await uninterrupted(3))


async def test_two_trainers_share_an_engine(options: dict[str, Any]) -> None:
    """Each gets its results as if alone, although their steps and other work take turns."""
    small = SHAPES["several sequences in a tile"]
    async with Engine("cpu") as engine:
        alone = Trainer(await lively(engine, small), OPTIMIZER, micro_batches=2)
        for batch in batches_of(small, 3):
            await alone.step(*batch)
        expected = await states_of(alone)
    if "device_memory" in options:
        options = options | {"device_memory": await floor_of(small)}
    async with Engine(**options) as engine:
        one = await trainer_on(engine)
        other = Trainer(await lively(engine, small), OPTIMIZER, micro_batches=2)

        async def train(trainer: Trainer, batches: Any) -> None:
            async for _ in trainer.run(batches):
                await trainer.model.loss(*batches[0])

        async with asyncio.TaskGroup() as group:
            group.create_task(train(one, BATCHES[:3]))
            group.create_task(train(other, batches_of(small, 3)))
        found, theirs = await states_of(one), await states_of(other)
    assert_same_tensors(found, await uninterrupted(3))
    assert_same_tensors(theirs, expected)


async def test_a_released_model_gives_its_memory_back_and_is_refused() -> None:
    async with Engine("cpu") as engine:
        for _ in range(2):
            trainer = await trainer_on(engine)
            await trainer.step(*BATCHES[0])
            peak = engine.statistics().host_peak_bytes
            await trainer.model.release()
            with pytest.raises(TornModelError, match="released"):
                await trainer.step(*BATCHES[0])
        assert engine.statistics().host_peak_bytes == peak


async def test_run_takes_lists_generators_async_generators_and_awaitable_items() -> None:
    async def later() -> AsyncIterator[Any]:
        for batch in BATCHES[:2]:
            await asyncio.sleep(0)
            yield batch

    async def one(index: int) -> Any:
        return BATCHES[index]

    sources: dict[str, Callable[[], Any]] = {
        "list": lambda: BATCHES[:2],
        "generator": lambda: (batch for batch in BATCHES[:2]),
        "async generator": later,
        "coroutines": lambda: (one(index) for index in range(2)),
    }
    losses = set()
    async with Engine("cpu") as engine:
        for source in sources.values():
            trainer = await trainer_on(engine)
            reports = [report async for report in trainer.run(source())]
            assert [report.step for report in reports] == [1, 2]
            losses.add(tuple(report.loss for report in reports))
            await trainer.model.release()
    assert len(losses) == 1


async def test_run_takes_batches_in_a_thread_and_loses_none_to_a_cancellation() -> None:
    reached, go, threads = asyncio.Event(), threading.Event(), set()
    loop = asyncio.get_running_loop()

    def slow() -> Any:
        for index, batch in enumerate(BATCHES[:3]):
            threads.add(threading.current_thread())
            if index == 1:
                loop.call_soon_threadsafe(reached.set)
                assert go.wait(HANG_S)
            yield batch

    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(slow())
        assert (await anext(run)).step == 1
        waiting = asyncio.ensure_future(anext(run))
        await reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        for kernel, counts in (("gelu", 1), ("adamw", 2)):
            hang = Hang(engine, kernel, 1)
            step = asyncio.ensure_future(anext(run))
            await hang.reached()
            step.cancel()
            await settle(engine)
            hang.release()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert trainer.step_count == counts
        assert [report.step async for report in run] == [3]
        found = await states_of(trainer)
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert_same_tensors(found, await uninterrupted(3))


async def test_run_stops_after_its_steps_and_takes_no_batch_too_many() -> None:
    taken = iter(BATCHES)
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        assert [report.step async for report in trainer.run(taken, steps=2)] == [1, 2]
        assert next(taken) is BATCHES[2]
        assert [report.step async for report in trainer.run(taken, steps=0)] == []
        assert [report.step async for report in trainer.run(taken)] == [3]
        with pytest.raises(TypeError, match="int"):
            async for _ in trainer.run(3):
                pass


@pytest.mark.parametrize("kind", ["async generator", "awaitable items"])
async def test_a_run_cancelled_while_it_waits_for_a_batch_loses_none(kind: str) -> None:
    waits, go = asyncio.Event(), asyncio.Event()

    async def late(batch: Any) -> Any:
        waits.set()
        await go.wait()
        return batch

    async def generator() -> Any:
        for batch in BATCHES[:2]:
            yield await late(batch)

    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(generator() if kind == "async generator" else [late(batch) for batch in BATCHES[:2]])
        for _ in range(2):
            waiting = asyncio.ensure_future(anext(run))
            await waits.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        go.set()
        assert [report.step async for report in run] == [1, 2]
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


async def test_a_run_keeps_its_batch_when_a_step_of_another_counts_meanwhile() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        run = trainer.run(iter(BATCHES[1:2]))
        hang = Hang(engine, "adamw", 1)
        other = asyncio.ensure_future(trainer.step(*BATCHES[0]))
        await hang.reached()
        mine = asyncio.ensure_future(anext(run))
        await until(lambda: model_state_of(trainer.model).changing.waiting)  # the batch is taken, and its step not begun
        mine.cancel()
        hang.release()
        await other
        with pytest.raises(asyncio.CancelledError):
            await mine
        assert [report.step async for report in run] == [2]
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


def run_and_thread(trainer: Trainer, steps: int | None) -> tuple[Any, threading.Thread]:
    """Begin a run and return it with the thread that advances its batches."""
    before = {*threading.enumerate()}
    run = trainer.run(list(BATCHES[:2]), steps=steps)
    (thread,) = {*threading.enumerate()} - before
    return run, thread


async def test_the_thread_of_a_run_ends_with_its_batches_its_steps_or_the_engine() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        (whole, its), (some, other), (begun, last) = [run_and_thread(trainer, steps) for steps in (None, 1, None)]
        assert [report.step async for report in whole] == [1, 2]
        assert [report.step async for report in some] == [3]
        for run, thread in ((whole, its), (some, other)):
            thread.join(HANG_S)
            assert not thread.is_alive()
            with pytest.raises(StopAsyncIteration):
                await anext(run)
        await anext(begun)
        assert last.is_alive()
    assert not last.is_alive()
    with pytest.raises(StopAsyncIteration):
        await anext(begun)


async def test_a_report_says_what_happened() -> None:
    cap = SHORTER.config.states_nbytes // 4
    async with Engine("emulated", device_memory=cap) as engine:
        trainer = await trainer_on(engine)
        reports = [report async for report in trainer.run([*BATCHES[:3], BATCHES[0]])]
        statistics = engine.statistics()
    for number, (_, targets) in enumerate([*BATCHES[:3], BATCHES[0]], 1):
        report = reports[number - 1]
        assert (report.step, report.tokens, report.skipped) == (number, np.count_nonzero(targets != -100), False)
        assert report.lr == OPTIMIZER.rate(number)
        assert report.tokens_per_s == pytest.approx(SHORTER.batch * SHORTER.length / report.step_s)
        assert 0 < report.device_peak_bytes <= cap
        assert report.uploaded_bytes > 0
        assert report.downloaded_bytes > 0
        assert report.stall_s >= 0
    assert sum(report.uploaded_bytes for report in reports) == statistics.uploaded_bytes
    # The first step finds the device empty. The second loads the tiles to where all played steps begin.
    assert reports[2].uploaded_bytes == reports[3].uploaded_bytes
    assert [report.played for report in reports] == [False, True, True, True]


async def test_a_skipped_or_repeated_step_leaks_nothing() -> None:
    async with Engine("emulated", device_memory=SHORTER.config.states_nbytes // 8) as engine:
        trainer = await trainer_on(engine)
        for batch in BATCHES[:2]:
            await trainer.step(*batch)
        used = engine.statistics().host_used_bytes
        for _ in range(3):
            disguise = Once(engine, "cross_entropy", 5, broken)
            with pytest.raises(DeviceError):
                await trainer.step(*BATCHES[2])
            disguise.restore()
        for _ in range(2):  # the second is played, as the last one before was: its inputs keep their places
            assert await trainer.step(*BATCHES[2])
        assert engine.statistics().host_used_bytes == used


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"clip_norm": 0}, "clip_norm is 0.*above 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0.*above 0"),
        ({"clip_norm": float("nan")}, "clip_norm is nan.*above 0"),
        ({"clip_norm": "1"}, "clip_norm is '1'.*above 0"),
        ({"micro_batches": 0}, "micro_batches is 0.*at least 1"),
        ({"micro_batches": 1.5}, "micro_batches is 1.5.*at least 1"),
        ({"micro_batches": True}, "micro_batches is True.*at least 1"),
        ({"replicas": 0}, "replicas is 0, expected a power of two"),
        ({"replicas": 3}, "replicas is 3, expected a power of two"),
        ({"replicas": 2.0}, "replicas is 2.0, expected a power of two"),
        ({"replicas": "4"}, "replicas is '4', expected a power of two"),
        ({"replicas": True}, "replicas is True, expected a power of two"),
        ({"recompute": "yes"}, "recompute is 'yes', expected True, False or 'auto'"),
        ({"recompute": None}, "recompute is None, expected"),
        ({"recompute": 1}, "recompute is 1, expected"),
    ],
)
async def test_wrong_settings_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, SHORTER.config, tile=SHORTER.tile)
        with pytest.raises(ValueError, match=sentence):
            Trainer(model, AdamW(), **arguments)


async def test_work_on_a_closed_engine_is_refused() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeviceError, match="make a new Engine to go on"):
            await trainer.step(*BATCHES[0])
