"""A fine-tune and a stream of tokens inside aiohttp, like starlette_service.py, except that the request itself trains.

    pip install 'asynctile[examples]'
    python examples/aiohttp_service.py
    curl -N --data-binary @texts/mine.txt 'localhost:8080/fine-tune?steps=200'  # a line of JSON per step
    curl -N 'localhost:8080/generate?prompt=Once&tokens=100'                    # tokens as they come

The fine-tune belongs to the request: it ends when the client goes away, and the model keeps the steps it has made until then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=256)
TRAINER = web.AppKey("trainer", Trainer)
#: Held by the request that trains. Without this lock, two fine-tunes would take turns on the model, each with its own texts.
TRAINING = web.AppKey("training", asyncio.Lock)


async def engine(app: web.Application) -> AsyncIterator[None]:
    """Open an engine before the first request, and close it after the last."""
    async with Engine("cpu", host_memory="256MiB") as opened:
        app[TRAINER] = Trainer(await GPT2.create(opened, CONFIG, seed=1), AdamW(lr=1e-3))
        app[TRAINING] = asyncio.Lock()
        yield


def batches(text: bytes) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield windows of the text, and the same windows one token later. Trainer.run advances this in a thread of its own."""
    tokens, random = np.frombuffer(text, np.uint8).astype(np.int64), np.random.default_rng(1)
    while True:
        starts = random.integers(0, len(tokens) - CONFIG.block_size, 4)
        windows = np.stack([tokens[start : start + CONFIG.block_size + 1] for start in starts])
        yield windows[:, :-1], windows[:, 1:]


async def fine_tune(request: web.Request) -> web.StreamResponse:
    trainer, training = request.app[TRAINER], request.app[TRAINING]
    text, steps = await request.read(), request.query.get("steps", "100")
    if not steps.isdecimal():
        raise web.HTTPUnprocessableEntity(text=f"steps is {steps!r}, expected a whole number")
    if len(text) <= CONFIG.block_size:
        raise web.HTTPUnprocessableEntity(text=f"the text has {len(text)} bytes, expected more than {CONFIG.block_size}")
    if training.locked():
        raise web.HTTPConflict(text="a fine-tune is already running")
    async with training, aclosing(trainer.run(batches(text), steps=int(steps))) as reports:
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await response.prepare(request)
        async for report in reports:
            await response.write(json.dumps({"step": report.step, "loss": report.loss}).encode() + b"\n")
        await response.write_eof()
        return response


async def generate(request: web.Request) -> web.StreamResponse:
    prompt, model = list(request.query.get("prompt", "").encode()), request.app[TRAINER].model
    try:  # wrong arguments raise here, before the answer starts
        tokens = model.generate(prompt, max_new_tokens=int(request.query.get("tokens", 50)))
    except ValueError as error:
        raise web.HTTPUnprocessableEntity(text=str(error)) from error
    async with aclosing(tokens) as generated:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for token in generated:
            await response.write(bytes([token]))
        await response.write_eof()
        return response


def application() -> web.Application:
    app = web.Application(client_max_size=64 << 20)
    app.cleanup_ctx.append(engine)
    app.add_routes([web.post("/fine-tune", fine_tune), web.get("/generate", generate)])
    return app


if __name__ == "__main__":
    # With handler_cancellation, aiohttp cancels a handler as soon as its client has gone, even while the handler waits for a
    # step.
    web.run_app(application(), port=8080, handler_cancellation=True)
