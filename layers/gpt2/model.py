"""The class that programs know a GPT-2 by."""

from __future__ import annotations

from asynctile.layers.config import Config
from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.model import Model


class GPT2(Model):
    """A GPT-2: a `Model` of this family. Make it with `await GPT2.create(...)` or `await GPT2.from_pretrained(...)`.

    Both raise ValueError for another family. `Model.create` and `Model.from_pretrained` make a GPT2 too, of a GPT-2.
    """

    @classmethod
    def _check_family(cls, config: Config, place: str) -> None:
        if not isinstance(config, GPT2Config):
            raise ValueError(f"{place} is of the family {config.model_type!r}, and {cls.__name__} takes GPT-2 alone; use Model "
                             "instead, which takes every family")
