"""The record that a family of models supplies: `Architecture`.

Code that is common to all models names no family and asks this record instead. architectures.py lists the families, step.py
defines the order in which their parts are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from asynctile.layers.block import PreNormBlock
from asynctile.layers.config import Config
from asynctile.layers.final import NormedHead
from asynctile.layers.recording import Grid, Recording


class Embedding(Protocol):
    """The layer from tokens to the residual stream (R, C): recorded first in forward and last in backward."""

    def forward(self, recording: Recording) -> Grid:
        """Return the input of the first block."""

    def backward(self, recording: Recording, dx: Grid) -> None:
        """Compute the gradients of the embedding's tensors from `dx`, the gradient of its output."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family of models.

    title: the family's name for people, such as "GPT-2".

    config: the class of its configurations. It gives the sizes, the tensors with their Hugging Face names, how they are cut,
    and the content of config.json.

    embedding, block, head: the objects that record these parts, such as modules.

    repeated: alternative names of a tensor. A file may hold the tensor under such a name, in addition to or instead of its own.
    An entry does not count for a configuration that has a tensor of this name, such as an untied head.

    buffers: endings of the names of tensors without weights that a file may hold for each block, such as masks of old files.

    model: module and name of the class that programs know its models by, as "a.b:Name". It derives from Model, which is the
    default. A name, because its module imports the record.
    """

    title: str
    config: type[Config]
    embedding: Embedding
    block: PreNormBlock
    head: NormedHead
    repeated: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    model: str = "asynctile.layers.model:Model"
