"""`asynctile stress --scenario cancel` covers every public coroutine and finds what it looks for.

Covers the table of calls and the checks between them. tests/cli/test_stress_planted.py runs rounds of the scenario.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asynctile
import asynctile.layers
from asynctile.cli.stress import settled as settled_module
from asynctile.cli.stress.calls import Coroutines
from asynctile.cli.stress.disturb import Disturbance, Landed, Reached, disturbed, thrown_away
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.lives import LIVES
from asynctile.cli.stress.models import Recipe, new_trainer
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.settled import Settled
from asynctile.layers.model import model_state_of
from asynctile.layers.model_state import ModelState
from asynctile.program.needs import demand_of
from asynctile.runtime import Runtime
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from asynctile.streams.gate import CLOSED

STORE = "Runtime.reserve, store, read, release"
#: Coroutines that another call covers, or whose call has another name.
ELSEWHERE = {
    **dict.fromkeys(("Runtime.reserve", "Runtime.store", "Runtime.read", "Runtime.release"), STORE),
    "Engine.__aenter__": "Engine as a block", "Engine.__aexit__": "Engine as a block",
    "Runtime.give_back": "Server.aclose", "ModelState.release": "GPT2.release",
    "Steps.__anext__": "Trainer.run", "Events.__anext__": "Engine.events", "Events.aclose": "Engine.events",
    "StreamEvent.landed": "Runtime.launch", "StreamEvent.settled": "Runtime.launch",
    **dict.fromkeys(("Server.__aenter__", "Server.__aexit__", "Server.publish"), "Server.generate"),
}  # fmt: skip
#: Coroutines for users of the engine's own loop: they are parts of other calls.
INSIDE = ("the device's loop", "the engine's loop")


def public_classes() -> set[type]:
    """Return the classes that the packages name, and classes that their methods return outside the engine's own loop."""
    found: set[type] = set()
    left = [getattr(package, name) for package in (asynctile, asynctile.layers) for name in package.__all__]
    left += [Runtime, ModelState]
    while left:
        one = left.pop()
        if not inspect.isclass(one) or one in found or not one.__module__.startswith("asynctile"):
            continue
        found.add(one)
        for name, member in inspect.getmembers(one, callable):
            inside = is_inside(inspect.getdoc(member) or "")
            if not name.startswith("_") and inspect.isfunction(inspect.unwrap(member)) and not inside:
                hint = typing.get_type_hints(inspect.unwrap(member)).get("return")
                left += [hint, *typing.get_args(hint)]
    return found


def is_inside(text: str) -> bool:
    """Whether that is the documentation of a coroutine for the engine's own loop."""
    return any(words in text.partition("\n")[0] for words in INSIDE)


def gives_awaitable(function: Any) -> bool:
    """Return whether the function's annotated result is awaited or iterated over asynchronously."""
    hint = typing.get_type_hints(function).get("return") if inspect.isfunction(function) else None
    return typing.get_origin(hint) in (AsyncGenerator, AsyncIterator, Awaitable, Coroutine, AbstractAsyncContextManager)


def public_coroutines() -> Iterator[tuple[str, str]]:
    """Yield the name and documentation of each public coroutine. A share's coroutines are called on an engine, which is one."""
    for kind in public_classes():
        for name in dir(kind):
            member = inspect.getattr_static(kind, name)
            function = getattr(member, "__func__", member)
            function = inspect.unwrap(function) if callable(function) else None
            if name.startswith("_") and not name.startswith("__a"):
                continue
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) or gives_awaitable(function):
                called = {"Share": "Engine", "Model": "GPT2"}.get(kind.__name__, kind.__name__)
                yield f"{called}.{name}", inspect.getdoc(member) or ""


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[Coroutines]:
    async with StressEngine(EngineSetup(device="emulated"), tmp_path) as engine:
        trainer = await new_trainer(engine, Recipe())
        await trainer.save(tmp_path / "base")
        yield Coroutines(engine, trainer, tmp_path, tmp_path / "base")


async def test_every_public_coroutine_is_disturbed(calls: Coroutines) -> None:
    known = {*calls.all, *LIVES}
    found = dict(public_coroutines())
    assert {"Engine.open", "Engine.share", "Steps.__anext__", "Events.__anext__", "GPT2.generate"} <= found.keys()
    left_out = {name for name, text in found.items() if ELSEWHERE.get(name, name) not in known and not is_inside(text)}
    assert not left_out, "add them to Coroutines"
    assert set(ELSEWHERE) <= found.keys() and set(ELSEWHERE.values()) <= known


async def test_every_call_does_its_work(calls: Coroutines) -> None:
    """Undisturbed calls end and leave nothing."""
    locks, names = [model_state_of(calls.trainer.model).changing], {"base", "model", "checkpoint", "adapter"}
    names |= {path.name for path in calls.folder.iterdir()}
    settled = Settled(calls.engine, locks, calls.folder, names)
    for name, call in calls.all.items():
        await call()
        await settled.wind_down(name)
        await calls.clear()
        await settled.expect(name, model_state_of(calls.trainer.model).standing())
    assert calls.trainer.step_count == 3


async def tile_left(calls: Coroutines) -> None:
    tile = Tile("left", (4, 4), persistent=True)
    await runtime_of(calls.engine).reserve(demand_of([], [tile]))
    await runtime_of(calls.engine).store([(tile, np.ones(tile.shape, np.float32))])


async def loan_left(calls: Coroutines) -> None:
    async def job() -> None:
        runtime_of(calls.engine).tiers.caps.borrow(64, "a save")

    await runtime_of(calls.engine).call(job())


async def cap_left(calls: Coroutines) -> None:
    runtime_of(calls.engine).tiers.host.arena.cap = 1 << 30


async def slot_left(calls: Coroutines) -> None:
    runtime_of(calls.engine).tiers.top.arena.pools[0].take(for_load=False)


async def gate_left(calls: Coroutines) -> None:
    runtime_of(calls.engine).tiers.gate.set(CLOSED)


async def folder_left(calls: Coroutines) -> None:
    (calls.folder / ".checkpoint.0123abcd.new").mkdir()


async def block_left(calls: Coroutines) -> None:
    spill = runtime_of(calls.engine).tiers.spill
    assert spill is not None
    spill.take(4096, "a test")


@pytest.mark.parametrize(("leave", "what"), [
    (tile_left, "left in"), (loan_left, "64 bytes to a save"), (cap_left, "caps of"), (slot_left, "but tiles take"),
    (gate_left, "a gate"), (folder_left, "0123abcd.new in"), (block_left, "of the spill file in use"),
])  # fmt: skip
async def test_anything_that_a_call_leaves_is_found(
    calls: Coroutines, leave: Callable[[Coroutines], Awaitable[None]], what: str
) -> None:
    settled = Settled(calls.engine, [], calls.folder, {path.name for path in calls.folder.iterdir()})
    standing = list(model_state_of(calls.trainer.model).standing())
    await settled.expect("nothing", standing)
    await leave(calls)
    with pytest.raises(Finding, match=what):
        await settled.expect("a call", standing)


async def test_a_task_that_never_ends_is_found(calls: Coroutines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_module, "WATCHDOG_S", 0.01)
    ended = asyncio.Event()

    async def job() -> asyncio.Task[object]:
        return runtime_of(calls.engine).spawn(ended.wait())

    await runtime_of(calls.engine).call(job())
    settled = Settled(calls.engine, [], calls.folder, set())
    with pytest.raises(Finding, match="endless tasks"):
        await settled.wind_down("a call")

    async def end() -> None:
        ended.set()

    await runtime_of(calls.engine).call(end())
    await settled.wind_down("a call")


async def test_a_swallowed_cancellation_is_found() -> None:
    async def hides() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)

    async def plain() -> None:
        await asyncio.sleep(100)

    for how in ("cancel", "timeout"):
        disturbance = Disturbance(how=how, turns=3)
        assert await disturbed(plain, disturbance, Reached(0)) is Landed.INSIDE
        with pytest.raises(Finding, match="as if it had not been"):
            await disturbed(hides, disturbance, Reached(0))


async def test_where_a_disturbance_lands_is_reported() -> None:
    async def call() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def landed(how: str, **more: Any) -> Landed:
        return await disturbed(call, Disturbance(how=how, **more), Reached(more.get("at", 0)))

    for how in ("cancel", "cancel three times", "timeout", "loop ends"):
        elsewhere = how == "loop ends"
        assert await landed(how, elsewhere=elsewhere) is Landed.BEFORE or elsewhere
        assert await landed(how, turns=3, elsewhere=elsewhere) is Landed.INSIDE
        assert await landed(how, turns=20, elsewhere=elsewhere) in (Landed.AFTER, Landed.NEVER)
        assert await landed(how, at=3, elsewhere=elsewhere) is Landed.NEVER  # it asks no engine for anything


async def test_a_failure_while_being_thrown_away_is_noted_and_a_task_without_a_turn_is_not() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("on its way out")

    async def call() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    noted = []
    for turns in range(2):
        with thrown_away() as found:
            await disturbed(call, Disturbance(how="loop ends", turns=turns, elsewhere=True), Reached(0))
        noted.append([one.partition(" in ")[0] for one in found])
    assert noted == [[], ["ValueError('on its way out')"]]
