"""Usual guesses, answered with the right name; hasattr, copies, pickles, signatures and generators must not notice."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import (
    GPT2,
    AdamW,
    GPT2Config,
    LlamaConfig,
    LoRA,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Server,
    Trainer,
)
from asynctile.layers.guesses import ARGUMENTS, ATTRIBUTES
from tests.layers.saving import BATCHES, trainer_on

CONFIGS = (GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)
CLASSES: dict[str, Any] = {"Model": GPT2, **{cls.__name__: cls for cls in (Trainer, AdamW, LoRA, Server, *CONFIGS)}}

GUESSES: list[tuple[Callable[[Trainer], Any], type[Exception], str]] = [
    (lambda trainer: trainer.train, AttributeError, r"'Trainer' object has no attribute 'train'; use trainer\.run\(batches\)"),
    (lambda trainer: trainer.evaluate, AttributeError, r"use asynctile\.layers\.evaluate\(trainer\.model, batches\)"),
    (lambda trainer: trainer.model.save, AttributeError, r"'GPT2' object has no attribute 'save'; use model\.save_pretrained"),
    (lambda trainer: trainer.model.train(), AttributeError, r"no attribute 'train'; use Trainer\(model\)\.run\(batches\)"),
    (lambda trainer: trainer.model.bogus, AttributeError, r"^'GPT2' object has no attribute 'bogus'$"),
    (lambda trainer: GPT2(trainer.model.engine, trainer.model.config), TypeError, r"make a model with await Model\.create"),
    (lambda trainer: AdamW(learning_rate=1), TypeError, r"AdamW.__init__\(\) has no argument 'learning_rate'; use lr"),
    (lambda trainer: LoRA(r=8), TypeError, "no argument 'r'; use rank"),
    (lambda trainer: GPT2Config(n_positions=8), TypeError, "no argument 'n_positions'; use block_size"),
    (lambda trainer: Qwen3Config(n_embd=8), TypeError, "no argument 'n_embd'; use hidden_size"),
    (lambda trainer: LlamaConfig(num_hidden_layers=8), TypeError, "no argument 'num_hidden_layers'; use n_layer"),
    (lambda trainer: GPT2Config(bogus=8), TypeError, "unexpected keyword argument 'bogus'"),
    (lambda trainer: trainer.model.generate([1], max_tokens=1), TypeError, "'max_tokens'; use max_new_tokens"),
    (lambda trainer: list(trainer.model.generate([1])), TypeError, "use 'async for' in a coroutine"),
    (lambda trainer: list(trainer.run(BATCHES)), TypeError, "'Steps' object cannot be iterated by a plain for; use 'async"),
]


async def test_a_guess_is_answered_with_the_right_name() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        for guess, kind, sentence in GUESSES:
            with pytest.raises(kind, match=sentence) as caught:
                guess(trainer)
            assert "\n" not in str(caught.value)


def test_guessed_names_do_not_exist_and_suggested_names_do() -> None:
    for name, names in ATTRIBUTES.items():
        assert not [guess for guess in names if hasattr(CLASSES[name], guess)]
    for name, methods in ARGUMENTS.items():
        for method, names in methods.items():
            there = inspect.signature(getattr(CLASSES[name], method)).parameters
            assert not names.keys() & there and {re.split("=| and ", meant)[0] for meant in names.values()} <= there.keys()


async def test_copies_pickles_and_inspection_do_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(inspect.signature(AdamW)).startswith("(lr: 'float' = 0.0003") and AdamW.__init__.__name__ == "__init__"
    for one in (AdamW(lr=0.5), GPT2Config(n_layer=2), Qwen3Config(n_layer=2)):
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == replace(one) == one
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        assert not hasattr(trainer, "train") and hasattr(trainer, "run") and getattr(trainer, "fit", 5) == 5
        assert copy.copy(trainer).model is trainer.model

        def broken(self: Trainer) -> int:
            raise AttributeError("the inner error")

        monkeypatch.setattr(Trainer, "step_count", property(broken))
        with pytest.raises(AttributeError, match="the inner error"):
            _ = trainer.step_count


async def test_a_text_is_an_ordinary_async_generator() -> None:
    async with Engine("cpu") as engine:
        model = (await trainer_on(engine)).model
        async with aclosing(model.generate([1], max_new_tokens=3, seed=1)) as text:
            assert isinstance(text, AsyncGenerator)
            first, second = await anext(text), await text.asend(None)
            with pytest.raises(KeyError):
                await text.athrow(KeyError())
        assert [first, second] == [token async for token in model.generate([1], max_new_tokens=2, seed=1)]
        text = model.generate([1])
        assert await anext(text) is not None
        await text.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(text)
