"""What an engine takes of a real GPU, by the driver's own count, and what it gives back."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from asynctile import Engine, device
from asynctile.device.cuda import RESERVE_NBYTES
from asynctile.layers import GPT2, GPT2Config, Trainer
from tests.gpu.conftest import NAME
from tests.layers.training import SMALL, lively

pytestmark = pytest.mark.gpu

CONFIG = GPT2Config(n_layer=4, n_head=8, n_embd=512, block_size=256, vocab_size=8000)
#: Beyond the cap: scratch, cuBLAS and its workspace, the kernels. A context is there before.
OVERHEAD = 256 << 20


@pytest.fixture
def config(rehearsed: bool) -> GPT2Config:
    return SMALL.config if rehearsed else CONFIG


def free_now() -> int:
    """The driver's count; it makes this process's context if there is none yet."""
    gc.collect()
    driver = device.open_driver(NAME)
    try:
        return driver.memory()[0]
    finally:
        driver.close()


class Watched:
    """A driver that notes the least memory it saw free whenever something was taken."""

    def __init__(self, engine: Engine) -> None:
        self.driver: Any = engine._device.driver  # type: ignore[attr-defined]
        self.least = self.driver.memory()[0]
        self._malloc = self.driver.malloc
        self.driver.malloc = self.malloc

    def malloc(self, nbytes: int) -> int:
        address = int(self._malloc(nbytes))
        self.look()
        return address

    def look(self) -> None:
        self.least = min(self.least, self.driver.memory()[0])


@pytest.mark.parametrize("share", [0.25, 0.5, None])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_a_training_stays_below_its_cap_and_a_stated_overhead(
    share: float | None, precision: str, config: GPT2Config, rehearsed: bool
) -> None:
    """Where everything fits, each size of slots may have a slab that is not full: that much is left free beside every cap."""
    cap = 4 * config.states_nbytes if share is None else max(int(share * config.states_nbytes), 48 << 10)
    beyond = RESERVE_NBYTES if share is None else OVERHEAD
    before = free_now()
    async with Engine(NAME, device_memory=cap, precision=precision) as engine:
        watched = Watched(engine)
        if rehearsed:
            before = watched.least
        model = await GPT2.create(engine, config, seed=1, tile=SMALL.tile if rehearsed else None)
        trainer = Trainer(model)
        tokens, targets = SMALL.batch_of_tokens()
        for _ in range(4):
            await trainer.step(tokens, targets)
            watched.look()
        assert engine.statistics().device_peak_bytes <= cap
    assert before - watched.least <= cap + beyond


async def test_what_an_engine_took_is_free_again_when_it_has_closed() -> None:
    first = await _trained()
    assert abs(first - await _trained()) <= 32 << 20, "each engine leaves something behind"


async def _trained() -> int:
    async with Engine(NAME, precision="bf16") as engine:
        trainer = Trainer(await lively(engine, SMALL), micro_batches=SMALL.micro_batches)
        for _ in range(3):
            await trainer.step(*SMALL.batch_of_tokens())
    return free_now()


async def test_the_cap_of_an_engine_without_one_is_what_is_free() -> None:
    async with Engine(NAME) as engine:
        assert engine.device_cap is not None
        assert engine.device_cap <= free_now() + OVERHEAD
