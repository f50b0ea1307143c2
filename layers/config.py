"""The part of a configuration that all models share: `Config`, the axes of a model and the tensors that they cut.

GPT-2's configuration is gpt2/config.py. layout.py counts tensors and tiles, tiling.py cuts them.
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

#: The special tokens in a config.json, each an id or null.
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
#: The largest count (token ids and positions on an axis are int32), and the largest number (arithmetic is float32).
MOST, LARGEST = 2**31 - 1, 3e38
#: Bytes of one parameter, float32: its weight alone, and its states (the weight and two moments).
WEIGHT_NBYTES, STATES_NBYTES = 4, 12
#: The axis of the residual stream's columns. Every model has it.
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: `times` sections of `size` elements one after another, each cut in the same places, at multiples of `multiple`.

    padded: whether the last tile may have more elements than the last part. This is so for the vocabulary, where operations are
    told how many elements count. A padded axis has multiple 1, and it is the rows of a tensor.

    narrow: the axis is cut as one `narrow` times as wide would be, in proportion: keys like the queries that share them.
    """

    size: int
    multiple: int = 1
    times: int = 1
    padded: bool = False
    narrow: int = 1

    def split(self, tile: int, pitch: int = 1) -> Split:
        """Return the parts of the axis with tiles of edge `tile`. The parts of a padded axis are multiples of `pitch`."""
        size, multiple = self.size * self.narrow, self.multiple * self.narrow
        return Split.even(size, tile, multiple, pitch if self.padded else 1).divided(self.narrow).repeated(self.times)

    def count(self, tile: int, pitch: int = 1) -> int:
        """Return an upper bound of how many parts `split` makes, by arithmetic."""
        size, multiple = self.size * self.narrow, self.multiple * self.narrow
        return self.times * Split.count(size, tile, pitch if self.padded else multiple)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model. axes: the names of the axes that cut it, rows first. The rest: as in Parameter."""

    name: str
    axes: tuple[str, ...]
    decay: bool = False
    mean: float = 0.0
    std: float = 0.0
    bound: float = 0.0
    transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Config(ABC):
    """The configuration that every model has. A family's configuration is a frozen dataclass derived from it.

    model_type: the family's name in config.json. prefix: the prefix of all tensor names, which files may omit and labels do.
    lora_targets: the layers that get an adapter unless others are named, as in PEFT (lora.py).
    """

    model_type: ClassVar[str]
    prefix: ClassVar[str]
    lora_targets: ClassVar[tuple[str, ...]]

    n_layer: int
    """Number of blocks."""
    block_size: int
    """Length of the longest sequence, in tokens."""
    vocab_size: int
    """Number of different tokens."""

    def __post_init__(self) -> None:
        for name in ("n_layer", "block_size", "vocab_size"):
            check_count(name, getattr(self, name), most=MOST)

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Axis]:
        """Every axis that cuts a tensor or an activation, by name.

        MODEL is the residual stream's columns. `heads` is the columns of all queries, cut into groups of whole heads.
        `key_heads` is the columns of all keys, and of all values; it has a part for each group.
        """

    @property
    @abstractmethod
    def head_tensor(self) -> str:
        """The matrix (vocabulary, width) of the head, by its name without the prefix; that of the tokens if it is tied."""

    @property
    @abstractmethod
    def head_size(self) -> int:
        """Width of one attention head, in columns."""

    @property
    @abstractmethod
    def norm_epsilon(self) -> float:
        """Added to the variance in normalization, without unit."""

    @property
    @abstractmethod
    def has_dropout(self) -> bool:
        """Whether the configuration asks for dropout. Dropout is kept for saving and never applied."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The sizes in words."""

    @abstractmethod
    def first_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors before all blocks, in the order of a forward pass."""

    @abstractmethod
    def block_tensors(self, layer: int) -> Iterator[Tensor]:
        """Yield the tensors of one block. Those of different blocks differ only in their names."""

    @abstractmethod
    def last_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors after all blocks."""

    @abstractmethod
    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json in the Hugging Face form."""

    @classmethod
    @abstractmethod
    def from_hf(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with the content of a config.json; ValueError for a variant with other arithmetic."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor in the order of a forward pass."""
        blocks = (self.block_tensors(layer) for layer in range(self.n_layer))
        return chain(self.first_tensors(), chain.from_iterable(blocks), self.last_tensors())

    def total(self, parts: Mapping[str, int]) -> int:
        """Return the sum over all tensors of the product of `parts` over their axes, without visiting each block."""

        def of(tensors: Iterator[Tensor]) -> int:
            return sum(prod(parts[axis] for axis in tensor.axes) for tensor in tensors)

        return of(self.first_tensors()) + self.n_layer * of(self.block_tensors(0)) + of(self.last_tensors())

    def flops_per_token(self, seq_len: int) -> int:
        """Return the floating-point operations for each token of a step that trains the whole model on sequences of `seq_len`.

        The usual count (PaLM, nanoGPT): 6 for each parameter that multiplies, plus 12 for each layer, column of queries and
        position. Embeddings are looked up, but a tied one multiplies as the head. Recomputation does not count as work of the
        model.
        """
        size = lengths_of(self)
        head = self.prefix + self.head_tensor
        looked_up = sum(prod(size[axis] for axis in tensor.axes) for tensor in self.first_tensors() if tensor.name != head)
        return 6 * (self.parameter_count - looked_up) + 12 * self.n_layer * size["heads"] * seq_len

    @property
    def parameter_count(self) -> int:
        """Number of trained numbers. A tied head counts once."""
        return self.total(lengths_of(self))

    @property
    def states_nbytes(self) -> int:
        """Bytes of the weights and both moments, float32. Computing in bf16 adds a copy of 2 bytes for each matrix element."""
        return STATES_NBYTES * self.parameter_count


def lengths_of(config: Config) -> dict[str, int]:
    """Return the length of every axis, by its name."""
    return {name: axis.times * axis.size for name, axis in config.axes.items()}


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value` if it is a whole number from `least` to `most`; otherwise raise ValueError. most: None for no limit."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name} is {shown(value)}, expected a whole number of at least {least}{limit}")
    return value


def check_positive(config: Config, name: str) -> None:
    """Raise ValueError if this setting is not a number above 0."""
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise ValueError(f"{name} is {shown(value)}, expected a number above 0, such as "
                         f"{type(config).__dataclass_fields__[name].default}")


def check_seed(seed: object) -> int:
    """Return a seed as an int. TypeError if it is not a whole number (a bool is not), ValueError below 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed is {shown(seed)}, expected a whole number of at least 0")
    if seed < 0:
        raise ValueError(f"seed is {shown(seed)}, expected a whole number of at least 0")
    return int(seed)
