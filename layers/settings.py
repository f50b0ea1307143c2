"""The settings of a Trainer, and the state of a training, as trainer.py makes them and checkpoint.py stores them.

optimizer.py has the optimizer's own settings. Where updates run changes no result and is not stored: update_placement.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from asynctile.layers.activations import AUTO, check_recompute
from asynctile.layers.config import check_count
from asynctile.layers.optimizer import AdamW
from asynctile.layers.rows import check_replicas
from asynctile.storage.input import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a training apart from data and optimizer, as documented by Trainer. ValueError for other values."""

    clip_norm: float | None = None
    micro_batches: int = 1
    replicas: int = 1
    recompute: bool | str = AUTO

    def __post_init__(self) -> None:
        clip_norm = self.clip_norm
        if clip_norm is not None and not (isinstance(clip_norm, int | float) and 0 < clip_norm <= math.inf):
            raise ValueError(f"clip_norm is {shown(clip_norm)}, expected a number above 0, or None for no clipping")
        check_count("micro_batches", self.micro_batches)
        check_replicas(self.replicas)
        check_recompute(self.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The state that a checkpoint keeps besides weights and moments.

    settings, optimizer: the trainer's. step_count: updates of the model. skipped_count: steps that the trainer skipped.
    data_state: the caller's, a dict that fits into JSON.
    """

    settings: Settings
    optimizer: AdamW
    step_count: int
    skipped_count: int
    data_state: dict[str, Any]
