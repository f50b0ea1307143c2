"""One way for all that is not played: operations go through the tile coroutine, loads ahead of their use through a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer
from asynctile.memory.tier import Tier
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Fetch
from asynctile.run.lane import Lane
from asynctile.run.stage import Stage
from tests.by_hand import on_host, standing
from tests.inside_engine import device_of
from tests.layers.training import OPTIMIZER, SMALL, batches_of

STATES = SMALL.config.states_nbytes


class Paths:
    """What went through the coroutine, what reached the device, and by whom each tile was loaded, from now on."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.performed: list[Any] = []
        self.launched: list[Any] = []
        #: (tier, tile, the operation or stage in which it was loaded; None: something else)
        self.loads: list[tuple[Tier, Any, Any]] = []
        self._inside: list[Any] = []
        perform, step, load = Lane.perform, Stage.step, Tier._load

        async def performed(lane: Lane, entry: Any, *args: Any) -> Any:
            self.performed.append(entry)
            self._inside.append(entry)
            try:
                return await perform(lane, entry, *args)
            finally:
                self._inside.pop()

        async def stepped(stage: Stage, index: int) -> None:
            self._inside.append(stage)
            try:
                await step(stage, index)
            finally:
                self._inside.pop()

        def loaded(tier: Tier, residency: Any, slot: Any) -> None:
            self.loads.append((tier, residency.tile, self._inside[-1] if self._inside else None))
            load(tier, residency, slot)

        monkeypatch.setattr(Lane, "perform", performed)
        monkeypatch.setattr(Stage, "step", stepped)
        monkeypatch.setattr(Tier, "_load", loaded)
        device = device_of(engine)
        for name in ("launch", "launch_on_host"):
            monkeypatch.setattr(device, name, self._recorded(getattr(device, name)))

    def _recorded(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        def launched(operation: Operation, *args: Any) -> Any:
            assert self._inside[-1] is operation, "it was launched from elsewhere than its own coroutine"
            if not self.launched or self.launched[-1] is not operation:  # by launch_on_host
                self.launched.append(operation)
            return launch(operation, *args)

        return launched

    def check(self) -> Counter[str]:
        """Loads by who made them; every operation that the device got went through the coroutine, once, in this order."""
        operations = [entry for entry in self.performed if type(entry) is Operation]
        assert operations == self.launched
        found: Counter[str] = Counter()
        for _, tile, who in self.loads:
            if not isinstance(who, Stage):
                assert who is not None and tile in who.tiles, f"{tile} was loaded ahead, and by no stage"
            found["stage" if isinstance(who, Stage) else "operation"] += 1
        return found


@pytest.mark.parametrize("update", ["device", "host"])
@pytest.mark.parametrize("caps", [
    {"device": "cpu", "host_memory": 200 << 10, "spill": True},
    {"device": "emulated", "device_memory": STATES // 3},
    {"device": "emulated", "device_memory": STATES // 3, "host_memory": 280 << 10, "spill": True},
], ids=["RAM over a file", "a device over RAM", "three tiers"])  # fmt: skip
async def test_a_step_and_a_generation_go_through_the_coroutine_and_its_loads_ahead_through_stages(
    caps: dict[str, Any], update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = caps | ({"spill": tmp_path} if "spill" in caps else {})
    async with Engine(**options) as engine:
        model = await GPT2.create(engine, SMALL.config, seed=1, tile=SMALL.tile)
        trainer = Trainer(model, OPTIMIZER, micro_batches=SMALL.micro_batches, update=update)
        engine.plays = False  # what is played was decided before
        paths = Paths(engine, monkeypatch)
        before = engine.statistics().operations
        for batch in batches_of(SMALL, 2):
            await trainer.step(*batch)
        assert len(paths.launched) == engine.statistics().operations - before > 1000
        found = paths.check()
        assert found["stage"] > 2 * found["operation"] > 0
        tiers = {tier for tier, _, who in paths.loads if isinstance(who, Stage)}
        assert tiers == {tier for tier in engine.tiers.from_the_top() if tier.arena.divided}
        steps = len(paths.performed)
        tokens = [token async for token in model.generate([1, 2], max_new_tokens=2, seed=1)]
        assert len(tokens) == 2
        assert any(isinstance(entry, Fetch) for entry in paths.performed[steps:])
        paths.check()


async def test_single_launches_go_through_the_coroutine_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = tiles = standing("a", "b", "c")
    async with Engine("emulated") as engine:
        await engine.reserve(demand_of([], tiles))
        await engine.store([(a, np.ones(a.shape, np.float32))])
        paths = Paths(engine, monkeypatch)
        operations = [copy(a, b), on_host(copy(b, c)), copy(c, a)]
        for operation in operations:
            await engine.launch(operation)
        await engine.synchronize()
        assert paths.performed == operations
        assert paths.check() == {"operation": 2}  # a, and c as the host made it
        assert (await engine.read(a) == 1).all()
