"""A device of several that fails, hangs or is cancelled: the model is as before or torn, and the engine closes whole.

A stand-in for a kernel meets one device alone where steps run as coroutines; where they are played, it meets the device that
makes the n-th call. Random disturbances are those of `asynctile stress`. test_step_failures.py and test_step_cancellations.py
test one device.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import AsynctileError, DeviceError, Engine, StalledError, TierError, TornModelError
from asynctile.cli.stress.disturb import Disturbance, Reached, disturbed
from asynctile.cli.stress.leaks import Held
from asynctile.cli.stress.settled import Settled
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from asynctile.storage.faults import Faults
from tests.execute import interleaving
from tests.execute.interleaving import SHORT
from tests.execute.traps import TRAPS, set_trap
from tests.inside_engine import watch
from tests.laws import covering, law
from tests.layers.disturbances import Broken, Hang, Once, broken
from tests.layers.training import Tensors, assert_same_tensors, batches_of, states_of
from tests.settle import HANG_S, settle

#: SHORT with a sequence for each of four replicas.
SHAPE = replace(SHORT, batch=4, replicas=4)
BATCHES = batches_of(SHAPE, 5)
#: Sequences too long for one row tile, so that every device gets one.
VALIDATION = replace(SHAPE, length=17).batch_of_tokens()
STATES = SHAPE.config.states_nbytes
#: Options of an engine; "spill" becomes a folder.
PLACES: dict[str, dict[str, Any]] = {
    "three under a cap": {"device": "emulated*3", "device_memory": STATES // 2},
    "two over a file": {"device": "emulated*2", "device_memory": STATES // 2, "host_memory": STATES, "spill": True},
    "two": {"device": "emulated*2"},
}
CLIPPED = {"clip_norm": 0.5}
_undisturbed: dict[tuple[bool, int], Tensors] = {}


@asynccontextmanager
async def training(
    place: dict[str, Any], folder: Path, *, plays: bool, traps: str = "", **options: Any
) -> AsyncIterator[tuple[Engine, Trainer]]:
    """Open a training after its first two steps. After its block nothing of the engine may be left.

    traps: the kernel to set a trap for.
    """
    spill = folder / "spill"
    spill.mkdir()
    await undisturbed(2)  # the first engine of a process opens files that stay
    before = Held.now(spill)
    place = place | ({"spill": spill} if place.get("spill") else {})
    async with interleaving.training(place, plays=plays, shape=SHAPE, replicas=SHAPE.replicas, **options) as (engine, trainer):
        if traps:
            set_trap(engine, traps)
        reports = [await trainer.step(*batch) for batch in BATCHES[:2]]
        assert reports[-1].played is plays
        yield engine, trainer
    await asyncio.sleep(0)  # finished tasks leave the loop's list
    before.expect_no_more(spill)


async def undisturbed(steps: int, *, clipped: bool = False) -> Tensors:
    """Return the states after so many steps on one device."""
    if (clipped, steps) not in _undisturbed:
        options = CLIPPED if clipped else {}
        async with interleaving.training({"device": "cpu"}, shape=SHAPE, replicas=SHAPE.replicas, **options) as (_, trainer):
            for batch in BATCHES[:steps]:
                await trainer.step(*batch)
            _undisturbed[clipped, steps] = await states_of(trainer)
    return _undisturbed[clipped, steps]


async def expect_unchanged(trainer: Trainer, *, clipped: bool = False) -> None:
    """Assert that the model is as after two steps, and that the next steps have the bits of an undisturbed training."""
    assert (trainer.step_count, trainer.model.torn) == (2, None)
    assert_same_tensors(await states_of(trainer), await undisturbed(2, clipped=clipped))
    for batch in BATCHES[2:4]:
        await trainer.step(*batch)
    assert_same_tensors(await states_of(trainer), await undisturbed(4, clipped=clipped))


async def expect_whole(engine: Engine, trainer: Trainer, checkpoint: Path) -> None:
    """Do the same; if the model is torn, with the checkpoint of two steps."""
    if trainer.model.torn is not None:
        await trainer.model.release()
        trainer = await Trainer.load(engine, checkpoint, update="device")
    await expect_unchanged(trainer)


def last_of(engine: Engine) -> dict[str, Any]:
    """Return the kernels of the engine's last device, which no other device calls from now on."""
    device: Any = runtime_of(engine).tiers.devices[-1]
    device.kernels = dict(device.kernels)
    return device.kernels


#: Kernel and call on the last device, before any device updates a weight.
BEFORE = {"the first operation": ("embed_tokens", 1), "in a block": ("gelu", 1), "in the head": ("cross_entropy", 1)}


@pytest.mark.parametrize(("place", "at"), covering(PLACES, BEFORE, few=1))
async def test_a_device_that_fails_before_the_first_update_changes_nothing(
    place: dict[str, Any], at: tuple[str, int], tmp_path: Path
) -> None:
    async with training(place, tmp_path, plays=False) as (engine, trainer):
        disguise = Once(engine, *at, broken, last_of(engine))
        with pytest.raises(DeviceError, match=r"step 3 failed before it changed the model.*broke.*can be repeated"):
            await trainer.step(*BATCHES[2])
        disguise.restore()
        await expect_unchanged(trainer)


async def test_a_device_that_fails_in_the_first_phase_of_a_clipped_step_changes_nothing(tmp_path: Path) -> None:
    async with training(PLACES["two over a file"], tmp_path, plays=False, **CLIPPED) as (engine, trainer):
        disguise = Once(engine, "embed_tokens_backward", 1, broken, last_of(engine))
        with pytest.raises(DeviceError, match=r"step 3 failed before it changed the model"):
            await trainer.step(*BATCHES[2])
        disguise.restore()
        await expect_unchanged(trainer, clipped=True)


async def test_a_device_that_fails_in_a_validation_changes_nothing(tmp_path: Path) -> None:
    async with training(PLACES["two over a file"], tmp_path, plays=False) as (engine, trainer):
        expected = await trainer.model.loss(*VALIDATION)
        disguise = Once(engine, *BEFORE["in a block"], broken, last_of(engine))
        with pytest.raises(Broken):
            await trainer.model.loss(*VALIDATION)
        disguise.restore()
        assert await trainer.model.loss(*VALIDATION) == expected
        await expect_unchanged(trainer)


@pytest.mark.parametrize(("place", "call"), covering(PLACES, [2, 5, 8], few=1))
async def test_a_played_kernel_that_fails_on_any_device_before_the_first_update_changes_nothing(
    place: dict[str, Any], call: int, tmp_path: Path
) -> None:
    async with training(place, tmp_path, plays=True, traps="gelu") as (_, trainer):
        trap = TRAPS["gelu"]
        trap.spring_at(call)
        with pytest.raises(DeviceError, match=r"step 3 failed before it changed the model: .*gelu.*can be repeated"):
            await trainer.step(*BATCHES[2])
        assert trap.has_sprung
        await expect_unchanged(trainer)


#: Kernel and call on the last device, behind the first update of some device.
AFTER = {"the first update": ("adamw", 1), "the twelfth": ("adamw", 12), "backward": ("attention_backward_whole", 1)}


@pytest.mark.parametrize(("place", "at", "plays"), covering(PLACES, AFTER, [False, True], few=2))
async def test_a_device_that_fails_after_the_first_update_tears_the_model(
    place: dict[str, Any], at: tuple[str, int], plays: bool, tmp_path: Path
) -> None:
    kernel, call = at
    async with training(place, tmp_path, plays=plays, traps=kernel) as (engine, trainer):
        await trainer.save(tmp_path / "two")
        if plays:
            TRAPS[kernel].spring_at(call)
        else:
            Once(engine, kernel, call, broken, last_of(engine))
        with pytest.raises(TornModelError, match=r"step 3 failed after its first update") as caught:
            await trainer.step(*BATCHES[2])
        assert plays or isinstance(caught.value.__cause__, Broken)
        with pytest.raises(TornModelError, match=f"load the last checkpoint .*{tmp_path / 'two'}"):
            await trainer.model.loss(*BATCHES[2])
        await trainer.model.release()
        now = engine.statistics()
        assert (now.device_used_bytes, now.host_used_bytes, now.spill_used_bytes) == (0, 0, 0)
        await expect_unchanged(await Trainer.load(engine, tmp_path / "two", update="device"))


@pytest.mark.parametrize(("way", "call"), covering(["_down", "_up"], [30, 1], few=1))
async def test_a_copy_that_fails_leaves_the_model_unchanged_or_torn(way: str, call: int, tmp_path: Path) -> None:
    async with training(PLACES["two over a file"], tmp_path, plays=False) as (engine, trainer):
        await trainer.save(tmp_path / "two")
        link = getattr(runtime_of(engine).tiers.devices[1], way)
        true, calls = link.copy, iter(range(1, 1 << 20))

        def copy(target: np.ndarray, source: np.ndarray) -> None:
            if next(calls) == call:
                raise OSError("the link broke")
            true(target, source)

        link.copy = copy
        with pytest.raises(AsynctileError, match="the link broke"):
            await trainer.step(*BATCHES[2])
        link.copy = true
        await expect_whole(engine, trainer, tmp_path / "two")


@pytest.mark.parametrize(("kind", "nth", "plays"), covering(["eio_read", "eio_write"], [0, 9, 25], [False, True], few=2))
async def test_a_disk_that_fails_leaves_the_model_unchanged_or_torn(
    kind: str, nth: int, plays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.storage.spill.PAUSES_S", (0.001,))
    faults = Faults(seed=1)
    place = PLACES["two over a file"] | {"wrap_spill": faults.wrap}
    async with training(place, tmp_path, plays=plays) as (engine, trainer):
        await trainer.save(tmp_path / "two")
        faults.arm(kind, after=nth, lasting=True)
        with pytest.raises((TornModelError, TierError), match="spill"):
            await trainer.step(*BATCHES[2])
        faults.disarm()
        await expect_whole(engine, trainer, tmp_path / "two")


async def test_a_device_that_hangs_is_named_and_the_engine_closes(tmp_path: Path) -> None:
    answer = threading.Event()
    async with training(PLACES["three under a cap"] | {"watchdog": None}, tmp_path, plays=False) as (engine, trainer):
        Once(engine, "gelu", 1, lambda: answer.wait(HANG_S), last_of(engine))
        watch(engine, 0.3)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(StalledError) as caught:
                await trainer.step(*BATCHES[2])
        answer.set()
    assert re.search(r"nothing has moved for 0.3 s.*gelu\(.*has run on compute:2", str(caught.value))


@pytest.mark.parametrize(
    ("at", "counts"), [(("gelu", 1), False), law(("cross_entropy", 1), False), law(("adamw", 1), True), (("adamw", 12), True)]
)
async def test_a_step_cancelled_while_a_device_holds_it_changes_nothing_or_counts(
    at: tuple[str, int], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The host cannot run ahead to the update, past the held kernel.
    monkeypatch.setattr("asynctile.streams.run_ahead.RUN_AHEAD_OPERATIONS", 32)
    async with training(PLACES["three under a cap"], tmp_path, plays=False) as (engine, trainer):
        device = runtime_of(engine).tiers.device
        device.grain = replace(device.grain, run_ahead=32)
        hang = Hang(engine, *at, kernels=last_of(engine))
        step = asyncio.create_task(trainer.step(*BATCHES[2]))
        await hang.reached()
        step.cancel()
        await settle(engine)
        assert not step.done()
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert trainer.step_count == 2 + counts and trainer.model.torn is None
        for batch in BATCHES[trainer.step_count : 4]:
            await trainer.step(*batch)
        assert_same_tensors(await states_of(trainer), await undisturbed(4))


@pytest.mark.parametrize(("place", "plays", "how"), covering(PLACES, [False, True], ["cancel", "timeout", "loop ends"], few=2))
async def test_a_step_disturbed_at_any_await_changes_nothing_or_counts(
    place: dict[str, Any], plays: bool, how: str, tmp_path: Path
) -> None:
    async with training(place, tmp_path, plays=plays) as (engine, trainer):
        settled = Settled(engine, [model_state_of(trainer.model).changing], tmp_path, {"spill"})
        for turns in (0, 1, 4, 16, 64, 256, 1024):
            before = trainer.step_count
            disturbance = Disturbance(how=how, turns=turns, elsewhere=how == "loop ends")
            await disturbed(partial(trainer.step, *BATCHES[before]), disturbance, Reached(0))
            await settled.wind_down(how)
            assert trainer.model.torn is None and trainer.step_count - before in (0, 1)
            assert_same_tensors(await states_of(trainer), await undisturbed(trainer.step_count))
            if trainer.step_count == len(BATCHES):
                break
        for batch in BATCHES[trainer.step_count :]:
            await trainer.step(*batch)
        assert_same_tensors(await states_of(trainer), await undisturbed(len(BATCHES)))
