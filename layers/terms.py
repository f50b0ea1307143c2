"""The terms of a training: everything in which its nodes must be alike before they step together, in words."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import numpy as np

from asynctile.layers.config import TOKENS
from asynctile.layers.model_state import ModelState
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
        "weights": await _digest(model),
    }
    return {name: str(value) for name, value in found.items()}


async def _digest(model: ModelState) -> str:
    """Return a digest of one tile of each tensor: another seed, file or step changes all of them."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters.values():
        tile = await model.runtime.read(next(iter(parameter.compute.values())))
        digest.update(np.ascontiguousarray(tile).tobytes())
    return digest.hexdigest()
