"""Evaluating a model on a text: the targets that a mean covers, and its units."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, ByteTokenizer, GPT2Config, evaluate
from asynctile.layers.evaluation import mean_bytes
from asynctile.layers.tokenizer import train_bpe

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=300)


@pytest.fixture
async def model() -> AsyncIterator[GPT2]:
    async with Engine("cpu", host_memory="64MiB") as engine:
        yield await GPT2.create(engine, CONFIG, seed=1)


def batch(number: int, counted: int = 16) -> tuple[Any, Any]:
    """Return (tokens, targets) of shape (2, 8), of which the first `counted` targets count."""
    tokens, targets = np.random.default_rng(number).integers(0, 300, (2, 2, 8))
    targets.reshape(-1)[counted:] = -100
    return tokens, targets


async def test_every_target_has_the_same_weight_in_any_batch(model: GPT2) -> None:
    batches = [batch(1), batch(2, counted=3), batch(3, counted=9)]
    found = await evaluate(model, batches)
    whole = await model.loss(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))
    assert found.loss == pytest.approx(whole, rel=1e-6)
    assert found.loss != pytest.approx(np.mean([await model.loss(*one) for one in batches]), rel=1e-5)
    assert found.tokens == 16 + 3 + 9 and found.seconds > 0
    assert found.perplexity == pytest.approx(math.exp(found.loss)) and found.bits_per_byte is None


async def test_bits_per_byte_do_not_depend_on_the_length_of_tokens(model: GPT2) -> None:
    found = await evaluate(model, [batch(1)], bytes_per_token=4.0)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) / 4)


def test_a_token_stands_for_the_bytes_of_its_text() -> None:
    text = "the tile moved from here to there é \n" * 20
    for tokenizer in (ByteTokenizer(), train_bpe([text], 290)):
        ids = tokenizer.encode(text)
        rows = [ids[:150], ids[150:]]
        assert mean_bytes(tokenizer, rows) == pytest.approx(len(text.encode()) / len(ids), rel=0.01)
    assert mean_bytes(ByteTokenizer(), [np.array([0xC3, 0xFF])]) == 1.0, "also of bytes that are no text"
    assert mean_bytes(train_bpe([text], 290), []) is None


async def test_an_error_in_progress_ends_evaluation_and_the_model_goes_on(model: GPT2) -> None:
    seen = []

    def stop(done: int) -> None:
        seen.append(done)
        if done == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        await evaluate(model, (batch(n) for n in range(4)), progress=stop)
    assert seen == [1, 2]
    assert (await evaluate(model, [batch(0)])).tokens == 16


async def test_without_a_batch_there_is_no_result(model: GPT2) -> None:
    with pytest.raises(ValueError, match="no target to evaluate"):
        await evaluate(model, [])
    with pytest.raises(TypeError, match="batches is int"):
        await evaluate(model, 3)  # type: ignore[arg-type]
