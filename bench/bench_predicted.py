"""Do plans come true? Seconds of a step by the virtual clock, and by this machine.

    python bench/bench_predicted.py [--rounds 5] [--steps 10] [--draw TEXT] [--write]

This machine is measured as `asynctile info --measure` does it, without a step. A busy neighbour slows whole minutes, so that
happens before the rounds, halfway and behind them, and a prediction is the median of three. Steps of one model are played: in
RAM; on `emulated` under caps of 10, 25 and 50% of the states, over links of three rates; in RAM over a file that is throttled
to two rates; and on 1, 2 and 4 emulated devices. Settings take turns, each with --steps steps a round; the time of a setting is
the median of its rounds. The clock gets the schedule that runs follow and the rates of the file. Target: within 10% of the
measured time. With --draw, six more settings are drawn by the hash of that text, such as the name of the commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import Table, arguments, batch, in_turn, publish, steps, target

from asynctile import Engine
from asynctile.cli.measured import measured
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.measure.hardware import Hardware, hardware
from asynctile.measure.simulate import simulate
from asynctile.schedule.rates import Rates
from asynctile.storage.faults import Faults

BATCH, LENGTH = 4, 256
CONFIG = GPT2Config(n_layer=6, n_head=4, n_embd=256, block_size=LENGTH, vocab_size=1024)
#: The largest difference between predicted and measured time.
MOST = 0.10


@dataclass(frozen=True)
class Setting:
    """Where a step runs. share: the cap over the states, None for none. rate: bytes a second of the link or of the file."""

    device: str
    share: float | None = None
    rate: int | None = None
    devices: int = 1

    def __str__(self) -> str:
        cap = "" if self.share is None else f", {self.share:.0%}"
        return f"{self.device}{cap}{'' if self.rate is None else f', {self.rate / 1e6:,.4g} MB/s'}"

    @property
    def cap(self) -> int | None:
        return None if self.share is None else int(self.share * CONFIG.states_nbytes)

    def engine(self, folder: str) -> Engine:
        if self.device == "cpu":
            spill = {} if self.cap is None else {"spill": folder, "wrap_spill": Faults(rate=self.rate).wrap}
            return Engine("cpu", host_memory=self.cap, **spill)  # type: ignore[arg-type]
        return Engine(self.device, device_memory=self.cap, link_rate=self.rate)

    def machine(self, rates: Rates) -> Machine:
        if self.device == "cpu":
            return Machine(device="cpu", host_memory=self.cap, spill=self.cap is not None, measured=rates)
        return Machine(device=self.device, device_memory=self.cap, link_rate=self.rate, measured=rates)


def settings(draw: str | None) -> Iterator[Setting]:
    """Yield the settings of the comparison, and six that a text draws."""
    yield Setting("cpu")
    for share in (0.5, 0.25, 0.1):
        for rate in (100_000_000, 300_000_000, 1_000_000_000):
            yield Setting("emulated", share, rate)
    for rate in (100_000_000, 300_000_000):
        yield Setting("cpu", 0.4, rate)
    for devices in (1, 2, 4):
        yield Setting(f"emulated*{devices}" if devices > 1 else "emulated", devices=devices)
    if draw is not None:
        chance = random.Random(int.from_bytes(hashlib.sha256(draw.encode()).digest()))
        for _ in range(6):
            share, rate = round(chance.uniform(0.08, 0.9), 2), int(10 ** chance.uniform(7.7, 9.3))
            yield Setting(chance.choice(["emulated", "cpu"]), share, rate)


def predicted_s(setting: Setting, rates: Rates, here: Hardware) -> float:
    """Return the seconds of a step by the virtual clock. rates: by which the engine decides. here: the machine as measured."""
    machine = setting.machine(rates)
    step = planned_step(CONFIG, Work(batch_size=BATCH, seq_len=LENGTH, replicas=setting.devices), machine)
    traffic = simulate(
        step.program, step.standing, demand=step.demand, device=setting.device, grain=machine.grain,
        device_memory=setting.cap if machine.has_link else None, host_memory=machine.host_nbytes, spill=machine.spill,
        rates=machine.rates,
    )  # fmt: skip
    real = here.rates("fp32").limited(setting.rate if machine.has_link else None)
    if machine.spill and setting.rate is not None:
        real = replace(real, disk_per_s=min(real.disk_per_s, setting.rate))
    clock = replace(machine, verbs=here.verbs).costs(step.parameters.tiling.tile)
    return replace(clock, rates=real).timeline(traffic.schedule).seconds


async def main() -> None:
    options = arguments(__doc__, rounds=5, steps=10, draw="")
    chosen = list(settings(options.draw or None))
    with tempfile.TemporaryDirectory() as folder:
        files, found = await _found(options, chosen, Path(folder))
        heres = [hardware(str(path)) for path in files]
        texts = [path.read_text().splitlines() for path in files]
    columns = ("setting", "predicted s", "measured s", "lowest s", "highest s", "predicted over measured", "target")
    table = Table("a step", columns)
    ratios = []
    for setting, (rates, spent) in found.items():
        seconds, middle = statistics.median(predicted_s(setting, rates, here) for here in heres), statistics.median(spent)
        ratios.append(seconds / middle)
        said = target(abs(seconds / middle - 1), MOST, above=False)
        table.rows.append((str(setting), seconds, middle, min(spent), max(spent), seconds / middle, said))
    within = sum(abs(ratio - 1) <= MOST for ratio in ratios)
    configuration: dict[str, Any] = {
        "model": f"GPT-2, n_layer {CONFIG.n_layer}, n_embd {CONFIG.n_embd}, T {LENGTH}, B {BATCH}, float32",
        "repeats": f"median of {options.rounds} rounds of {options.steps} played steps, settings in turn",
        "within 10%": f"{within} of {len(ratios)}",
        "drawn by": options.draw or "nothing",
        "machine": json.dumps(texts),
    }
    publish("bench_predicted", __doc__, configuration, [table], write=options.write)


async def _found(
    options: Any, chosen: list[Setting], folder: Path
) -> tuple[list[Path], dict[Setting, tuple[Rates, list[float]]]]:
    """Return files of the machine and, for each setting, the rates by which its engine decides and the seconds of its steps."""
    tokens, targets = batch(CONFIG, BATCH, LENGTH)
    files = [folder / f"machine-{number}.toml" for number in range(3)]
    files[0].write_text(await asyncio.to_thread(measured))
    async with AsyncExitStack() as stack:
        trainers: dict[Setting, Trainer] = {}
        rates = {}
        for setting in chosen:
            engine = await stack.enter_async_context(setting.engine(tempfile.mkdtemp(dir=folder)))
            model = await GPT2.create(engine, CONFIG, seed=1)
            trainers[setting] = Trainer(model, AdamW(lr=1e-4), replicas=setting.devices)
            rates[setting] = engine.rates
        sides = {str(setting): steps(trainer, tokens, targets, options.steps) for setting, trainer in trainers.items()}
        await in_turn(sides, 1)
        first = await in_turn(sides, (options.rounds + 1) // 2)
        files[1].write_text(await asyncio.to_thread(measured))
        then = await in_turn(sides, options.rounds // 2)
    files[2].write_text(await asyncio.to_thread(measured))
    return files, {setting: (rates[setting], [*first[str(setting)], *then[str(setting)]]) for setting in chosen}


if __name__ == "__main__":
    asyncio.run(main())
