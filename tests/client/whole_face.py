"""A client of the whole public face, which states for each result the type that a type checker must find.

test_whole_face.py checks it by mypy --strict and by pyright against the installed package, and runs it as it stands. What the
calls do is tested elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import asynctile
from asynctile import (
    AsynctileError,
    BudgetError,
    CheckpointError,
    DeviceError,
    Engine,
    Events,
    Share,
    StalledError,
    Statistics,
    TierError,
    TornModelError,
)
from asynctile.events import Event, RequestDone, StepDone
from asynctile.layers import (
    GPT2,
    AdamW,
    ByteTokenizer,
    GPT2Config,
    Sampling,
    Server,
    StepReport,
    Token,
    Tokenizer,
    Trainer,
    open_tokenizer,
)

Tokens = NDArray[np.int64]
Tensors = dict[str, NDArray[np.float32]]

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=16, vocab_size=256)


def batches() -> Iterator[tuple[Tokens, Tokens]]:
    random = np.random.default_rng(1)
    while True:
        tokens = random.integers(0, CONFIG.vocab_size, (2, 17))
        yield tokens[:, :-1], tokens[:, 1:]


async def batches_that_come() -> AsyncIterator[tuple[Tokens, Tokens]]:
    for batch in batches():
        await asyncio.sleep(0)
        yield batch


async def models(part: Share, folder: Path) -> None:
    """Use everything of a model, on an engine or on a share of one."""
    model = assert_type(await GPT2.create(part, CONFIG, seed=1, tile=16), GPT2)
    tokens, targets = next(batches())
    assert_type(await model.logits(tokens), NDArray[np.float32])
    assert_type(await model.logits([[1, 2, 3]]), NDArray[np.float32])
    assert_type(await model.loss(tokens, targets), float)
    assert_type(await model.state_dict(), Tensors)
    assert_type(model.config.vocab_size, int)
    assert_type(model.companions["generation_config.json"] if model.companions else b"", bytes)
    async for token in model.generate([1, 2], max_new_tokens=2, temperature=0.8, top_k=5, seed=1):
        assert_type(token, int)
    async with aclosing(model.generate(tokens[0])) as text:
        assert_type(await anext(text), int)
    await model.save_pretrained(folder / "model")
    await asyncio.to_thread(ByteTokenizer().save, folder / "model")
    assert_type(await asyncio.to_thread(open_tokenizer, folder / "model"), Tokenizer)
    again = assert_type(await GPT2.from_pretrained(part, folder / "model"), GPT2)
    await again.release()


async def texts(part: Share) -> None:
    """Use a server, its tokens and the ways to choose them."""
    model = await GPT2.create(part, CONFIG)
    assert_type(Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.1, seed=1).top_k, int | None)
    tokenizer: Tokenizer = ByteTokenizer()
    async with model.serve(most=2, cache="64KiB", tokenizer=tokenizer) as server:
        assert_type(server, Server)
        async for token in server.generate("a", max_new_tokens=3, temperature=0.0, stop=["\n\n"], stop_ids=(0,)):
            assert_type(token, Token)
            assert_type((token.id, token.text), tuple[int, str])
        async with aclosing(server.generate([1, 2], top_p=0.9, seed=1)) as text:
            assert_type((await anext(text)).finish_reason == "stop", bool)


async def watch(reader: Events, seen: list[str]) -> None:
    """Read every event of an engine to its end."""
    async for event in reader:
        assert_type(event, Event)
        match event:
            case StepDone():
                seen.append(f"step {assert_type(event.step, int)} of {event.model}")
            case RequestDone():
                seen.append("a text")
            case _:
                pass


async def trainings(part: Share, folder: Path) -> None:
    """Use everything of a trainer."""
    optimizer = AdamW(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, warmup=1, decay_steps=9, min_lr=1e-4)
    model = await GPT2.create(part, GPT2Config.from_hf(CONFIG.to_hf()))
    trainer = Trainer(model, optimizer, clip_norm=1.0, micro_batches=2, replicas=1, recompute="auto", update="auto")
    tokens, targets = next(batches())
    report = assert_type(await trainer.step(tokens, targets), StepReport)
    assert_type((report.step, report.loss, report.skipped), tuple[int, float, bool])
    assert_type(report.as_dict(), dict[str, Any])
    async for report in trainer.run(batches(), steps=1):
        assert_type(report, StepReport)
    steps = trainer.run(batches_that_come())
    async with aclosing(steps):
        async for report in steps:
            assert_type(report, StepReport)
            break
    assert_type(await trainer.gradients(tokens, targets), Tensors)
    assert_type(trainer.last_report, StepReport | None)
    assert_type((trainer.step_count, trainer.skipped_count, trainer.saving), tuple[int, int, bool])
    assert_type(trainer.optimizer.rate(1), float)
    trainer.data_state = {"position": 17}
    await trainer.save(folder / "checkpoint", wait=False)
    await trainer.saved()
    loaded = assert_type(await Trainer.load(part, str(folder / "checkpoint")), Trainer)
    assert_type(loaded.model, GPT2)


def describe(error: AsynctileError) -> str:
    """Turn an error into the answer of a service."""
    match error:
        case BudgetError():
            return f"needs {assert_type(error.floor, int)} bytes"
        case CheckpointError() | DeviceError() | TornModelError():
            return str(error)
        case StalledError():
            return "it hangs"
        case TierError():
            return "a tier"
        case _:
            return "something else"


async def main(folder: Path) -> Statistics:
    engine = Engine(device="emulated", device_memory="2MiB", host_memory=64 << 20, prefetch=2, precision="fp32", watchdog=60.0)
    seen: list[str] = []
    watching = asyncio.create_task(watch(engine.events(limit=100), seen))
    async with engine as opened:
        assert_type(opened, Engine)
        engine.start_trace()
        assert engine.is_traced
        async with (
            engine.share(device_memory="512KiB", host_memory="16MiB", name="one", weight=2.0) as one,
            engine.share(device_memory="512KiB", host_memory="16MiB", interactive=True) as other,
        ):
            assert_type(one, Share)
            assert_type(engine.shares, tuple[Share, ...])
            await asyncio.gather(models(one, folder), trainings(other, folder / "of-the-other"))
            await texts(other)
        try:
            await GPT2.create(engine, GPT2Config.named("gpt2-xl"))
        except AsynctileError as error:
            assert_type(describe(error), str)
        await asyncio.to_thread(engine.write_trace, folder / "trace.json")
        assert (await asyncio.to_thread(engine.stop_trace)).path is None
        await asyncio.to_thread(engine.start_trace, folder / "trace.json")
        statistics = assert_type(engine.statistics(), Statistics)
    await watching
    assert any(line.startswith("step 1 of gpt2") for line in seen) and "a text" in seen
    await lifetime()
    return statistics


async def lifetime() -> None:
    """Open and close an engine as a service does when it starts and ends."""
    engine = Engine("cpu", host_memory="16MiB")
    try:
        assert_type(await engine.open(), Engine)
        assert_type(engine.is_open, bool)
    finally:
        await engine.aclose()


if __name__ == "__main__":
    print(assert_type(asynctile.__version__, str), asyncio.run(main(Path(sys.argv[1]))))
