"""The examples that are services, used over a socket: a fine-tune starts and is seen, tokens stream, leaving clients end both.

Starlette's example runs under uvicorn. The examples that are programs are tested in test_scripts.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web

from asynctile.layers import GPT2
from tests.settle import HANG_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT = b"a service answers while it trains; " * 20
ENDLESS = 1 << 30


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def comes(condition: Callable[[], bool]) -> None:
    """Poll until `condition()` is true, at most 100 s.

    Loop turns are not enough for sockets, nor for kernels that must be compiled first.
    """
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def starlette() -> AsyncIterator[aiohttp.ClientSession]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(example("starlette_service").app, lifespan="on", ws="none", log_level="error"))
        serving = asyncio.create_task(server.serve([listening]))
        await comes(lambda: server.started or serving.done())
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            yield client
        server.should_exit = True
        await serving


@asynccontextmanager
async def aiohttps() -> AsyncIterator[tuple[aiohttp.ClientSession, ModuleType, web.Application]]:
    module = example("aiohttp_service")
    runner = web.AppRunner(module.application(), handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client, module, runner.app
    finally:
        await runner.cleanup()


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list of all generations that were started."""
    begun: list[Any] = []
    generate = GPT2.generate

    def noted(*args: Any, **more: Any) -> Any:
        begun.append(generate(*args, **more))
        return begun[-1]

    monkeypatch.setattr(GPT2, "generate", noted)
    return begun


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Any:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("asynctile")] == []


async def goes_away_in_mid_stream(client: aiohttp.ClientSession, texts: list[Any]) -> None:
    """Assert that an endless stream arrives token by token, and that generation stops when its client leaves."""
    async with client.get("/generate", params={"prompt": "a service", "tokens": str(ENDLESS)}) as response:
        assert len(await response.content.readexactly(3)) == 3
        response.close()
    await comes(lambda: texts[-1].ag_frame is None)


async def refuses(client: aiohttp.ClientSession) -> None:
    async with client.post("/fine-tune", data=b"short") as response:
        assert response.status == 422
    async with client.post("/fine-tune", params={"steps": "-1"}, data=TEXT) as response:
        assert (response.status, "steps is '-1'" in await response.text()) == (422, True)
    for wrong in ({"prompt": ""}, {"prompt": "a", "tokens": "-1"}, {"prompt": "a", "tokens": "many"}):
        async with client.get("/generate", params=wrong) as response:
            assert response.status == 422, wrong


async def test_starlette_fine_tunes_in_the_background_streams_and_stops_for_leaving_clients(texts: list[Any]) -> None:
    async with starlette() as client:

        async def progress() -> dict[str, Any]:
            async with client.get("/fine-tune") as response:
                return await response.json()

        async def ended() -> dict[str, Any]:
            while (found := await progress())["running"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return found

        assert await progress() == {"running": False, "last": None, "error": None}
        await refuses(client)
        async with client.post("/fine-tune", params={"steps": "5"}, data=TEXT) as response:
            assert response.status == 200 and (await response.json())["running"]
        assert (await ended())["last"]["step"] == 5

        async with client.post("/fine-tune", params={"steps": str(ENDLESS)}, data=TEXT) as response:
            assert (await response.json())["running"]
        async with client.post("/fine-tune", data=TEXT) as response:
            assert response.status == 409
        async with client.get("/generate", params={"prompt": "a service", "tokens": "5"}) as response:
            assert len(await response.read()) == 5
        await goes_away_in_mid_stream(client, texts)
        async with client.delete("/fine-tune") as response:
            stopped = await response.json()
        assert not stopped["running"] and stopped["last"]["step"] > 5 and stopped["error"] is None
        async with client.post("/fine-tune", params={"steps": str(ENDLESS)}, data=TEXT) as response:
            assert (await response.json())["running"]  # and the service ends with it


async def test_aiohttp_fine_tunes_in_a_request_streams_and_stops_for_leaving_clients(texts: list[Any]) -> None:
    async with aiohttps() as (client, module, app):
        training, trainer = app[module.TRAINING], app[module.TRAINER]
        await refuses(client)
        async with client.post("/fine-tune", params={"steps": "5"}, data=TEXT) as response:
            lines = [json.loads(line) async for line in response.content]
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
        async with client.post("/fine-tune", params={"steps": str(ENDLESS)}, data=TEXT) as response:
            assert json.loads(await response.content.readline())["step"] == 6
            async with client.post("/fine-tune", data=TEXT) as other:
                assert other.status == 409
            async with client.get("/generate", params={"prompt": "a service", "tokens": "5"}) as other:
                assert len(await other.read()) == 5
            await goes_away_in_mid_stream(client, texts)
            assert training.locked()
            response.close()
        await comes(lambda: not training.locked())
        assert trainer.model.torn is None
        async with client.post("/fine-tune", params={"steps": "1"}, data=TEXT) as response:
            assert json.loads(await response.content.readline())["step"] == trainer.step_count
