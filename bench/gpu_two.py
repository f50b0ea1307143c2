"""Do two GPUs train with the bits of one, and how much faster?

    python bench/gpu_two.py [--models gpt2 gpt2-medium] [--caps 0 0.25] [--batch 16] [--length 1024] [--steps 3] [--mib 64]
                            [--write]

First copies from the first GPU to the second: their rate, issued and as nodes of one graph of both GPUs, and whether the bytes
arrive. Then trainings of two replicas, on one GPU and on two, without a cap and with device memory capped at a share of the
states on each GPU. Losses, weights and moments after the same steps must have one digest. The other measures are the speed of
two GPUs over that of one, and the bytes that passed between them against those of the plan. On a machine with one GPU it says
so and leaves these out.

Last, on one GPU: two engines, each with lanes of its own, step in turn and at the same time, under the smallest cap. Both must
end with one digest. The measure is the time of two steps at once over that of two steps in turn.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import numpy as np
from common import batch
from gpu_common import Speed, engine_of, new_trainer, options_of
from gpu_record import Section
from gpu_rows import TWO, Row, engine_name, shared
from watched import WatchedGraphs
from xxhash import xxh3_128

from asynctile.device import open_devices
from asynctile.device.base import Node
from asynctile.device.cupy_driver import gpu_count
from asynctile.kernels.cuda import Array
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine, Work
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from tests.inside_engine import device_of

#: Copies whose time is taken together.
COPIES = 8
#: The cap of two engines on one GPU, over the states, if no other cap is asked for.
SHARE = 0.25
#: The least speed of two GPUs over one that is worth the second one.
WANTED = 1.5


def names_of_both(options: Namespace) -> tuple[str, str]:
    """Return the names of one GPU and of it and the next one."""
    first = int(engine_name(options).partition(":")[2] or 0)
    return f"cuda:{first}", f"cuda:{first}-{first + 1}"


def between(section: Section, options: Namespace, name: str) -> None:
    """Measure copies from the first GPU to the second, and check their bytes."""
    table = section.table("from one GPU to the other", "how", "MiB", "GB/s", "right", "note")
    shape = (options.mib << 18,)
    tile = Tile("tile", shape)
    with ExitStack() as stack:
        first, second = devices = open_devices(name, precision=options.precision)
        for device in devices:
            stack.callback(device.close, 10.0)
            device.start()
        source, target = (Array(device.driver.malloc(tile.nbytes), shape, tile.dtype) for device in devices)  # type: ignore[attr-defined]
        here = first.numbers(shape[0] // 2).view(np.float32)
        recorder = second.recorder
        assert recorder is not None
        graph = recorder.record([Node(Kind.PASS, tile, (target, source), None, (), 1)] * COPIES)

        def issued() -> None:
            for _ in range(COPIES - 1):
                second.receive(target, source, ())
            landed(second.receive(target, source, ()))

        for how, work in (("issued", issued), ("in a graph", lambda: landed(recorder.replay(graph)))):
            with section.row(table, how, options.mib):
                rates = [seconds_of(work) for _ in range(4)][1:]
                here[:] = value = time.perf_counter() % 1000
                landed(first.upload(source, here, ()))
                work()
                here[:] = 0
                landed(second.download(here, target, ()))
                right = bool((here == np.float32(value)).all())
                section.add(table, how, options.mib, COPIES * tile.nbytes / statistics.median(rates) / 1e9, right)
        recorder.forget(graph)


def landed(event: Any) -> None:
    event.wait()
    if event.error is not None:
        raise event.error


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def digest_of(trainer: Trainer, losses: list[float]) -> str:
    """Return a digest of the losses, the weights and the moments."""
    state, found = model_state_of(trainer.model), xxh3_128(repr(losses).encode())
    for parameter in state.parameters.values():
        for family in (parameter.weights, parameter.exp_avg, parameter.exp_avg_sq):
            found.update(np.ascontiguousarray(await state.gather(parameter, family)).tobytes())
    return found.hexdigest()


class Trainings:
    """Trainings of two replicas on one GPU and on two."""

    def __init__(self, section: Section, options: Namespace) -> None:
        self._section, self._options = section, options
        self._table = section.table("trainings", "model", "cap of each", "GPUs", "s a step", "tokens/s", "graphs a step",
                                    "MB passed", "of the plan", "digest", "note")  # fmt: skip

    async def row(self, name: str, share: float) -> None:
        options, section, cap = self._options, self._section, f"{share:.0%}" if share else "none"
        row = shared(options, name, share)
        speeds: list[float] = []
        digests: list[str] = []
        for count, device in enumerate(names_of_both(options), 1):
            with section.row(self._table, name, cap, count):
                speed, graphs, digest, passed, planned = await self._train(row, device)
                section.add(self._table, name, cap, count, speed, row.tokens / speed, graphs, passed / 1e6,
                            passed / planned if planned else None, digest[:12])  # fmt: skip
                speeds.append(speed)
                digests.append(digest)
        if len(speeds) == 2:
            what = f"{name}, cap {cap}"
            section.headline(f"{what}: two GPUs have the digest of one", digests[0] == digests[1], 1)
            section.headline(f"{what}: bytes passed are those of the plan", passed == planned, 1)
            section.headline(f"{what}: steps/s of two GPUs over one", speeds[0] / speeds[1], WANTED)

    async def _train(self, row: Row, device: str) -> tuple[float, float, str, int, int]:
        """Return seconds a step, graphs launched a step, the digest, and the bytes that a step passed and should pass."""
        options = Namespace(**{**vars(self._options), "device": device})
        async with engine_of(self._section, options, device_memory=row.cap) as engine:
            trainer, graphs = await new_trainer(engine, row), WatchedGraphs(device_of(engine).driver)
            speed = await Speed.of(trainer, row, options.steps)
            launched = len(graphs.launched) / (Speed.WARM - 1 + options.steps)  # the first step is issued
            digest = await digest_of(trainer, [speed.report.loss, speed.report.grad_norm])
            return speed.step_s, launched, digest, speed.report.passed_bytes, self._planned(row, device, engine.rates)

    def _planned(self, row: Row, device: str, rates: Rates) -> int:
        """Return the bytes that a step passes by its plan."""
        work = Work(batch_size=row.batch, seq_len=row.length, micro_batches=row.parts, replicas=row.replicas,
                    recompute=row.recompute, tile=row.tile)  # fmt: skip
        machine = Machine(device=device, precision=self._options.precision, device_memory=row.cap, measured=rates)
        return plan_step(row.config, work, machine).passed_bytes


async def side_by_side(section: Section, options: Namespace, name: str) -> None:
    """Measure two engines on the first GPU that train at the same time."""
    share = min((share for share in options.caps if share), default=SHARE)
    row, device = shared(options, name, share), names_of_both(options)[0]
    alone_options = Namespace(**{**vars(options), "device": device})
    table = section.table("two engines on one GPU", "model", "cap of each", "s in turn", "s at once", "at once over in turn",
                          "digest", "note")  # fmt: skip
    tokens, targets = batch(row.config, row.batch, row.length)
    with section.row(table, name, f"{share:.0%}"):
        async with AsyncExitStack() as stack:
            trainers = []
            for _ in range(2):
                engine = await stack.enter_async_context(engine_of(section, alone_options, device_memory=row.cap))
                trainers.append(await new_trainer(engine, row))
            in_turn_s, at_once_s = [], []
            for _ in range(Speed.WARM + options.steps):
                began = time.perf_counter()
                for trainer in trainers:
                    await trainer.step(tokens, targets)
                middle = time.perf_counter()
                await asyncio.gather(*(trainer.step(tokens, targets) for trainer in trainers))
                in_turn_s.append(middle - began)
                at_once_s.append(time.perf_counter() - middle)
            digests = [await digest_of(trainer, []) for trainer in trainers]
        in_turn, at_once = (statistics.median(seconds[Speed.WARM :]) for seconds in (in_turn_s, at_once_s))
        section.add(table, name, f"{share:.0%}", in_turn, at_once, at_once / in_turn, digests[0][:12])
        section.headline(f"{name}: two engines on one GPU end with one digest", digests[0] == digests[1], 1)


async def main(options: Namespace) -> None:
    section = Section("two", __doc__, options)
    if options.device != "soft" and (count := gpu_count()) < 2:
        print(f"two GPUs are needed for most of this, and this machine has {count}", flush=True)
    else:
        between(section, options, names_of_both(options)[1])
        trainings = Trainings(section, options)
        for name in options.models:
            for share in options.caps:
                await trainings.row(name, share)
    await side_by_side(section, options, options.models[0])
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, TWO)))
