"""How fast is a model that fits on the GPU, next to PyTorch on the same GPU?

    python bench/gpu_memory.py [--models gpt2 gpt2-medium gpt2-xl] [--batch 16] [--length 1024] [--steps 10] [--tile N]
                               [--whole 12] [--write]

tokens/s and model FLOP utilisation, 6 N + 12 L T d FLOPs a token over the GEMM rate measured here and over the datasheet's.
Nothing is recomputed on either side; last, ours with recomputation. PyTorch is gpu_torch.py, eager and compiled, with fused
AdamW, in the same process as ours, each alone on the GPU; models of at most `--whole` layers are compiled as one graph too.
Target: at least 0.9 of compiled.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from functools import partial

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
    configs = {name: config_named(name, options.length) for name in options.models}
    tokens = options.batch * options.length
    seconds: dict[str, dict[str, float]] = {name: {} for name in configs}

    def note(name: str, side: str, value: float) -> None:
        rate = model_flops(configs[name], tokens, options.length) / value
        seconds[name][side] = value
        section.add(table, name, side, value, tokens / value, rate / peak, paper and rate / paper)

    for name, config in configs.items():
        with section.row(table, name, "asynctile"):
            note(name, "asynctile", await ours_s(options, config, recompute=False))
        with section.row(table, name, "PyTorch"):
            theirs(place, options, config, partial(note, name))
        free(place)
        headlines(section, name, seconds[name], model_flops(config, tokens, options.length) / peak)
    for name, config in configs.items():
        with section.row(table, name, "asynctile, recompute"):
            note(name, "asynctile, recompute", await ours_s(options, config, recompute=True))
    section.end()


def headlines(section: Section, name: str, seconds: dict[str, float], bound_s: float) -> None:
    """Against the better compiled side, and of the bound."""
    if "asynctile" not in seconds:
        return
    compiled = [value for side, value in seconds.items() if side.startswith("PyTorch compiled")]
    if compiled:
        section.headline(f"{name}: of PyTorch compiled", min(compiled) / seconds["asynctile"], 0.9)
    section.headline(f"{name}: model FLOPs of the GEMM rate", bound_s / seconds["asynctile"])


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, models=("gpt2", "gpt2-medium", "gpt2-xl"), batch=16, length=1024, steps=10, tile=0,
                                whole=12)))  # fmt: skip
