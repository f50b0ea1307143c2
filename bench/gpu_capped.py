"""What does it cost that a model does not fit on the GPU?

    python bench/gpu_capped.py [--models gpt2-xl gpt2-medium gpt2] [--caps 0.25 0.10 0.50] [--batch 16] [--length 1024]
                               [--steps 3] [--write]

Device memory capped at a share of the states (12 bytes a parameter), the rest in pinned RAM, with the tiles that
bench/gpu_plan.py predicts to be fastest. Each row gives the speed; its share of the uncapped speed; the bytes loaded against
the least possible under that cap (optimum.py); and the bound. The bound is the larger of the uncapped step (which recomputes
too) and the bytes over the link rate measured with both ways at work. Target: from 16k tokens a step on, at 25%, at least 0.95
of that bound. FSDP2 with CPU offload (gpu_torch.py) runs under the same caps, with its fastest micro-batch: right after the
first cap of each model, and last under the other caps.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from common import program_of
from gpu_common import Speed, engine_of, model_flops, new_trainer, options_of
from gpu_peaks import LinkRates, Place, free, gemm_rate, link_rates
from gpu_record import Section
from gpu_rows import CAPPED, config_named, in_memory, under_cap
from gpu_torch import Offloaded, capped, fastest_micro_batch, one_process
from optimum import least_bytes

from asynctile.layers import GPT2Config
from asynctile.layers.update_placement import updates_of
from asynctile.program.operation import HOST
from asynctile.program.program import Program

#: The target applies from this many tokens a step on, at this cap.
ENOUGH_TOKENS, TARGET_CAP = 16_000, 0.25
COLUMNS = ("model", "cap", "tile", "parts", "s a step", "tokens/s", "of uncapped", "bound s", "of the bound",
           "up GB", "down GB", "up of least", "updated in RAM", "note")  # fmt: skip


class Measured:
    """The rates and the uncapped step of each model, to which rows are compared."""

    def __init__(self, section: Section, options: Namespace, place: Place) -> None:
        self.section = section
        self.options = options
        self.place = place
        self.peak = gemm_rate(place, options.precision)
        self.link: LinkRates = link_rates(place)
        free(place)
        self.uncapped_s: dict[str, float] = {}
        self.table = section.table("capped", *COLUMNS)

    async def uncapped(self, name: str) -> None:
        options, row = self.options, in_memory(self.options, name, recompute=True)
        with self.section.row(self.table, name, "none"):
            async with engine_of(self.section, options) as engine:
                speed = await Speed.of(await new_trainer(engine, row), row, options.steps)
            self.uncapped_s[name] = speed.step_s
            bound = model_flops(row.config, row.tokens, row.length) / self.peak
            self.section.add(self.table, name, "none", row.tile, 1, speed.step_s, row.tokens / speed.step_s, 1.0,
                             bound, bound / speed.step_s)  # fmt: skip

    async def ours(self, name: str, share: float) -> None:
        row = under_cap(self.options, name, share)
        label = f"{share:.0%}, {(row.cap or 0) / 1e9:.2f} GB"
        with self.section.row(self.table, name, label):
            async with engine_of(self.section, self.options, device_memory=row.cap) as engine:
                trainer = await new_trainer(engine, row)
                speed = await Speed.of(trainer, row, self.options.steps)
                program = await program_of(trainer, row.batch, row.length)
                least = least_bytes(program, row.cap or 0).uploaded_nbytes
            up, down = speed.report.uploaded_bytes, speed.report.downloaded_bytes
            whole_s = self.uncapped_s.get(name)
            bound = max(whole_s or 0.0, up / self.link.both, down / self.link.both)
            self.section.add(
                self.table, name, label, row.tile, row.parts, speed.step_s, row.tokens / speed.step_s,
                whole_s and whole_s / speed.step_s, bound, bound / speed.step_s,
                up / 1e9, down / 1e9, up / least if least else None, share_on_host(program))  # fmt: skip
            wanted = share == TARGET_CAP and row.tokens >= ENOUGH_TOKENS
            self.section.headline(
                f"{name}, cap {share:.0%}: of max(compute, link)", bound / speed.step_s, 0.95 if wanted else None)

    def theirs(self, name: str, share: float, join: Callable[[], None]) -> None:
        """Measure FSDP2 under the same cap, with its fastest micro-batch."""
        options, config = self.options, config_named(name, self.options.length)
        label = f"{share:.0%}, FSDP2"
        found: dict[str, Any] = {"model": name, "cap": label}
        with self.section.row(self.table, name, label):
            join()
            with capped(self.place, int(share * config.states_nbytes)):
                side, part, full = fastest_micro_batch(
                    lambda: Offloaded(self.place, config, options.precision), self.place, options.batch, options.length)
                if not part:
                    self.section.put(self.table, {**found, "note": "out of memory with one sequence at a time"})
                    return
                step_s = side.step_s(options.batch, options.length, part, max(1, options.steps - 1))
                del side
            whole_s, tokens = self.uncapped_s.get(name), options.batch * options.length
            said = "; more is out of memory" if full else ""
            self.section.put(self.table, {
                **found, "parts": options.batch // part, "s a step": step_s, "tokens/s": tokens / step_s,
                "of uncapped": whole_s and whole_s / step_s, "note": f"{part} sequences at a time{said}"})  # fmt: skip


def share_on_host(program: Program) -> float:
    """Return the share of weight tiles that are updated in RAM."""
    updates = updates_of(program)
    return sum(operation.device == HOST for operation in updates) / len(updates)


def describe(config: GPT2Config) -> str:
    return f"{config.states_nbytes / 1e9:.2f} GB of states"


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("capped", __doc__, options)
    found = Measured(section, options, place)
    states: dict[str, Any] = {name: describe(config_named(name, options.length)) for name in options.models}
    section.configuration |= {
        "batch": f"{options.batch} sequences of {options.length} tokens, median of {options.steps} steps, recompute",
        **states,
        "GEMM rate": f"{found.peak / 1e12:.3f} TFLOP/s",
        "link": f"{found.link.both / 1e9:.1f} GB/s each way, both at once",
    }
    first, *others = options.caps
    with one_process(place) as join:
        for name in options.models:
            await found.uncapped(name)
            await found.ours(name, first)
            found.theirs(name, first, join)
        for share in others:
            for name in options.models:
                await found.ours(name, share)
        for share in others:
            for name in options.models:
                found.theirs(name, share, join)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, CAPPED)))
