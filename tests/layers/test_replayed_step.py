"""The cost of a played step for the engine's loop, apart from the player. tests/execute tests that such steps are right."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.share import runtime_of
from tests.cuda.idle import IdleDriver

STEPS = 5
#: Wake-ups of the loop that may come together or one by one.
CHANCE = 60
#: About the number of calls when this was written; each takes about half a microsecond.
MOST = 700


async def calls_a_step(device: str, layers: int) -> tuple[int, int]:
    """Return the fewest Python calls of the engine's loop in a played step, and the operations of a step."""
    config = GPT2Config(n_layer=layers, n_head=2, n_embd=32, block_size=16, vocab_size=32)
    tokens = np.arange(32).reshape(2, 16)
    count = 0

    def seen(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    async def profile(by: Any) -> None:
        sys.setprofile(by)  # of this thread alone

    async with Engine(device) as engine:
        trainer = Trainer(await GPT2.create(engine, config, tile=16))
        for _ in range(3):
            report = await trainer.step(tokens, tokens)
        assert report.played
        found = []
        for _ in range(STEPS):
            await runtime_of(engine).call(profile(seen))
            count = 0
            await trainer.step(tokens, tokens)
            found.append(count)
            await runtime_of(engine).call(profile(None))
        return min(found), engine.statistics().operations // trainer.step_count


@pytest.mark.parametrize("device", ["cpu", "emulated", "cuda:0"])
async def test_the_cost_of_a_played_step_for_the_loop_does_not_grow_with_the_program(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.device.open_driver", lambda name: IdleDriver())
    few, operations = await calls_a_step(device, 1)
    many, more = await calls_a_step(device, 5)
    assert more > 4 * operations
    assert many <= few + CHANCE
    assert many <= MOST
