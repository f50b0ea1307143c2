"""What the configuration of any model says: `Config`, the axes of a model and the tensors that are cut by them.

GPT-2's is gpt2_config.py; counting tensors and tiles is layout.py, cutting tiling.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from numbers import Integral
from typing import Any, ClassVar, Self

from asynctile.layers.split import Split
from asynctile.storage.input import shown

#: What a config.json says of tokens, each an id or null.
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
#: The largest of a count: ids of tokens, and places in an axis, are int32. Of a number: computing is in float32.
MOST, LARGEST = 2**31 - 1, 3e38
#: Bytes of one parameter: its weight, and the states of it: weight and two moments, float32.
WEIGHT_NBYTES, STATES_NBYTES = 4, 12
#: The axis of the residual stream's columns, which every model has.
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Axis:
    """`times` sections of `size` elements one after another, each cut in the same places, at multiples of `multiple`.

    padded: its last tile may have more elements than its last part, since verbs are told how many count: the vocabulary. Its
    parts are multiples of one, and of a tensor it is the rows.
    """

    size: int
    multiple: int = 1
    times: int = 1
    padded: bool = False

    def split(self, tile: int, pitch: int = 1) -> Split:
        """Its parts with tiles of edge `tile`, padded to multiples of `pitch` if it may be."""
        return Split.even(self.size, tile, self.multiple, pitch if self.padded else 1).repeated(self.times)

    def count(self, tile: int, pitch: int = 1) -> int:
        """How many parts `split` makes, at most, by arithmetic."""
        return self.times * Split.count(self.size, tile, pitch if self.padded else self.multiple)


@dataclass(frozen=True, slots=True)
class Tensor:
    """axes: names of those that it is cut by, rows first. decay, mean, std: as in Parameter."""

    name: str
    axes: tuple[str, ...]
    decay: bool = False
    mean: float = 0.0
    std: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Config(ABC):
    """What every model has; the configuration of a family of models is a frozen dataclass below this one.

    model_type: the family in config.json. prefix: of the names of all tensors; files may leave it out, and so do labels.
    """

    model_type: ClassVar[str]
    prefix: ClassVar[str]

    n_layer: int
    """How many blocks, a count."""
    block_size: int
    """The longest sequence, in tokens."""
    vocab_size: int
    """How many different tokens, a count."""

    def __post_init__(self) -> None:
        for name in ("n_layer", "block_size", "vocab_size"):
            check_count(name, getattr(self, name))

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Axis]:
        """Every axis that a tensor or an activation is cut by: MODEL, and `heads` in multiples of a whole attention head."""

    @property
    @abstractmethod
    def norm_epsilon(self) -> float:
        """Added to the variance in normalisation, without unit."""

    @property
    @abstractmethod
    def has_dropout(self) -> bool:
        """Whether it asks for dropout, which is kept for saving and never applied."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The sizes in words."""

    @abstractmethod
    def first_tensors(self) -> Iterator[Tensor]:
        """The tensors before all blocks, in the order of a forward pass."""

    @abstractmethod
    def block_tensors(self, layer: int) -> Iterator[Tensor]:
        """The tensors of one block; they differ between blocks by their names only."""

    @abstractmethod
    def last_tensors(self) -> Iterator[Tensor]:
        """The tensors behind all blocks."""

    @abstractmethod
    def to_hf(self) -> dict[str, Any]:
        """The content of config.json in the Hugging Face form."""

    @classmethod
    @abstractmethod
    def from_hf(cls, values: Mapping[str, Any]) -> Self:
        """From that content; ValueError on a variant that computes something else."""

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor in the order of a forward pass."""
        blocks = (self.block_tensors(layer) for layer in range(self.n_layer))
        return chain(self.first_tensors(), chain.from_iterable(blocks), self.last_tensors())

    def total(self, parts: Mapping[str, int]) -> int:
        """The sum over all tensors of the product of `parts` over their axes, without a look at each block."""

        def of(tensors: Iterator[Tensor]) -> int:
            return sum(prod(parts[axis] for axis in tensor.axes) for tensor in tensors)

        return of(self.first_tensors()) + self.n_layer * of(self.block_tensors(0)) + of(self.last_tensors())

    def flops_per_token(self, seq_len: int) -> int:
        """Of a step over sequences of so many tokens, as usually counted (PaLM, nanoGPT): 6 for each parameter but those of
        positions, and 12 for each layer, column and position. What is recomputed is none of the model's.
        """
        size = {name: axis.times * axis.size for name, axis in self.axes.items()}
        added = sum(prod(size[axis] for axis in tensor.axes) for tensor in self.first_tensors() if "positions" in tensor.axes)
        return 6 * (self.parameter_count - added) + 12 * self.n_layer * size[MODEL] * seq_len

    @property
    def parameter_count(self) -> int:
        """How many numbers are trained; a tied head counts once."""
        return self.total({name: axis.times * axis.size for name, axis in self.axes.items()})

    @property
    def states_nbytes(self) -> int:
        """Bytes of weights and both moments, float32. Computing in bf16 adds 2 bytes a matrix element for the copies."""
        return STATES_NBYTES * self.parameter_count


def check_count(name: str, value: Any) -> None:
    """ValueError if the value of setting `name` is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"{name} is {shown(value)}, expected a whole number of at least 1 and at most {MOST}")


def check_seed(seed: object) -> int:
    """Return a seed as an int. TypeError for what is no whole number (a bool is none), ValueError below 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed is {shown(seed)}, expected a whole number of at least 0")
    if seed < 0:
        raise ValueError(f"seed is {shown(seed)}, expected a whole number of at least 0")
    return int(seed)
