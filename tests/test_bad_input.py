"""Bad input to a service while a training, a server and a reader of events run: one sentence each, nothing is disturbed.

Covers everything that reaches a service from outside, all on one engine. Each argument by itself is tested where it is checked:
tests/layers/test_server.py, test_sampling.py, test_stopping.py; files and options in tests/cli.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine
from asynctile.events import Event, StepDone
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer, evaluate
from asynctile.layers.server import Server
from asynctile.layers.tokenizer import ByteTokenizer

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=20, block_size=16, vocab_size=35)
STEPS = 4
GOOD = {"max_new_tokens": 6, "seed": 3}


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    tokens, targets = np.random.default_rng(step).integers(0, CONFIG.vocab_size, (2, 2, 13))
    return tokens, targets


async def all_of(tokens: AsyncIterator[Any]) -> list[Any]:
    return [token async for token in tokens]


class Service:
    """Two models on one engine: one is trained, the other serves texts."""

    def __init__(self, engine: Engine, trainer: Trainer, server: Server, closed: Service | None = None) -> None:
        self.engine, self.trainer, self.server = engine, trainer, server
        self.model = trainer.model
        #: another model, whose engine is closed
        self.closed = closed

    async def share(self, **sizes: Any) -> None:
        async with self.engine.share(**sizes):
            raise AssertionError("it was lent")


Bad = Callable[[Service], Awaitable[object]]


def prompt(ids: Any, **more: Any) -> Bad:
    return lambda service: all_of(service.server.generate(ids, **more))


def continued(ids: Any) -> Bad:
    async def call(service: Service) -> object:
        return await all_of(service.model.generate(ids))

    return call


def at_closed(call: Bad) -> Bad:
    async def at(service: Service) -> object:
        assert service.closed is not None
        return await call(service.closed)

    return at


async def foreign_tokenizer(service: Service) -> object:
    return service.model.serve(tokenizer=ByteTokenizer())


async def spoken(service: Service, text: str, tokenizer: Any = None) -> object:
    """Generate with a model that has a token for each byte."""
    wide = await GPT2.create(service.engine, replace(CONFIG, vocab_size=256))
    try:
        async with wide.serve(tokenizer=tokenizer or ByteTokenizer()) as server:
            return server.generate(text)
    finally:
        await wide.release()


def made(make: Callable[[Service], object]) -> Bad:
    async def call(service: Service) -> object:
        return make(service)

    return call


BAD: list[tuple[str, Bad, type[Exception], str]] = [
    ("an empty prompt", prompt([]), ValueError, "prompt is empty"),
    ("an empty prompt to continue", continued([]), ValueError, "prompt_ids is empty"),
    ("a prompt that is too long", prompt([1] * 16), ValueError, "16 tokens, expected at most 15"),
    ("a prompt out of the vocabulary", prompt([1, 35]), ValueError, "contains 35, expected ids from 0 to 34"),
    ("one to continue", continued([1, -1]), ValueError, "contains -1"),
    ("a text without a tokenizer", prompt("text"), TypeError, "has no tokenizer"),
    ("half of a character", lambda service: spoken(service, "caf\ud800"), ValueError, "prompt has '.ud800' at character 3"),
    ("the name of a tokenizer", lambda service: spoken(service, "a", "bytes"), TypeError, "tokenizer is 'bytes', expected"),
    ("the kind of a tokenizer", lambda service: spoken(service, "a", ByteTokenizer), TypeError, "tokenizer is .*, expected"),
    ("rows of different lengths", lambda service: service.trainer.step([[1, 2], [3]], [[1]]), ValueError, "tokens has rows"),
    ("less than no steps", lambda service: all_of(service.trainer.run([], steps=-1)), ValueError, "steps is -1, expected"),
    ("a batch of one", lambda service: all_of(service.trainer.run([5])), TypeError, "a batch has type int, expected the two"),
    ("a batch with names", lambda service: all_of(service.trainer.run([{"ids": 1, "labels": 2}])), TypeError, "has type dict"),
    ("a batch of four", lambda service: all_of(service.trainer.run([(1, 2, 3, 4)])), TypeError, "a batch has 4 parts"),
    ("positions of another shape", lambda service: service.trainer.step([[1, 2]], [[2, 3]], [[0, 1, 2]]), ValueError,
     r"positions have shape \(1, 3\), expected the shape of tokens, \(1, 2\)"),
    ("positions that skip one", lambda service: service.model.loss([[1, 2, 3]], [[2, 3, 4]], [[0, 1, 3]]), ValueError,
     "positions contain 1, 3 at place 2 of sequence 0, expected 0 where an example begins and one more"),
    ("positions without a start", lambda service: service.trainer.gradients([[1]], [[2]], [[4]]), ValueError,
     "positions contain 4 at place 0 of sequence 0"),
    ("positions that are no integers", lambda service: service.model.loss([[1]], [[2]], [[0.0]]), TypeError,
     "positions has dtype float64"),
    ("an engine's device by number", made(lambda service: Engine(device=3)), TypeError, "device is 3: expected a name"),
    ("a number for a folder", made(lambda service: Engine("cpu", spill=3)), TypeError, "spill is 3: expected the path"),
    ("a device for an engine", lambda service: GPT2.create("cpu", CONFIG), TypeError, "engine is 'cpu', expected an Engine"),
    ("no engine to load on", lambda service: GPT2.from_pretrained(None, "gpt2"), TypeError, "engine is None, expected"),
    ("a name for a config", lambda service: GPT2.create(service.engine, "gpt2"), TypeError, "config is 'gpt2', expected"),
    ("a kind for one", lambda service: GPT2.create(service.engine, GPT2Config), TypeError, "config is <class .*, expected"),
    ("a list for a name", made(lambda service: GPT2Config.named(["gpt2"])), ValueError, r"standard model \['gpt2'\]; choose"),
    ("one beta", made(lambda service: AdamW(betas=0.9)), TypeError, "betas is 0.9, expected two numbers"),
    ("an optimizer by name", made(lambda service: Trainer(service.model, "adam")), TypeError, "optimizer is 'adam', expected"),
    ("a path for a model", made(lambda service: Trainer("runs/first")), TypeError, "model is 'runs/first', expected a model"),
    ("nothing to load on", lambda service: Trainer.load(None, "runs/first"), TypeError, "engine is None, expected"),
    ("a share without a size", lambda service: service.share(host_memory=None), TypeError, "host_memory is None"),
    ("a share whose name is a number", lambda service: service.share(host_memory="1MiB", name=5), TypeError, "name is 5"),
    ("a share whose name is empty", lambda service: service.share(host_memory="1MiB", name=""), TypeError, "name is ''"),
    ("another model's tokenizer", foreign_tokenizer, ValueError, "256.*35"),
    ("a share above what is left", lambda service: service.share(host_memory="1TiB"), BudgetError, "cannot lend a share"),
    ("a share of nothing", lambda service: service.share(host_memory=0), ValueError, "host_memory is 0"),
    ("stop strings that never end", prompt([1], stop=itertools.repeat("x")), TypeError, "stop"),
    ("too many stop strings", prompt([1], stop=["x"] * 65), ValueError, "stop has 65 strings"),
    ("a stop string of a megabyte", prompt([1], stop="x" * (1 << 20)), ValueError, "stop has"),
    ("an empty stop string", prompt([1], stop=[""]), ValueError, "stop has ''"),
    ("a step on a closed engine", at_closed(lambda other: other.trainer.step(*batch(1))), DeviceError, "engine"),
    ("logits of one", at_closed(lambda other: other.model.logits([[1]])), DeviceError, "engine"),
    ("a text of one", at_closed(lambda other: all_of(other.server.generate([1]))), DeviceError, "engine|server"),
    ("a text to continue of one", at_closed(lambda other: all_of(other.model.generate([1]))), DeviceError, "engine"),
    ("a model on one", at_closed(lambda other: GPT2.create(other.engine, CONFIG)), DeviceError, "engine"),
    ("a share of one", at_closed(lambda other: other.share(host_memory="1MiB")), DeviceError, "engine"),
    ("a closed engine opened", at_closed(lambda other: other.engine.open()), DeviceError, "opens once"),
]  # fmt: skip

#: Its repr takes several lines, and its truth value raises an error of NumPy's own.
ARRAY = np.linspace(0, 1, 12).reshape(3, 4)
#: Arguments that take no array, by the call that takes them.
NO_ARRAYS: list[tuple[Callable[[Service, dict[str, Any]], Any], tuple[str, ...]]] = [
    (lambda service, more: Engine(**{"device": "emulated", **more}),
     ("device", "device_memory", "host_memory", "spill", "link_rate", "peer_rate", "precision", "prefetch",
      "rates", "watchdog")),
    (lambda service, more: service.engine.events(**more), ("limit",)),
    (lambda service, more: service.share(**{"host_memory": "1MiB", **more}), ("host_memory", "name", "weight", "interactive")),
    (lambda service, more: GPT2.create(service.engine, CONFIG, **more), ("seed", "tile")),
    (lambda service, more: GPT2Config(**more), ("n_layer", "n_embd", "n_inner", "bos_token_id", "initializer_range", "pdrops")),
    (lambda service, more: AdamW(**more), ("lr", "betas", "eps", "weight_decay", "warmup", "decay_steps", "min_lr", "decay")),
    (lambda service, more: Trainer(service.model, **more), ("optimizer", "clip_norm", "micro_batches", "recompute", "update")),
    (lambda service, more: service.trainer.run([], **more), ("steps",)),
    (lambda service, more: service.trainer.gemm_rate(**{"batch_size": 1, "seq_len": 4, **more}), ("batch_size", "seq_len")),
    (lambda service, more: service.model.generate([1], **more), ("max_new_tokens", "temperature", "top_k", "top_p", "seed")),
    (lambda service, more: service.model.serve(**more), ("share", "most", "cache", "tokenizer", "weights")),
]


def with_array(call: Callable[[Service, dict[str, Any]], Any], name: str) -> Bad:
    async def with_it(service: Service) -> object:
        made = call(service, {name: ARRAY})
        return await made if inspect.isawaitable(made) else made

    return with_it


BAD += [
    (f"an array for {name}", with_array(call, name), (TypeError, ValueError), rf"({name}|size) (is|array)")
    for call, names in NO_ARRAYS for name in names
]
MASKED = np.ma.masked_array(np.arange(8).reshape(2, 4), np.arange(8).reshape(2, 4) % 3 == 0)
BAD += [
    ("masked tokens", lambda service: service.trainer.step(MASKED, MASKED), TypeError, "tokens is a masked array"),
    ("masked targets", lambda service: service.model.loss(MASKED.data, MASKED), TypeError, r"targets is a .* \.filled\(-100\)"),
    ("masked rows", lambda service: service.model.logits([*MASKED]), TypeError, "tokens is a masked array"),
    ("a masked prompt", prompt(MASKED[0]), TypeError, "prompt is a masked array"),
    ("an evaluation of an array", lambda service: evaluate(service.model, ARRAY), TypeError, "a batch has type ndarray"),
    *((f"the seed {seed!r}", lambda service, seed=seed: GPT2.create(service.engine, CONFIG, seed=seed), kind, "seed is .*whole")
      for seed, kind in ((object(), TypeError), (None, TypeError), (1.0, TypeError), (True, TypeError), (-1, ValueError))),
    *((f"companions {files!r}", made(lambda service, files=files: setattr(service.model, "companions", files)), TypeError,
       "companions is .*, expected a mapping") for files in (None, 5, "merges.txt", [b""])),
]  # fmt: skip


async def course(bad: list[tuple[str, Bad, type[Exception], str]]) -> tuple[list[float], list[list[int]], list[Event]]:
    """Return the training's losses, the server's texts and the events of a reader of two, with `bad` input in between."""
    async with Engine("cpu", host_memory="64MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=5), AdamW(lr=1e-2))
        served = await GPT2.create(engine, CONFIG, seed=6)
        slow = engine.events(limit=2)
        async with served.serve() as server:
            service = Service(engine, trainer, server, await closed())
            service.model = served
            good = [asyncio.create_task(all_of(server.generate([1, 2], **GOOD))) for _ in range(2)]  # type: ignore[arg-type]
            training = asyncio.create_task(all_of(trainer.run(map(batch, range(1, STEPS + 1)))))
            for what, call, kind, sentence in bad:
                with pytest.raises(kind, match=sentence) as caught:
                    await call(service)
                assert "\n" not in str(caught.value), what
            losses = [report.loss for report in await training]
            texts = [[token.id for token in tokens] for tokens in await asyncio.gather(*good)]
        assert [share.name for share in engine.shares] == ["engine"]
    return losses, texts, await all_of(slow)


async def closed() -> Service:
    engine = await Engine("cpu", host_memory="64MiB").open()
    trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW())
    server = await trainer.model.serve().__aenter__()
    await engine.aclose()
    return Service(engine, trainer, server)


async def test_bad_input_is_one_sentence_and_disturbs_nothing() -> None:
    losses, texts, told = await course(BAD)
    undisturbed = await course([])
    assert (losses, texts) == undisturbed[:2]
    assert len(losses) == STEPS and len(texts[0]) == 6
    # A reader that never read gets the last two events, and the number of those before.
    assert len(told) == 2 and told[0].dropped > 0 and not told[1].dropped


async def test_a_slow_reader_of_events_delays_nobody() -> None:
    async with Engine("cpu", host_memory="64MiB") as engine:
        slow, quick = engine.events(limit=1), engine.events()
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=5), AdamW())
        for step in range(1, STEPS + 1):
            await trainer.step(*batch(step))
    steps = [event for event in await all_of(quick) if isinstance(event, StepDone)]
    assert [event.step for event in steps] == list(range(1, STEPS + 1)) and not any(event.dropped for event in steps)
    assert sum(1 + event.dropped for event in await all_of(slow)) >= STEPS


async def test_numpy_integers_are_seeds_like_any_other() -> None:
    async with Engine("cpu", host_memory="64MiB") as engine:
        one, other = [await GPT2.create(engine, CONFIG, seed=seed) for seed in (3, np.uint8(3))]
        assert all(np.array_equal(a, b) for a, b in zip(*[(await m.state_dict()).values() for m in (one, other)], strict=True))
