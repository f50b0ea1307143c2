"""How fast is a model that fits on the GPU, compared with PyTorch on the same GPU?

    python bench/gpu_memory.py [--models gpt2-xl gpt2-medium gpt2] [--batch 16] [--length 1024] [--steps 10] [--tile N]
                               [--whole 12] [--write]

tokens/s and model FLOP utilization: 6 N + 12 L T d FLOPs a token over the GEMM rate measured here and over the datasheet's.
Neither side recomputes, except for a last row of asynctile with recomputation. PyTorch is gpu_torch.py with fused AdamW, in the
same process as asynctile, each alone on the GPU: eager and compiled, both again with cuDNN's attention, and models of at most
`--whole` layers compiled as one graph. The most important rows come first: asynctile, eager and compiled for each model.
Target: at least 0.9 of compiled.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace

from gpu_common import Speed, engine_of, model_flops, new_trainer, options_of
from gpu_peaks import Place, datasheet, free, gemm_rate
from gpu_record import Section, gpu_facts
from gpu_rows import MEMORY, Row, in_memory
from gpu_torch import InMemory

COLUMNS = ("model", "side", "s a step", "tokens/s", "of the GEMM rate", "of the datasheet", "note")


class Measured:
    """The rows of one table, and the seconds per step of each side of each model."""

    def __init__(self, section: Section, options: Namespace, place: Place) -> None:
        self.section, self.options, self.place = section, options, place
        self.peak = gemm_rate(place, options.precision)
        self.paper = datasheet(gpu_facts(options.device).get("gpu", ""))
        self.table = section.table("in memory", *COLUMNS)
        self.seconds: dict[str, dict[str, float]] = {name: {} for name in options.models}

    async def ours(self, name: str, *, recompute: bool) -> None:
        side = "asynctile, recompute" if recompute else "asynctile"
        row = in_memory(self.options, name, recompute=recompute)
        with self.section.row(self.table, name, side):
            async with engine_of(self.section, self.options) as engine:
                speed = await Speed.of(await new_trainer(engine, row), row, self.options.steps)
            self._note(name, side, row, speed.step_s)

    def theirs(self, name: str, *, eager: bool = True, cudnn: bool = False, whole: bool = False) -> None:
        """Add a compiled row, and by default an eager one. cudnn: attention by cuDNN. whole: compile as one graph."""
        row = in_memory(self.options, name, recompute=False)
        what = ", cuDNN attention" if cudnn else ", one graph" if whole else ""
        sides = [f"PyTorch eager{what}"] if eager else []
        with self.section.row(self.table, name, "PyTorch"):
            model = InMemory(self.place, row.config, self.options.precision)
            model.cudnn = cudnn
            for side in (*sides, f"PyTorch compiled{what}"):
                with self.section.row(self.table, name, side):
                    if "compiled" in side:
                        model.compile(whole=whole)
                    self._note(name, side, row, model.step_s(row.batch, row.length, self.options.steps))
            del model
        free(self.place)

    def _note(self, name: str, side: str, row: Row, value: float) -> None:
        rate = model_flops(row.config, row.tokens, row.length) / value
        self.seconds[name][side] = value
        self.section.add(self.table, name, side, value, row.tokens / value, rate / self.peak, self.paper and rate / self.paper)
        self._headlines(name, model_flops(row.config, row.tokens, row.length) / self.peak)

    def _headlines(self, name: str, bound_s: float) -> None:
        """Compare with the fastest compiled side so far, and with the bound."""
        ours = self.seconds[name].get("asynctile")
        if ours is None:
            return
        compiled = [value for side, value in self.seconds[name].items() if side.startswith("PyTorch compiled")]
        if compiled:
            self.section.headline(f"{name}: of PyTorch compiled", min(compiled) / ours, 0.9)
        self.section.headline(f"{name}: model FLOPs of the GEMM rate", bound_s / ours)


async def main(options: Namespace) -> None:
    place, section = Place(options.device), Section("memory", __doc__, options)
    found = Measured(section, options, place)
    section.configuration |= {
        "batch": f"{options.batch} sequences of {options.length} tokens, median of {options.steps} steps",
        "tile": options.tile or "the width of the MLP (4 d)",
        "GEMM rate": f"{found.peak / 1e12:.3f} TFLOP/s measured"
        + (f", {found.paper / 1e12:.0f} by the datasheet" if found.paper else ""),
    }
    for name in options.models:
        await found.ours(name, recompute=False)
        found.theirs(name)
    for name in options.models:
        found.theirs(name, cudnn=True)
    for name in options.models:
        if in_memory(options, name, recompute=False).config.n_layer <= options.whole:
            found.theirs(name, eager=False, whole=True)
    for name in options.models:
        await found.ours(name, recompute=True)
    section.end()


if __name__ == "__main__":
    asyncio.run(main(options_of(__doc__, MEMORY)))
