"""The rate that a trainer's speed is judged by: when it is measured, that it evicts nothing, and that no result depends on it.

tests/measure/test_rates.py tests the memory that a probe uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine, Statistics
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.measure import rates
from asynctile.share import runtime_of
from tests.inside_engine import device_of

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=64)
DEVICES: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu", "host_memory": "64MiB"},
    "emulated": {"device": "emulated", "device_memory": "64MiB", "host_memory": "64MiB"},
    "capped": {"device": "emulated", "device_memory": "640KiB", "host_memory": "64MiB"},
}


def batch(step: int) -> Any:
    tokens = np.random.default_rng(step).integers(0, 64, (4, 17))
    return tokens[:, :-1], tokens[:, 1:]


async def trained(engine: Engine, *, measured: bool) -> tuple[list[float], dict[str, bytes]]:
    """Return losses and weights of a few steps, with the rate measured before the first and between two, or never."""
    trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-3))
    losses = []
    for step in range(5):
        if measured and step in (0, 3):
            assert await trainer.gemm_rate(4, 16)
        losses.append((await trainer.step(*batch(step))).loss)
    return losses, {name: array.tobytes() for name, array in (await trainer.model.state_dict()).items()}


async def test_no_result_depends_on_the_rate() -> None:
    found = []
    for measured in (False, True):
        async with Engine(**DEVICES["capped"]) as engine:
            found.append(await trained(engine, measured=measured))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", DEVICES.values(), ids=DEVICES)
async def test_the_probe_moves_nothing_and_gives_its_memory_back(options: dict[str, Any]) -> None:
    def moved(now: Statistics) -> tuple[int, ...]:
        return now.uploaded_bytes, now.downloaded_bytes, now.host_used_bytes, now.device_used_bytes

    async with Engine(**options) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW(lr=1e-3))
        await trainer.gemm_rate(4, 16)  # the arena is divided for its steps
        before = moved(engine.statistics())
        rate = await trainer.gemm_rate(4, 16)
        assert rate is not None and np.isfinite(rate) and rate > 0
        assert moved(engine.statistics()) == before
        assert runtime_of(engine).tiers.host.arena.lent_nbytes == 0
        assert engine.statistics().host_peak_bytes <= 64 << 20


async def test_products_are_large_even_if_the_tiles_of_a_small_model_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, ...]] = set()
    async with Engine("cpu", host_memory="64MiB") as engine:
        launch = device_of(engine).launch

        def noted(operation: Any, arrays: Any, *more: Any) -> Any:
            if operation.kernel == "gemm":
                seen.update(array.shape for array in arrays)
            return launch(operation, arrays, *more)

        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1))
        monkeypatch.setattr(device_of(engine), "launch", noted)
        await trainer.gemm_rate(4, 16)
    assert seen == {(rates.CORE_GEMM_EDGE, rates.CORE_GEMM_EDGE)}


async def test_the_rate_stays_unknown_where_a_probe_would_evict_tiles(tmp_path: Path) -> None:
    async with Engine("cpu", host_memory="640KiB", spill=tmp_path) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1))
        assert await trainer.gemm_rate(4, 16) is None
        before = engine.statistics().spill_written_bytes  # the arena was divided
        assert await trainer.gemm_rate(4, 16) is None
        assert engine.statistics().spill_written_bytes == before
        assert (await trainer.step(*batch(0))).step == 1


def test_the_models_arithmetic_is_counted_as_usual() -> None:
    """124M parameters, of which 1024 x 768 are positions; 12 layers, 768 columns."""
    assert GPT2Config.named("gpt2").flops_per_token(1024) == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024
