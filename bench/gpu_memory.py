"""How fast is a model that fits on the GPU, next to PyTorch on the same GPU?

    python bench/gpu_memory.py [--models gpt2 gpt2-medium gpt2-xl] [--batch 16] [--length 1024] [--steps 10] [--tile N]
                               [--write]

tokens/s and model FLOP utilisation, 6 N + 12 L T d FLOPs a token over the GEMM rate measured here and over the datasheet's.
Nothing is recomputed on either side where that fits. PyTorch is gpu_torch.py: eager and compiled, fused AdamW, in turn with
ours in one process, each alone on the GPU. Target: at least 0.9 of compiled.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from gpu_common import Speed, config_named, engine_of, memory_tile, model_flops, new_trainer, options_of
from gpu_peaks import Place, datasheet, free, gemm_rate
from gpu_record import Section, gpu_facts
from gpu_torch import InMemory

from asynctile.layers import GPT2Config

COLUMNS = ("model", "side", "s a step", "tokens/s", "of the GEMM rate", "of the datasheet", "note")


async def ours_s(options: Namespace, config: GPT2Config, *, recompute: bool) -> float:
    """Seconds a step of a model that stays on the device."""
    async with engine_of(options) as engine:
        trainer = await new_trainer(engine, config, options.tile or memory_tile(config), recompute=recompute)
        return (await Speed.of(trainer, options.batch, options.length, options.steps)).step_s


def theirs(place: Place, options: Namespace, config: GPT2Config, note: Callable[[str, float], None]) -> None:
    """PyTorch eager, then the same model compiled; note(side, seconds) after each."""
    side = InMemory(place, config, options.precision)
    note("PyTorch eager", side.step_s(options.batch, options.length, options.steps))
    if config.n_layer <= options.whole:
        side.compile(whole=True)
        note("PyTorch compiled whole", side.step_s(options.batch, options.length, options.steps))
    side.compile()
    note("PyTorch compiled", side.step_s(options.batch, options.length, options.steps))


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("memory", __doc__, options)
    peak = gemm_rate(place, options.precision)
    paper = datasheet(gpu_facts(options.device).get("gpu", ""))
    section.configuration |= {
        "batch": f"{options.batch} sequences of {options.length} tokens, median of {options.steps} steps",
        "tile": options.tile or "the width of the MLP (4 d)",
        "GEMM rate": f"{peak / 1e12:.1f} TFLOP/s measured, {paper / 1e12:.0f} by the datasheet" if paper else
        f"{peak / 1e12:.3f} TFLOP/s measured",
    }  # fmt: skip
    table = section.table("in memory", *COLUMNS)
    for name in options.models:
        config = config_named(name, options.length)
        tokens = options.batch * options.length
        flops = model_flops(config, tokens, options.length)
        seconds: dict[str, float] = {}

        def note(side: str, value: float, name: str = name, flops: float = flops, seconds: Any = seconds) -> None:
            rate = flops / value
            seconds[side] = value
            section.add(table, name, side, value, options.batch * options.length / value, rate / peak, paper and rate / paper)

        for recompute, side in ((False, "asynctile"), (True, "asynctile, recompute")):
            with section.row(table, name, side):
                note(side, await ours_s(options, config, recompute=recompute))
        with section.row(table, name, "PyTorch"):
            theirs(place, options, config, note)
        free(place)
        headlines(section, name, seconds, flops / peak)
    section.end()


def headlines(section: Section, name: str, seconds: dict[str, float], bound_s: float) -> None:
    """Against compiled, and of the bound; a model that had to recompute counts as it is."""
    ours = seconds.get("asynctile", seconds.get("asynctile, recompute"))
    compiled = [value for side, value in seconds.items() if side.startswith("PyTorch compiled")]
    if ours is None:
        return
    if compiled:
        section.headline(f"{name}: of PyTorch compiled", min(compiled) / ours, 0.9)
    section.headline(f"{name}: model FLOPs of the GEMM rate", bound_s / ours)


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, models=("gpt2", "gpt2-medium", "gpt2-xl"), batch=16, length=1024, steps=10, tile=0,
                                whole=12)))  # fmt: skip
