"""The terms of a training: everything in which its nodes must be alike before they step together, in words."""

from __future__ import annotations

from dataclasses import asdict

from asynctile.layers.config import TOKENS
from asynctile.layers.model_state import ModelState
from asynctile.layers.nodes import Nodes
from asynctile.layers.settings import Settings


async def terms_of(model: ModelState, settings: Settings) -> dict[str, str]:
    """Return the terms by name. Runs on the device's loop, while `model` does not change."""
    runtime = model.runtime
    found = {
        "devices": runtime.devices,
        "arithmetic": "that of GPUs" if runtime.device.name.startswith("cuda") else "that of CPUs",
        "precision": runtime.life.precision,
        **{name: value for name, value in model.config.to_hf().items() if name not in TOKENS},
        "tile": model.tiling.tile,
        "row_tokens": model.tiling.row_tokens,
        "trained part": model.tuning,
        **asdict(settings),
        "step": model.step_count,
        "weights": await Nodes(runtime).digest(model.parameters),
    }
    return {name: str(value) for name, value in found.items()}
