"""A fine-tune and a stream of tokens inside Starlette, in the event loop that answers requests.

    pip install 'asynctile[examples]'
    uvicorn --app-dir examples starlette_service:app
    curl --data-binary @texts/mine.txt 'localhost:8000/fine-tune?steps=200'     # start it, and return
    curl localhost:8000/fine-tune                                               # its progress; -X DELETE stops it
    curl -N 'localhost:8000/generate?prompt=Once&tokens=100'                    # tokens as they come

A client that goes away in mid-stream ends its own generation, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer

#: Tokens are bytes here. To use a model from Hugging Face, call GPT2.from_pretrained(engine, folder).
CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=256)


def batches(text: bytes) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield windows of the text, and the same windows one token later. Trainer.run advances this in a thread of its own."""
    tokens, random = np.frombuffer(text, np.uint8).astype(np.int64), np.random.default_rng(1)
    while True:
        starts = random.integers(0, len(tokens) - CONFIG.block_size, 4)
        windows = np.stack([tokens[start : start + CONFIG.block_size + 1] for start in starts])
        yield windows[:, :-1], windows[:, 1:]


class FineTune:
    """The training of the model, one at a time. The application owns it, so it ends before the engine closes."""

    def __init__(self, model: GPT2) -> None:
        self.trainer = Trainer(model, AdamW(lr=1e-3))
        self.task: asyncio.Task[None] | None = None

    def start(self, text: bytes, steps: int) -> bool:
        if self.task is not None and not self.task.done():
            return False
        self.task = asyncio.create_task(self.run(text, steps))
        return True

    async def run(self, text: bytes, steps: int) -> None:
        async for _ in self.trainer.run(batches(text), steps=steps):
            pass  # trainer.last_report has the progress

    async def stop(self) -> None:
        """Stop the training. A step that has begun to update weights finishes first, so the model stays whole."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


class State(TypedDict):
    job: FineTune


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[State]:
    async with Engine("cpu", host_memory="256MiB") as engine:
        job = FineTune(await GPT2.create(engine, CONFIG, seed=1))
        try:
            yield {"job": job}
        finally:
            await job.stop()


async def fine_tune(request: Request) -> Response:
    job: FineTune = request.state.job
    if request.method == "DELETE":
        await job.stop()
    elif request.method == "POST":
        text = await request.body()
        if len(text) <= CONFIG.block_size:
            return JSONResponse({"error": f"the text has {len(text)} bytes, expected more than {CONFIG.block_size}"}, 422)
        steps = request.query_params.get("steps", "100")
        if not steps.isdecimal():
            return JSONResponse({"error": f"steps is {steps!r}, expected a whole number"}, 422)
        if not job.start(text, int(steps)):
            return JSONResponse({"error": "a fine-tune is already running; DELETE stops it"}, 409)
    running = job.task is not None and not job.task.done()
    failed = None if job.task is None or running or job.task.cancelled() else job.task.exception()
    report = job.trainer.last_report
    last = None if report is None else {"step": report.step, "loss": report.loss, "seconds": report.step_s}
    return JSONResponse({"running": running, "last": last, "error": failed and str(failed)})


async def generate(request: Request) -> Response:
    job: FineTune = request.state.job
    prompt = list(request.query_params.get("prompt", "").encode())
    try:  # wrong arguments raise here, before the answer starts
        generated = job.trainer.model.generate(prompt, max_new_tokens=int(request.query_params.get("tokens", 50)))
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 422)

    async def text() -> AsyncGenerator[bytes]:
        async with aclosing(generated):
            async for token in generated:
                yield bytes([token])

    return StreamingResponse(text(), media_type="text/plain")


app = Starlette(
    routes=[Route("/fine-tune", fine_tune, methods=["GET", "POST", "DELETE"]), Route("/generate", generate)], lifespan=lifespan
)
