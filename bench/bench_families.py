"""Do LLaMAs stream as well as GPT-2?

    python bench/bench_families.py [--rounds 5] [--cap 0.25] [--models NAME ...] [--length 512] [--write]

Two LLaMAs with random weights on `emulated`: one of the shape of SmolLM2-135M, trained whole in float32, and one of 1.1 billion
parameters (TinyLlama's shape), whose matrices stay in bfloat16 while adapters of rank 16 train. The smaller one trains with
recompute="auto", which keeps activations where it can, and with recompute=True on all sides, as in bench_stream.py. Each trains
with everything on the device, and under a cap of a quarter of its standing tiles: weights, and the moments of what trains. The
link carries the least bytes that any schedule moves under that cap (optimum.py), in the busier direction, in 0.6 of the
resident step. So it follows the machine's speed, and moving more bytes makes no faster link. Sides run in turn. Targets: 0.95
of the resident speed, and equal losses. The cores that compute also make the copies of `emulated`.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import Side, Table, arguments, batch, in_turn, program_of, publish, target
from optimum import least_bytes

from asynctile import Engine
from asynctile.layers import AdamW, LlamaConfig, LoRA, Model, Trainer
from asynctile.layers.model import model_state_of

LINK_SHARE = 0.6
#: The least speed relative to the resident step.
LEAST = 0.95
SMALL, AGAIN, LARGE = "135M", "135M recomputed", "1.1B"
SMOLLM2 = LlamaConfig(n_layer=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3,
                      vocab_size=49152, block_size=2048, rope_theta=100000.0, tie_word_embeddings=True)  # fmt: skip
TINYLLAMA = LlamaConfig(n_layer=22, hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=4,
                        vocab_size=32000, block_size=2048)  # fmt: skip
CONFIGS = {SMALL: SMOLLM2, AGAIN: SMOLLM2, LARGE: TINYLLAMA}
#: Sequences in a batch.
BATCH = {SMALL: 4, AGAIN: 4, LARGE: 1}
ADAPTERS = LoRA(rank=16, alpha=32, targets=("q_proj", "v_proj"))


class Training:
    """One side: a training on an engine of its own, which repeats the same batch. losses: of every step."""

    def __init__(self, trainer: Trainer, inputs: Any) -> None:
        self.trainer = trainer
        self.losses: list[float] = []
        self.report: Any = None
        self._inputs = inputs

    async def seconds(self) -> float:
        """Return the seconds of one step."""
        self.report = await self.trainer.step(*self._inputs)
        self.losses.append(self.report.loss)
        return float(self.report.step_s)


async def trainer_of(stack: AsyncExitStack, name: str, folder: Path, **options: Any) -> Trainer:
    """Open an engine and train the model: whole, or by adapters if it is kept in bfloat16."""
    engine = await stack.enter_async_context(Engine("emulated", **options))
    stored = name == LARGE
    model = await Model.from_pretrained(engine, folder, weights="stored" if stored else "float32")
    recompute = True if name == AGAIN else "auto"
    return Trainer(model, AdamW(lr=1e-4), adapters=ADAPTERS if stored else None, recompute=recompute)


async def measure(name: str, options: Any, root: Path) -> list[tuple[Any, ...]]:
    """Return the rows of one model."""
    config, folder = CONFIGS[name], root / name
    async with Engine("cpu") as engine:
        await (await Model.create(engine, config, seed=1)).save_pretrained(folder, dtype="bfloat16")
    inputs = batch(config, BATCH[name], options.length)
    async with AsyncExitStack() as stack:
        resident = Training(await trainer_of(stack, name, folder), inputs)
        await in_turn({"resident": resident.seconds}, 2)  # the first step makes the moments
        standing = sum(tile.nbytes for tile in model_state_of(resident.trainer.model).standing())
        cap = int(options.cap * standing)
        free = Training(await trainer_of(stack, name, folder, device_memory=cap), inputs)
        await in_turn({"no link limit": free.seconds}, 2)
        least = least_bytes(await program_of(free.trainer, BATCH[name], options.length), cap)
        resident_s = statistics.median((await in_turn({"resident": resident.seconds}, 3))["resident"])
        rate = int(max(least.uploaded_nbytes, least.downloaded_nbytes) / (LINK_SHARE * resident_s))
        streamed = Training(await trainer_of(stack, name, folder, device_memory=cap, link_rate=rate), inputs)
        await in_turn({"streamed": streamed.seconds}, 2)
        trainings = {"resident": resident, "no link limit": free, f"link of {rate / 1e6:.0f} MB/s": streamed}
        sides: dict[str, Side] = {side: training.seconds for side, training in trainings.items()}
        found = await in_turn(sides, options.rounds)
    common = min(len(training.losses) for training in trainings.values())
    assert len({tuple(training.losses[:common]) for training in trainings.values()}) == 1, "the losses differ"
    return [row(name, side, found[side], found["resident"], trainings[side], standing, cap) for side in sides]


def row(name: str, side: str, spent: list[float], resident: list[float], training: Training, standing: int, cap: int) -> Any:
    ratio = statistics.median(base / own for base, own in zip(resident, spent, strict=True))
    report = training.report
    goal = target(ratio, LEAST) if side.startswith("link") else None
    held = standing if side == "resident" else cap
    return (f"{name}, {side}", held / 1e6, statistics.median(spent), ratio, goal, report.stall_s / spent[-1],
            report.uploaded_bytes / 1e6, report.downloaded_bytes / 1e6)  # fmt: skip


async def main() -> None:
    options = arguments(__doc__, rounds=5, cap=0.25, models=(SMALL, AGAIN, LARGE), length=512)
    columns = ("model and side", "tiles on the device, MB", "s a step", "of resident", "target", "stalled", "MB up", "MB down")
    table = Table("a step", columns)
    with TemporaryDirectory(dir=".") as root:
        for name in options.models:
            table.rows += await measure(name, options, Path(root))
    configuration = {
        **{f"LLaMA of {name}": f"{CONFIGS[name].summary}, B {BATCH[name]}, T {options.length}" for name in options.models},
        "cap": f"{options.cap:.0%} of the standing tiles",
        "repeats": f"median of {options.rounds} rounds of one step, sides in turn; ratios: the median of the rounds",
        "losses": "equal in every bit",
    }
    publish("bench_families", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
