"""Trainers to save, and comparisons of them and their checkpoints. For test_saving.py and test_checkpoint.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asynctile import Engine
from asynctile.layers import Trainer
from tests.layers.training import NARROW, OPTIMIZER, batches_of, lively

DEVICES = {"cpu": {"device": "cpu"}, "emulated": {"device": "emulated", "device_memory": NARROW.config.states_nbytes // 6}}
BATCHES = batches_of(NARROW, 5)
FILES = [
    "checksums.json", "config.json", "generation_config.json", "model.safetensors", "optimizer.safetensors", "trainer.json",
]  # fmt: skip


async def trainer_on(engine: Engine, steps: int = 0, **more: Any) -> Trainer:
    trainer = Trainer(await lively(engine, NARROW), OPTIMIZER, **({"micro_batches": NARROW.micro_batches} | more))
    for batch in BATCHES[:steps]:
        await trainer.step(*batch)
    return trainer


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
