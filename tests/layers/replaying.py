"""Small trainings on a GPU made of threads of this CPU (tests/cuda/driver.py), for tests of replayed steps.

Covers the places where they run, the record of each step, obstacles, and the bits that each step must have.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.model import model_state_of
from asynctile.storage.tile import Tile
from tests.cuda.driver import SoftDriver
from tests.execute import interleaving
from tests.execute.interleaving import SHORT
from tests.inside_engine import device_of
from tests.layers.shapes import Shape
from tests.layers.shapes import shape as make_shape
from tests.layers.training import Tensors, assert_same_tensors, states_of

STATES = SHORT.config.states_nbytes
#: Options of an engine; "spill" becomes a folder. The floor of SHORT is 21.5 KiB, 46% of its states.
PLACES: dict[str, dict[str, Any]] = {
    "all there": {"device_memory": 8 * STATES, "host_memory": 16 * STATES},
    "under a cap": {"device_memory": 3 * STATES // 4, "host_memory": 16 * STATES},
    "near the floor": {"device_memory": 23 << 10, "host_memory": 16 * STATES},
    "over a file": {"device_memory": 3 * STATES // 4, "host_memory": STATES // 2 + (300 << 10), "spill": True},
}
#: Enough blocks that a tenth of its states is a valid cap: 700 operations a step.
DEEP = make_shape(20, 2, 35, 24, tile=12, batch=1, length=6, n_layer=4)
STEPS = 5
_by_coroutines: dict[Any, Trained] = {}


@dataclass
class Trained:
    """The record of a training.

    By step: loss, norm, whether it was played, kernels launched one by one or captured, graphs launched. At the end: weights
    and moments.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    played: list[bool] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    states: Tensors = field(default_factory=dict)

    async def step(self, trainer: Trainer, batch: Any, driver: SoftDriver) -> None:
        launches, graphs = driver.launches, driver.graphs
        report = await trainer.step(*batch)
        self.losses.append(report.loss)
        self.norms.append(report.grad_norm)
        self.played.append(report.played)
        self.launches.append(driver.launches - launches)
        self.graphs.append(driver.graphs - graphs)


def place_of(name: str, folder: Path | None = None, **more: Any) -> dict[str, Any]:
    """Return options of an engine on the soft GPU. folder: for spilled tiles."""
    options = {"device": "cuda:0", **PLACES[name], **more}
    return options | ({"spill": folder} if options.pop("spill", False) else {})


@asynccontextmanager
async def training(place: dict[str, Any], *, update: str = "device", **options: Any) -> AsyncIterator[tuple[Engine, Trainer]]:
    """Open a training as interleaving.py does. update: of Trainer, or "mixed": every other weight is updated in RAM."""
    async with interleaving.training(place, update="host" if update == "mixed" else update, **options) as (engine, trainer):
        if update == "mixed":

            async def every_other(*_: Any) -> frozenset[Tile]:
                return frozenset(list(model_state_of(trainer.model).weights())[::2])

            # The choice of "auto" would depend on this machine's speed, and be no choice where everything fits.
            trainer._placing.on_host = every_other
        yield engine, trainer


async def trained(
    opened: list[SoftDriver], place: dict[str, Any], *, steps: int = STEPS, shape: Shape = SHORT, **options: Any
) -> Trained:
    """Train and return the record. opened: drivers. options: as for `training`."""
    async with training(place, shape=shape, **options) as (_, trainer):
        found = Trained()
        for seed in range(1, steps + 1):
            await found.step(trainer, shape.batch_of_tokens(seed), opened[-1])
        found.states = await states_of(trainer)
        return found


async def by_coroutines(opened: list[SoftDriver], *, shape: Shape = SHORT, precision: str = "fp32", **options: Any) -> Trained:
    """Return the record of the same training issued operation by operation, under a cap of half the states; cached."""
    options = {name: value for name, value in options.items() if name in ("clip_norm", "micro_batches", "steps")}
    key = shape, precision, json.dumps(options, sort_keys=True)
    if key not in _by_coroutines:
        place = {"device": "cuda:0", "device_memory": shape.config.states_nbytes // 2, "precision": precision}
        found = _by_coroutines[key] = await trained(opened, place, shape=shape, plays=False, **options)
        assert not any(found.played) and not any(found.graphs) and min(found.launches) > 100
    return _by_coroutines[key]


def assert_same(found: Trained, expected: Trained) -> None:
    """Assert equality bit for bit."""
    assert (found.losses, found.norms) == (expected.losses, expected.norms)
    assert_same_tensors(found.states, expected.states)


class Held:
    """A GPU that stops before the n-th launched graph, counted from 1, until released.

    reached: the graph was launched; `then` is called before that.
    """

    def __init__(self, engine: Engine, call: int, then: Callable[[], None] = lambda: None) -> None:
        self._driver, self._left, self._then = device_of(engine).driver, call, then
        self._true = self._driver.launch_graph
        self.reached, self.gate = threading.Event(), threading.Event()
        self._driver.launch_graph = self._watched

    def _watched(self, graph: Any, stream: int) -> None:
        self._left -= 1
        if not self._left:
            self._driver.hold(self.gate, stream)
            self._then()
            self.reached.set()
        self._true(graph, stream)

    def release(self) -> None:
        del self._driver.launch_graph
        self.gate.set()


class Once:
    """A stand-in for a function whose n-th call, counted from when it is armed, raises. calls: number of calls.

    late: it raises only after it has done its work.
    """

    def __init__(self, true: Any, *, late: bool = False) -> None:
        self._true, self._late, self.calls, self.fails = true, late, 0, 0

    def at(self, call: int) -> None:
        self.fails = self.calls + call

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls != self.fails:
            return self._true(*args, **more)
        if self._late:
            self._true(*args, **more)
        raise RuntimeError("it broke")


class Endless:
    """A stand-in for a function: while `hangs` is set, a call waits until `answer`. asked: a call is waiting."""

    def __init__(self, true: Any) -> None:
        self._true = true
        self.hangs, self.asked, self.answer = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        if self.hangs.is_set():
            self.asked.set()
            self.answer.wait()
        return self._true(*args)
