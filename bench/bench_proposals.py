"""Is what `plan --search` proposes at least as fast as the defaults, and as settings drawn at random?

    python bench/bench_proposals.py [--rounds 5] [--steps 3] [--drawn 20] [--seed 1] [--search 15] [--write]

Eight cases: two models, each on `cpu`; on `emulated` under caps of 50% and 25% of the states, over a link; and on `cpu` with
RAM for 50% of them over a throttled file. In each case a search of --search seconds proposes settings twice: by the rates that
an engine knows, as `train --auto` does, and by this machine's file, as `info --measure` writes it. --drawn other settings of
tile, place of updates, recomputation and micro-batches are drawn by --seed. All run in turn, each on an engine of its own. The
time of a setting is the median of its rounds, --steps steps each. Ratios divide seconds of the same round, proposal over other;
the interval holds nine of ten medians of rounds that were drawn again. Target: the interval's lower end is at most 1 against
the defaults, and against the fastest of the drawn settings, which luck favours.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import Table, arguments, batch, in_turn, publish, steps, target

from asynctile import BudgetError, Engine
from asynctile.cli.measured import measured
from asynctile.cli.options import Options
from asynctile.cli.planning import plan_of
from asynctile.cli.search import MORE_RAM, faster
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.plan import Plan
from asynctile.layers.update_placement import UPDATES
from asynctile.measure.hardware import Hardware, hardware
from asynctile.schedule.rates import Rates
from asynctile.storage.faults import Faults

BATCH, LENGTH = 4, 128
MODELS = {
    "6 layers of 192": GPT2Config(n_layer=6, n_head=4, n_embd=192, block_size=LENGTH, vocab_size=1024),
    "2 layers of 384": GPT2Config(n_layer=2, n_head=6, n_embd=384, block_size=LENGTH, vocab_size=4096),
}
#: Bytes per second of the link, and of the file.
RATE = 300_000_000
TILES = (64, 96, 128, 192, 256, 384, 512)
#: Whether to recompute, and the parts of a batch, that may be drawn.
RECOMPUTE, PARTS = (True, False), (1, 2, 4)
#: Medians of rounds drawn again, and the share of them inside the interval.
DRAWS, SHARE = 2000, 0.9

#: Seconds of a step in each round.
Spent = list[float]


@dataclass(frozen=True)
class Case:
    """A model and a place. share: the cap over the states, None for none."""

    model: str
    device: str
    share: float | None

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.model}, {self.device}"
        return f"{self.model}, {self.device}, {self.share:.0%}{' over a file' if self.device == 'cpu' else ''}"

    @property
    def config(self) -> GPT2Config:
        return MODELS[self.model]

    def options(self, spill: str) -> Options:
        cap = None if self.share is None else int(self.share * self.config.states_nbytes)
        common = Options(device=self.device, batch_size=BATCH, seq_len=LENGTH)
        if self.device == "cpu":
            return replace(common, host_memory=cap, spill=None if cap is None else spill)
        return replace(common, device_memory=cap, link_rate=RATE)

    def engine(self, options: Options) -> Engine:
        spill = {"spill": options.spill, "wrap_spill": Faults(rate=RATE).wrap} if options.spill else {}
        return Engine(options.device, device_memory=options.device_memory, host_memory=options.host_memory,
                      link_rate=options.link_rate, **spill)  # type: ignore[arg-type]


def cases() -> list[Case]:
    places = [("cpu", None), ("emulated", 0.5), ("emulated", 0.25), ("cpu", 0.5)]
    return [Case(model, device, share) for model in MODELS for device, share in places]


def proposal(case: Case, options: Options, rates: Rates, here: Hardware | None, seconds: float) -> Options:
    """Return the options with the settings that a search of `seconds` finds. here: this machine's file, if that is used."""
    if options.spill:
        rates = replace(rates, disk_per_s=min(rates.disk_per_s, RATE))
        here = here and replace(here, disk_per_s=min(here.disk_per_s, RATE))
    plan = partial(plan_of, case.config, there=here, rates=rates, gemm_rate=None, stage=lambda text: None)
    first: Plan = plan(options)
    end = time.monotonic() + seconds
    found = faster(options, first, plan, lambda: time.monotonic() > end, round(MORE_RAM * first.host_bytes))
    return options if found is None else replace(options, **found.changes)


def drawn(options: Options, chance: random.Random) -> Options:
    return replace(options, tile=chance.choice(TILES), update=chance.choice(UPDATES), recompute=chance.choice(RECOMPUTE),
                   micro_batches=chance.choice(PARTS))  # fmt: skip


async def started(case: Case, options: Options, stack: AsyncExitStack) -> Trainer:
    """Return a trainer with these settings after its first two steps; BudgetError if they do not fit."""
    if options.spill:
        Path(options.spill).mkdir()
    async with AsyncExitStack() as own:
        engine = await own.enter_async_context(case.engine(options))
        model = await GPT2.create(engine, case.config, seed=1, tile=options.tile)
        trainer = Trainer(model, AdamW(lr=1e-4), micro_batches=options.micro_batches, recompute=options.recomputing,
                          update=options.update)  # fmt: skip
        for _ in range(2):
            await trainer.step(*batch(case.config, BATCH, LENGTH))
        stack.push_async_callback(own.pop_all().aclose)
    return trainer


async def compared(case: Case, settings: Any, here: Hardware) -> list[list[Any]]:
    """Return the rows of one case, one for each proposal."""
    chance = random.Random(f"{settings.seed} {case}")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = case.options(str(folder / "0"))
        sides = {"defaults": await started(case, options, stack)}
        rates = sides["defaults"].model.engine.rates
        proposals = {}
        for name, file in (("rates", None), ("file", here)):
            proposals[name] = await asyncio.to_thread(proposal, case, options, rates, file, settings.search)
            sides[name] = await started(case, beside(proposals[name], str(folder / name)), stack)
        own = len(sides)
        while len(sides) < own + settings.drawn:
            other = drawn(options, chance)
            if words(other) not in sides:
                with suppress(BudgetError):  # settings that do not fit are drawn again
                    sides[words(other)] = await started(case, beside(other, str(folder / f"{len(sides)}")), stack)
        data = batch(case.config, BATCH, LENGTH)
        timed = {name: steps(trainer, *data, settings.steps) for name, trainer in sides.items()}
        spent = await in_turn(timed, settings.rounds)
    fastest = min(list(sides)[own:], key=lambda name: statistics.median(spent[name]))
    return [[str(case), name, words(found), *_against(spent[name], spent["defaults"]),
             fastest, *_against(spent[name], spent[fastest])] for name, found in proposals.items()]  # fmt: skip


def beside(options: Options, folder: str) -> Options:
    """Return the options with a spill folder of their own, if they spill."""
    return replace(options, spill=options.spill and folder)


def words(options: Options) -> str:
    default = Options()
    names = ("tile", "update", "recompute", "micro_batches")
    found = [f"{name} {getattr(options, name)}" for name in names if getattr(options, name) != getattr(default, name)]
    return ", ".join(found) or "defaults"


def _against(one: Spent, other: Spent) -> tuple[float, float, float, str]:
    """Return the ratio of medians of one over the other, its interval, and what the target says."""
    ratios = [mine / theirs for mine, theirs in zip(one, other, strict=True)]
    low, high = _interval(ratios)
    return statistics.median(ratios), low, high, target(low, 1.0, above=False)


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    cut = int(DRAWS * (1 - SHARE) / 2)
    return medians[cut], medians[-1 - cut]


async def main() -> None:
    options = arguments(__doc__, rounds=5, steps=3, drawn=20, seed=1, search=15.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(await asyncio.to_thread(measured))
        here = hardware(str(path))
    columns = ("case", "by", "proposal", "over defaults", "low", "high", "target",
               "fastest drawn", "proposal over it", "low", "high", "target")  # fmt: skip
    table = Table("seconds of a step, by ratio", columns)
    for case in cases():
        table.rows += await compared(case, options, here)
    configuration = {
        "work": f"B {BATCH}, T {LENGTH}, float32; link and file at {RATE / 1e6:,.0f} MB/s",
        "repeats": f"{options.rounds} rounds of {options.steps} played steps, settings in turn; {options.drawn} drawn, seed "
                   f"{options.seed}; {options.search:g} s of search",
    }  # fmt: skip
    publish("bench_proposals", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
