"""Steps that one call of a kernel disturbs: the trainers, the disturbances, and the states that no disturbance may change.

The n-th call of a kernel hangs, raises or cancels, so an event meets a step at exactly one point, without clocks. conftest.py
has the fixture with the places where these trainers run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.share import runtime_of
from tests.layers.training import OPTIMIZER, SHORTER, Tensors, batches_of, lively, states_of
from tests.settle import HANG_S

SMALL_DEVICE = {"device": "emulated", "device_memory": SHORTER.config.states_nbytes // 6}
#: Without evictions, with evictions in flight, and with updates in RAM.
DEVICES: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"device": "cpu"}, "device"), "emulated": (SMALL_DEVICE, "device"), "updates on the host": (SMALL_DEVICE, "host"),
}  # fmt: skip
#: Options of a trainer where a test says nothing else.
DEFAULTS = {"update": "device"}
BATCHES = batches_of(SHORTER, 4)
_uninterrupted: dict[Any, Tensors] = {}
#: (kernel, call) before the first update, that is, before the loss is known. After that the host may be ahead of a failure.
BEFORE = {"the first operation": ("embed_tokens", 1), "in a block": ("gelu", 5), "in the head": ("cross_entropy", 5)}


async def trainer_on(engine: Engine, **more: Any) -> Trainer:
    return Trainer(await lively(engine, SHORTER), OPTIMIZER, micro_batches=SHORTER.micro_batches, **DEFAULTS | more)


async def loss_of_step_two() -> float:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        return [report.loss async for report in trainer.run(BATCHES[:2])][1]


async def uninterrupted(steps: int, **more: Any) -> Tensors:
    """Return weights and moments after `steps` undisturbed steps."""
    key = (steps, *more.items())
    if key not in _uninterrupted:
        async with Engine("cpu") as engine:
            trainer = await trainer_on(engine, **more)
            for batch in BATCHES[:steps]:
                await trainer.step(*batch)
            _uninterrupted[key] = await states_of(trainer)
    return _uninterrupted[key]


class Once:
    """A stand-in for a kernel of `engine`: before its n-th call from now, `action` runs in the stream's thread.

    kernels: those of one device; None: of all devices.
    """

    def __init__(
        self, engine: Engine, kernel: str, n: int, action: Callable[[], Any], kernels: dict[str, Any] | None = None
    ) -> None:
        self._kernels = runtime_of(engine).device.kernels if kernels is None else kernels
        self._name, self._true, self._left, self._action = kernel, self._kernels[kernel], n, action
        self._lock = threading.Lock()
        self._kernels[kernel] = self
        self.__name__ = kernel

    def __call__(self, *args: Any) -> None:
        with self._lock:
            self._left -= 1
            now = self._left == 0
        if now:
            self._action()
        self._true(*args)

    def restore(self) -> None:
        self._kernels[self._name] = self._true


class Broken(RuntimeError):
    """The error of a broken kernel."""


def broken() -> None:
    raise Broken("the kernel broke")


class Hang:
    """A stream held at one call of one kernel until released; `reached` is awaited on the test's loop. kernels: see Once."""

    def __init__(
        self, engine: Engine, kernel: str, call: int, *, then: Callable[[], Any] | None = None,
        kernels: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._go = threading.Event()
        self._then = then
        self._disguise = Once(engine, kernel, call, self._hold, kernels)

    def _hold(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)
        assert self._go.wait(HANG_S)
        if self._then is not None:
            self._then()

    async def reached(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self._event.wait()

    def release(self) -> None:
        self._disguise.restore()
        self._go.set()
