"""The texts of `Model.generate`: by a seed, the likeliest, beyond block_size; and what it refuses.

test_server.py tests served texts, test_sampling.py choices, tests/reference/test_generate.py the texts of other programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2
from tests.layers.training import SMALL, lively

CONFIG = SMALL.config
Arguments = dict[str, Any]


async def tokens_of(model: GPT2, *args: Any, **more: Any) -> list[int]:
    return [token async for token in model.generate(*args, **more)]


async def test_generation_is_reproducible_by_its_seed() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        one, same, other = [await tokens_of(model, [1, 2], max_new_tokens=12, seed=seed) for seed in (5, 5, 6)]
        assert one == same
        assert one != other
        assert len(one) == 12
        assert set(one) <= set(range(CONFIG.vocab_size))
        assert await tokens_of(model, np.array([1, 2]), max_new_tokens=0) == []


async def test_temperature_zero_and_top_1_take_the_likeliest_also_beyond_block_size() -> None:
    """With more tokens than block_size the window slides."""
    count = 2 * CONFIG.block_size
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        greedy = await tokens_of(model, [4], max_new_tokens=count, temperature=0)
        assert greedy == await tokens_of(model, [4], max_new_tokens=count, temperature=0.7, top_k=1, seed=1)
        ids = [4]
        for _ in range(count):
            ids.append(int((await model.logits([ids[-CONFIG.block_size :]]))[0, -1].argmax()))
    assert greedy == ids[1:]


async def test_a_high_penalty_repeats_nothing_and_narrow_choices_are_the_likeliest() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        greedy = await tokens_of(model, [4], max_new_tokens=5, temperature=0)
        for narrow in ({"top_p": 1e-6}, {"min_p": 1.0}):
            assert await tokens_of(model, [4], max_new_tokens=5, top_k=None, seed=1, **narrow) == greedy
        prompt = [4, *greedy]
        text = await tokens_of(model, prompt, max_new_tokens=5, temperature=0, repetition_penalty=1e6)
        assert len({*prompt, *text}) == len({*prompt}) + 5
        assert (await tokens_of(model, prompt[:1], max_new_tokens=1, temperature=0, repetition_penalty=1e6)) == greedy[:1]


@pytest.mark.parametrize("more", [-1, 0, 1, 1000])
async def test_a_prompt_longer_than_the_window_continues_like_its_last_block_size_tokens(more: int) -> None:
    length = CONFIG.block_size + more
    prompt = np.random.default_rng(1).integers(0, CONFIG.vocab_size, length).tolist()
    settings: Arguments = {"max_new_tokens": 3, "temperature": 0}
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        expected = await tokens_of(model, prompt[-CONFIG.block_size :], **settings)
        assert await tokens_of(model, prompt, **settings) == expected
        assert await tokens_of(model, np.array(prompt), **settings) == expected
        likeliest = (await model.logits([prompt[-CONFIG.block_size :]]))[0, -1].argmax()
    assert expected[0] == likeliest


async def test_wrong_prompts_and_settings_are_refused() -> None:
    """A server refuses the same ones; see WRONG in test_server.py."""
    wrong: list[tuple[Any, Arguments, type[Exception], str]] = [
        ([1] * 99 + [35], {}, ValueError, "prompt_ids contains 35.*0 to 34"),
        ("a text", {}, TypeError, "prompt_ids is a string.*; encode it with the tokenizer"),
        (1, {}, ValueError, "prompt_ids has shape"),
        ([1], {"max_new_tokens": -1}, ValueError, "max_new_tokens is -1.*at least 0"),
        ([1], {"top_p": 2}, ValueError, "top_p is 2.*above 0, at most 1"),
    ]
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG)
        for prompt, arguments, kind, sentence in wrong:
            with pytest.raises(kind, match=sentence) as caught:
                await tokens_of(model, prompt, **arguments)
            assert "\n" not in str(caught.value)
