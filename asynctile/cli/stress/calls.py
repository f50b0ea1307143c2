"""Every public coroutine of engine, share, model, server and trainer, by name, to be disturbed alone or together (disturb.py).

Each may be interrupted anywhere, and must then undo what it made; `clear` gives back what belongs to the caller. Covers
`Coroutines`. settled.py checks what must hold after each; lives.py orders them and covers opening and closing. A public
coroutine that is in neither fails tests/cli/test_stress_calls.py.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asynctile.cli.stress.disturb import Call
from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.models import CONFIG, TILE, batch, floor_of
from asynctile.cli.stress.place import StressEngine
from asynctile.errors import DeviceError
from asynctile.events import SaveDone
from asynctile.layers import GPT2, LoRA, Trainer
from asynctile.layers.model import model_state_of
from asynctile.layers.server import Server
from asynctile.ops import gelu
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT
from asynctile.storage.tile import Tile

__all__ = ["LENDING", "STEPPING", "Coroutines"]

#: Bytes of the spill file that a share gets.
_LENT_NBYTES = 4 << 20
#: Calls that count steps of the training.
STEPPING = {"Trainer.step", "Trainer.run"}
#: Calls for which the engine may have too little memory.
LENDING = {
    "Engine.share", "Engine.share, trained on", "Engine.share, failing", "GPT2.save_adapter", "GPT2.load_adapter"}  # fmt: skip
_TURNS = 5
_PROMPT = (1, 2)


class Coroutines:
    """The public coroutines on one engine, `all` by name. base: an existing checkpoint. folder: for saves."""

    def __init__(self, engine: StressEngine, trainer: Trainer, folder: Path, base: Path) -> None:
        self.engine, self.trainer = engine, trainer
        self.runtime, self.state = runtime_of(engine), model_state_of(trainer.model)
        self.folder, self.base = folder, base
        self._own: list[Tile] = []
        self._models: list[GPT2] = []
        self._servers: list[Server] = []
        #: text of the fixed seed, by step
        self._texts: dict[int, list[int]] = {}
        model, self._checkpoint = trainer.model, folder / "checkpoint"
        self.all: dict[str, Call] = {
            "GPT2.create": self._create, "GPT2.release": self._release, "GPT2.from_pretrained": self._from_pretrained,
            "GPT2.state_dict": model.state_dict, "ModelState.gather": self._gather,
            "GPT2.save_pretrained": partial(model.save_pretrained, folder / "model"),
            "GPT2.save_adapter": self._save_adapter, "GPT2.load_adapter": self._load_adapter,
            "GPT2.logits": partial(model.logits, batch(1)[0]), "GPT2.loss": partial(model.loss, *batch(1)),
            "GPT2.generate": self._generate, "GPT2.generate, broken off": self._generate_some,
            "Server.generate": self._serve, "Server.aclose": self._close_server,
            "Trainer.load": self._load, "Trainer.save": partial(trainer.save, self._checkpoint),
            "Trainer.save, behind": partial(trainer.save, self._checkpoint, wait=False), "Trainer.saved": self._saved,
            "Trainer.gradients": partial(trainer.gradients, *batch(1)), "Trainer.step": self._step,
            "Trainer.run": self._run, "Steps.aclose": self._run_nothing,
            "Trainer.gemm_rate": partial(trainer.gemm_rate, *batch(1)[0].shape),
            "Runtime.reserve, store, read, release": self._store, "Runtime.launch": self._launch,
            "Runtime.read_all": partial(self.runtime.read_all, list(self.state.weights())),
            "Runtime.synchronize": self.runtime.synchronize,
            "Runtime.call": self._job, "Engine.events": self._events, "Engine.share": self._share,
            "Engine.share, trained on": self._share_trains, "Engine.share, failing": self._share_fails,
        }  # fmt: skip

    async def clear(self) -> None:
        """Give back everything that belongs to the caller."""
        for model in self._models:
            await model.release()
        for server in self._servers:
            await server.aclose()
        await self.runtime.release(self._own)
        self._models, self._servers, self._own = [], [], []

    async def _create(self) -> None:
        self._models.append(await GPT2.create(self.engine, CONFIG, seed=1, tile=TILE))

    async def _release(self) -> None:
        await self._create()
        await self._models[-1].release()

    async def _from_pretrained(self) -> None:
        self._models.append(await GPT2.from_pretrained(self.engine, self.base, tile=TILE))

    async def _adapted(self) -> GPT2:
        """Return another model with a new adapter, which is saved."""
        await self._from_pretrained()
        model = self._models[-1]
        Trainer(model, adapters=LoRA(rank=2))
        await model.save_adapter(self.folder / "adapter")
        return model

    async def _save_adapter(self) -> None:
        await self._adapted()

    async def _load_adapter(self) -> None:
        tensors = await (await self._adapted()).state_dict()
        await self._from_pretrained()
        await self._models[-1].load_adapter(self.folder / "adapter")
        found = await self._models[-1].state_dict()
        if any((found[name] != tensor).any() for name, tensor in tensors.items()):
            raise Finding("lost", "a saved adapter was loaded with other values")

    async def _load(self) -> None:
        self._models.append((await Trainer.load(self.engine, self.base)).model)

    async def _gather(self) -> None:
        for parameter in self.state.parameters.values():
            await self.state.gather(parameter, parameter.weights)

    async def _generate(self) -> None:
        step = self.trainer.step_count
        self._expect_text(step, [token async for token in self.trainer.model.generate(_PROMPT, max_new_tokens=3, seed=1)])

    async def _generate_some(self) -> None:
        async with aclosing(self.trainer.model.generate(_PROMPT, seed=1)) as tokens:
            await anext(tokens)

    async def _serve(self) -> None:
        """Generate several texts at once, one of which is broken off."""
        async with self.trainer.model.serve(most=2) as server, asyncio.TaskGroup() as group:
            group.create_task(_some_of(server))
            for _ in range(2):
                group.create_task(self._text(server))
            await server.publish()

    async def _close_server(self) -> None:
        """Close a server while it writes."""
        server = self.trainer.model.serve()
        self._servers.append(server)
        await server.__aenter__()
        async with aclosing(server.generate(_PROMPT, max_new_tokens=9)) as tokens:
            await anext(tokens)
            await server.aclose()
            with suppress(DeviceError):
                async for _ in tokens:
                    pass

    async def _text(self, server: Server) -> None:
        step = self.trainer.step_count
        self._expect_text(step, [token.id async for token in server.generate(_PROMPT, max_new_tokens=3, seed=1)])

    def _expect_text(self, step: int, text: list[int]) -> None:
        """Check that the same weights give the same text beside any other requests. step: the text began after it."""
        if step == self.trainer.step_count and self._texts.setdefault(step, text) != text:
            raise Finding("lost", f"after step {step}, one seed gave the text {self._texts[step]}, and then {text}")

    async def _saved(self) -> None:
        await self.trainer.save(self._checkpoint, wait=False)
        await self.trainer.saved()

    async def _step(self) -> None:
        await self.trainer.step(*batch(self.trainer.step_count + 1))

    async def _run(self) -> None:
        first = self.trainer.step_count + 1
        async for _ in self.trainer.run([batch(first), batch(first + 1)]):
            pass

    async def _run_nothing(self) -> None:
        await self.trainer.run([batch(1)]).aclose()

    async def _store(self) -> None:
        a, b = self._tiles()
        demand = demand_of([], [a, b])
        await self.runtime.reserve(demand)
        await self.runtime.store(((tile, np.ones(tile.shape, np.float32)) for tile in (a, b)), demand)
        await self.runtime.read(a)
        await self.runtime.release([a, b])

    async def _launch(self) -> None:
        a, b = self._tiles()
        await self.runtime.store([(a, np.ones(a.shape, np.float32))], demand_of([], [a, b]))
        event = await self.runtime.launch(gelu(a, b))
        await event.landed()

    async def _job(self) -> None:
        async def job() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

        await self.runtime.call(job())

    async def _share(self) -> None:
        a, b = self._tiles()
        async with self.engine.share(**self._part(1)) as lent:
            part = runtime_of(lent)
            await part.reserve(demand_of([], [a, b]))
            await part.store([(a, np.ones(a.shape, np.float32))])
            await part.launch(gelu(a, b))
            await part.read(b)

    async def _share_trains(self) -> None:
        """Train in a share that takes turns with other work of the engine."""
        async with self.engine.share(**self._part(4), weight=2.0, interactive=True) as part:
            trainer = Trainer(await GPT2.create(part, CONFIG, tile=TILE), replicas=self.trainer.replicas)
            for step in (1, 2):
                await trainer.step(*batch(step))
            async with trainer.model.serve(most=1) as server:
                await _some_of(server)

    async def _share_fails(self) -> None:
        """End a share's block with an error of its user."""
        with suppress(ZeroDivisionError):
            async with self.engine.share(**self._part(1)):
                raise ZeroDivisionError

    async def _events(self) -> None:
        """Read the events of a save to its end."""
        events = self.engine.events()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.trainer.save(self._checkpoint))
            async for event in events:
                if isinstance(event, SaveDone):
                    break
        await events.aclose()

    def _tiles(self) -> list[Tile]:
        """Return two tiles that belong to the caller."""
        tiles = [Tile(name, (TILE, TILE), persistent=True) for name in ("own a", "own b")]
        self._own += tiles
        return tiles

    def _part(self, floors: int) -> dict[str, Any]:
        """Return the options of a share whose caps are `floors` times the model's floor."""
        device, ram = (floors * floor_of().rounded(to).floor_nbytes for to in (ALIGNMENT, PAGE))
        sizes: dict[str, Any] = {"host_memory": ram} | ({"device_memory": device} if self.runtime.device.has_link else {})
        return sizes | ({"spill_limit": _LENT_NBYTES} if self.runtime.tiers.spill is not None else {})


async def _some_of(server: Server) -> None:
    async with aclosing(server.generate(_PROMPT, seed=2)) as tokens:
        await anext(tokens)
