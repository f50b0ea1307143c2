"""One path for everything that is not played: each operation and each move is a schedule entry enqueued by its coroutine.

An operation launched by itself has a coroutine of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.execute.issuer import Issuer
from asynctile.launch.lane import Lane
from asynctile.layers import GPT2, Trainer
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.schedule.schedule import Kind
from asynctile.share import runtime_of
from tests.by_hand import on_host, standing
from tests.inside_engine import device_of
from tests.laws import covering
from tests.layers.training import OPTIMIZER, SMALL, batches_of

STATES = SMALL.config.states_nbytes
VERBS = {
    "launch": Kind.OPERATION, "launch_on_host": Kind.OPERATION, "upload": Kind.UPLOAD, "download": Kind.DOWNLOAD,
    "copy": Kind.COPY,
}  # fmt: skip


class Paths:
    """A record of the device's calls from now on, by the coroutine that made them: that of an entry or a single operation."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        #: number of calls by kind of entry, and of "launch" for single operations
        self.enqueued = Counter[Any]()
        #: calls by no coroutine: tiles that move to where a schedule begins
        self.others = Counter[str]()
        self._inside: list[Any] = []
        # _enqueue alone knows the entry that a call of the device belongs to
        enqueue, perform = Issuer._enqueue, Lane.perform

        def enqueued(issuer: Issuer, device: Any, entry: Any, *args: Any) -> Any:
            self._inside.append(entry.kind)
            try:
                return enqueue(issuer, device, entry, *args)
            finally:
                self._inside.pop()

        async def performed(lane: Lane, *args: Any) -> Any:
            self._inside.append("launch")
            try:
                return await perform(lane, *args)
            finally:
                self._inside.pop()

        monkeypatch.setattr(Issuer, "_enqueue", enqueued)
        monkeypatch.setattr(Lane, "perform", performed)
        device = device_of(engine)
        for verb in VERBS:
            if hasattr(device, verb):
                monkeypatch.setattr(device, verb, self._noted(verb, getattr(device, verb)))

    def _noted(self, verb: str, true: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            who = self._inside[-1] if self._inside else None
            if who is None:
                self.others[verb] += 1
            elif verb != "launch" or who != "within":  # by launch_on_host
                kind = Kind.FETCH if who is Kind.FETCH and verb == "download" else VERBS[verb]
                assert who in (kind, "launch"), f"{verb} by {who}"
                self.enqueued[who] += 1
            self._inside.append("within")
            try:
                return true(*args)
            finally:
                self._inside.pop()

        return noted


CAPS: dict[str, dict[str, Any]] = {
    "RAM": {"device": "cpu"},
    "RAM over a file": {"device": "cpu", "host_memory": 200 << 10, "spill": True},
    "a device": {"device": "emulated"},
    "a device over RAM": {"device": "emulated", "device_memory": STATES // 3},
    "without prefetch": {"device": "emulated", "device_memory": STATES // 3, "prefetch": 0},
    "three tiers": {"device": "emulated", "device_memory": STATES // 3, "host_memory": 280 << 10, "spill": True},
}


@pytest.mark.parametrize(("caps", "update"), covering(CAPS, ["device", "host"]))
async def test_steps_and_generations_are_entries_of_schedules(
    caps: dict[str, Any], update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = caps | ({"spill": tmp_path} if "spill" in caps else {})
    async with Engine(**options) as engine:
        model = await GPT2.create(engine, SMALL.config, seed=1, tile=SMALL.tile)
        trainer = Trainer(model, OPTIMIZER, micro_batches=SMALL.micro_batches, update=update)
        engine.plays = False
        paths = Paths(engine, monkeypatch)
        before = engine.statistics().operations
        for batch in batches_of(SMALL, 2):
            assert not (await trainer.step(*batch)).played
        assert paths.enqueued[Kind.OPERATION] == engine.statistics().operations - before > 500
        tokens = [token async for token in model.generate([1, 2], max_new_tokens=2, seed=1)]
        assert len(tokens) == 2 and paths.enqueued[Kind.FETCH] > 0
        assert paths.enqueued["launch"] == 0
        assert not paths.others.keys() & {"launch", "launch_on_host"}
        if "device_memory" in caps:
            assert paths.enqueued[Kind.UPLOAD] > paths.others["upload"], "most tiles come within a step"


async def test_launches_go_through_a_coroutine_of_their_own_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = tiles = standing("a", "b", "c")
    async with Engine("emulated") as engine:
        await runtime_of(engine).reserve(demand_of([], tiles))
        await runtime_of(engine).store([(a, np.ones(a.shape, np.float32))])
        paths = Paths(engine, monkeypatch)
        for operation in (copy(a, b), on_host(copy(b, c)), copy(c, a)):
            await runtime_of(engine).launch(operation)
        await runtime_of(engine).synchronize()
        assert paths.enqueued == {"launch": 3 + 3} and not paths.others  # a up, b down, c up
        assert (await runtime_of(engine).read(a) == 1).all()
