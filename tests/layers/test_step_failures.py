"""A step that fails in its middle, or whose loss or gradients are not finite: the model is as it was, or torn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import DeviceError, Engine, TornModelError
from asynctile.layers import Trainer
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.disturbances import BATCHES, BEFORE, DEVICES, Broken, Once, broken, trainer_on, uninterrupted
from tests.layers.training import SHORTER, assert_same_tensors, states_of


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
