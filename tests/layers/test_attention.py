"""The gradient of attention in training: sequences of one token teach queries and keys nothing.

tests/reference checks every gradient, tests/kernels checks the gradient of every kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import AdamW, Trainer
from tests import verbs
from tests.layers.shapes import Shape
from tests.layers.shapes import shape as make_shape
from tests.layers.training import batches_of, lively, states_of

#: Sequences of one token; row tiles of one sequence and of several.
ALONE = make_shape(16, 2, 33, 9, tile=8, batch=1, length=1, n_layer=1)
SEVERAL = make_shape(24, 3, 40, 9, tile=8, batch=6, length=1, micro_batches=2, n_layer=1)
OPTIMIZER = AdamW(lr=1e-2, weight_decay=0.1)


@pytest.mark.parametrize("shape", [ALONE, SEVERAL], ids=["alone", "several in a tile"])
async def test_50_steps_on_single_tokens_only_decay_queries_and_keys(shape: Shape) -> None:
    await check(shape, 50, device="cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.usefixtures("soft_gpu")
async def test_gpu_kernels_also_only_decay_queries_and_keys(precision: str) -> None:
    await check(ALONE, 2, device="cuda:0", precision=precision)


async def check(shape: Shape, steps: int, **place: Any) -> None:
    """Each query sees only itself, whatever its score. A computed gradient would leave 2e-7, which AdamW enlarges."""
    scores = 2 * shape.config.n_embd  # columns of queries and keys in c_attn
    async with Engine(**place) as engine:
        trainer = Trainer(await lively(engine, shape), OPTIMIZER, micro_batches=shape.micro_batches)
        expected = await trainer.model.state_dict()
        for step, batch in enumerate(batches_of(shape, steps), 1):
            await trainer.step(*batch)
            for value in expected.values():
                zeros = [np.zeros_like(value) for _ in range(3)]
                verbs.adamw(value, *zeros, OPTIMIZER.hyper(step), value.ndim == 2, 0, np.zeros(1))  # changes the value
        found = await states_of(trainer)
    name = "transformer.h.0.attn.c_attn"
    for tensor in (f"{name}.weight", f"{name}.bias"):
        assert found[tensor][..., :scores].tobytes() == expected[tensor][..., :scores].tobytes()
        assert (found[tensor][..., scores:] != expected[tensor][..., scores:]).all()
        for family in ("exp_avg", "exp_avg_sq"):
            assert not found[f"{tensor}.{family}"][..., :scores].any()
