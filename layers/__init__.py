"""What the tiles mean: the layers of a GPT-2, the optimizer, the trainer, the data. Imported as `asynctile.layers`."""

if __name__ != "asynctile.layers":
    raise ImportError(f"this folder was imported as {__name__!r}, which would make a second copy of every class in it; "
                      "write `import asynctile.layers` instead")

from asynctile.layers.config import GPT2Config
from asynctile.layers.gpt2 import GPT2
from asynctile.layers.optimizer import AdamW
from asynctile.layers.report import StepReport
from asynctile.layers.trainer import Trainer

__all__ = ["GPT2", "AdamW", "GPT2Config", "StepReport", "Trainer"]
