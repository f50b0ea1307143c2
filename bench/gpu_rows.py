"""The trainings of the parts of bench/gpu.sh: models, batches, tiles and caps, the most important first.

Arithmetic alone, without PyTorch and without a GPU, so that tests can plan every row before a GPU is leased. Each part has its
options here, and those of a rehearsal. gpu_common.py runs the rows.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from asynctile.layers import GPT2Config
from asynctile.layers.activations import kept_if
from asynctile.layers.floor import floor_demand
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import grain_of
from asynctile.program.needs import demand_of

TINY = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=500)
#: Tile edges to choose from under a cap, in addition to the model's own widths.
LADDER = (512, 384, 256, 128, 64, 32, 16)
#: The tile for batches of 16 x 1024 in bf16: a large one of those that bench/gpu_plan.py predicts to be about as fast.
PLACED = {
    ("gpt2", 0.1): 768,
    ("gpt2", 0.25): 1536,
    ("gpt2", 0.5): 3072,
    ("gpt2-medium", 0.1): 2048,
    ("gpt2-medium", 0.25): 2048,
    ("gpt2-medium", 0.5): 4096,
    ("gpt2-xl", 0.1): 3200,
    ("gpt2-xl", 0.25): 3200,
    ("gpt2-xl", 0.5): 4096,
}
#: Tokens of a vocabulary so small that the head does not count.
FEW_TOKENS = 256

#: The options of each part, and those that differ in a rehearsal.
Options = tuple[dict[str, Any], dict[str, Any]]
MODELS = ("gpt2", "gpt2-medium", "gpt2-xl")
SMALL = {"batch": 2, "length": 32}
WARM: Options = {}, {}
TESTS: Options = {"choose": ""}, {}
SMOKE: Options = (
    {"models": ("gpt2",), "caps": (0.0, 0.25), "batch": 16, "length": 1024, "steps": 3, "nodes": 200},
    {"models": ("tiny",), "caps": (0.0, 0.5), "steps": 1, "nodes": 8, **SMALL},
)
RACE: Options = {"inside": False}, {}
REPLAY: Options = (
    {"models": ("gpt2", "gpt2-xl"), "caps": (0.25, 0.0), "batch": 16, "length": 1024, "steps": 3},
    {"models": ("tiny",), "caps": (0.5, 0.0), "steps": 1, **SMALL},
)
LINK: Options = {"sizes": (1, 4, 16, 64), "total": 1024}, {"sizes": (1, 4), "total": 4}
KERNELS: Options = (
    {"sequences": 16, "length": 1024, "width": 1600, "heads": 25, "key_heads": 5, "vocab": 50257},
    {"sequences": 2, "length": 32, "width": 64, "heads": 2, "key_heads": 1, "vocab": 300},
)
MEMORY: Options = (
    {"models": MODELS, "batch": 16, "length": 1024, "steps": 10, "tile": 0, "whole": 12},
    {"models": ("tiny",), "steps": 1, "tile": 32, **SMALL},
)
CAPPED: Options = (
    {"models": MODELS, "caps": (0.25, 0.10, 0.50), "batch": 16, "length": 1024, "steps": 3},
    {"models": ("tiny",), "caps": (0.25, 0.50), "steps": 1, **SMALL},
)
DEPTH: Options = (
    # Chosen so that compute bounds a step in its plan (4 layers: 65 ms, the link 61, issuing 56).
    {"layers": (4, 48, 16, 32, 8), "width": 2048, "batch": 32, "parts": 4, "length": 1024, "share": 0.9, "tile": 4096,
     "steps": 2},
    {"layers": (1, 4, 2), "width": 64, "parts": 2, "tile": 16, "steps": 1, **SMALL},
)  # fmt: skip
LARGEST: Options = (
    {"width": 4096, "batch": 16, "length": 1024, "vocab": 50257, "host_share": 0.85, "device_share": 0.9, "host_mib": 0,
     "device_mib": 0, "layers": 0, "tile": 0},
    {"width": 128, "vocab": 500, "host_mib": 16, "device_mib": 2, **SMALL},
)  # fmt: skip
TWO: Options = (
    {"models": ("gpt2", "gpt2-medium"), "caps": (0.0, 0.25), "batch": 16, "length": 1024, "steps": 3, "mib": 64},
    {"models": ("tiny",), "caps": (0.0, 0.5), "steps": 1, "mib": 1, **SMALL},
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A training to measure. parts: micro-batches of each replica. cap: memory of each device in bytes, None for all."""

    config: GPT2Config
    batch: int
    length: int
    tile: int
    parts: int = 1
    replicas: int = 1
    cap: int | None = None
    recompute: bool = True

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def needs(self, device: str, precision: str) -> tuple[int, int]:
        """Return (the smallest cap, all tiles alive at once) of its step, in bytes."""
        grain = grain_of(device)
        parameters = Parameters(self.config, Tiling(self.config, self.tile, grain), precision)
        rows = parameters.tiling.rows(self.batch, self.length, self.parts, self.replicas)
        program = record("step", parameters, rows, kept=kept_if(self.recompute, self.config))
        floor = floor_demand(self.config, self.tile, grain, precision).rounded(grain.alignment)
        return floor.floor_nbytes, demand_of([program], parameters.states()).resident_nbytes


def engine_name(options: Namespace) -> str:
    """Return the engine's name of the options' device. "soft" is the CUDA device over a driver on the CPU."""
    return "cuda:0" if options.device == "soft" else str(options.device)


def config_named(name: str, length: int) -> GPT2Config:
    """Return a published size for sequences of `length` tokens, or "tiny" for a rehearsal."""
    return TINY if name == "tiny" else GPT2Config.named(name, block_size=length)


def in_memory(options: Namespace, name: str, *, recompute: bool) -> Row:
    """Return a row in memory, by default with each matrix of a block as one tile."""
    config = config_named(name, options.length)
    return Row(config=config, batch=options.batch, length=options.length, recompute=recompute,
               tile=getattr(options, "tile", 0) or config.inner)  # fmt: skip


def under_cap(options: Namespace, name: str, share: float) -> Row:
    """Return a row with a share of its states as device memory, cut as predicted to be fastest."""
    config = config_named(name, options.length)
    cap = int(share * config.states_nbytes)
    tile = PLACED.get((name, share)) or tile_under(options, config, cap)
    return Row(config=config, batch=options.batch, length=options.length, tile=tile, cap=cap)


def in_place(options: Namespace, name: str, share: float) -> Row:
    """Return a row under a cap of a share of its states, or in memory for no share."""
    return under_cap(options, name, share) if share else in_memory(options, name, recompute=True)


def shared(options: Namespace, name: str, share: float) -> Row:
    """Return the same in two replicas, which two devices share."""
    return replace(in_place(options, name, share), replicas=2)


def deep(options: Namespace, layers: int) -> Row:
    """Return a model of `layers` layers, under the cap of the shallowest."""

    def config(layers: int) -> GPT2Config:
        heads = max(1, options.width // 64)
        return GPT2Config(n_layer=layers, n_head=heads, n_embd=options.width, block_size=options.length, vocab_size=FEW_TOKENS)

    return Row(config=config(layers), batch=options.batch, length=options.length, tile=options.tile, parts=options.parts,
               cap=int(options.share * config(min(options.layers)).states_nbytes))  # fmt: skip


def large(options: Namespace, cap: int, layers: int) -> Row:
    """Return a model of `layers` layers of one width, in tiles whose floor is a tenth of the cap."""
    heads = max(1, options.width // 128)
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=options.width, block_size=options.length, vocab_size=options.vocab)
    tile = options.tile or tile_under(options, config, cap, 0.1)
    return Row(config=config, batch=options.batch, length=options.length, tile=tile, cap=cap)


def largest(options: Namespace, cap: int, host: int) -> int:
    """Return the layers of the largest model whose live tiles all fit in `host` bytes of RAM."""
    return layers_in(host, lambda layers: large(options, cap, layers).needs(engine_name(options), options.precision)[1])


def layers_in(memory: int, needed: Callable[[int], int]) -> int:
    """Return how many layers fit in `memory` bytes, where `needed(layers)` is a + b layers; 0 if not even one."""
    one, two = needed(1), needed(2)
    return max(0, (memory - one) // (two - one) + 1)


def tile_under(options: Namespace, config: GPT2Config, cap: int, share: float = 0.25) -> int:
    """Return the largest tile edge whose floor is at most `share` of a cap in bytes; the smallest edge if none is."""
    edges = [edge for edge in (config.inner, 2 * config.n_embd, config.n_embd) if edge > LADDER[0]]
    grain = grain_of(engine_name(options))
    floors = ((edge, floor_demand(config, edge, grain, options.precision).floor_nbytes) for edge in (*edges, *LADDER))
    return next((edge for edge, floor in floors if floor <= share * cap), LADDER[-1])


def rows(part: str, options: Namespace, device_nbytes: int, host_nbytes: int) -> Iterator[tuple[str, Row]]:
    """Yield (name, row) of all trainings of a part, on a machine with that much free memory."""
    if part == "memory":
        yield from ((f"{name}, recompute {again}", in_memory(options, name, recompute=again))
                    for again in (False, True) for name in options.models)  # fmt: skip
    if part in ("smoke", "replay"):
        yield from ((f"{name}, {share:.0%}", in_place(options, name, share))
                    for name in options.models for share in options.caps)  # fmt: skip
    if part == "two":
        yield from ((f"{name}, {share:.0%}", shared(options, name, share))
                    for name in options.models for share in options.caps)  # fmt: skip
    if part == "capped":
        yield from ((f"{name}, no cap", in_memory(options, name, recompute=True)) for name in options.models)
        yield from ((f"{name}, {share:.0%}", under_cap(options, name, share))
                    for name in options.models for share in options.caps)  # fmt: skip
    if part == "depth":
        yield from ((f"{layers} layers", deep(options, layers)) for layers in options.layers)
    if part == "largest":
        cap = int(options.device_share * device_nbytes)
        yield "the largest", large(options, cap, largest(options, cap, int(options.host_share * host_nbytes)))
