"""The part of a model that is trained: `Tuning`. Pure.

A model is trained whole, or its adapters alone, in both cases without the tensors that patterns freeze. A frozen tensor has no
moments and no gradient. lora.py defines adapters, parameters.py the tiles of both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from math import prod

from asynctile.layers.config import Config, Tensor, lengths_of
from asynctile.layers.lora import PREFIX, RANK, LoRA, adapted_by, checked_names, layer_of, title_of
from asynctile.storage.input import shown


@dataclass(frozen=True, slots=True)
class Tuning:
    """The trained part of a model.

    lora: the adapters, which are then trained alone; None: there are none. freeze: patterns, as in the module fnmatch, of the
    names of further tensors that are not trained, with or without the family's prefix.
    """

    lora: LoRA | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "freeze", checked_freeze(self.freeze))

    def check(self, config: Config) -> None:
        """Raise ValueError if a target names no layer, a pattern no tensor, or if nothing is left to train."""
        found = [tensor.name for tensor in self.tensors(config)]
        for pattern in self.freeze:
            if not any(_matches(pattern, config, name) for name in found):
                raise ValueError(f"freeze has {shown(pattern)}, which matches no tensor of a {config.model_type}; its tensors "
                                 f"have names such as {found[0]}")
        if not any(self.trains(config, name) for name in found):
            raise ValueError(f"freeze is {shown(self.freeze)}, which leaves nothing to train; leave out a pattern")

    def check_stored(self, config: Config, stored: Collection[str], name: str) -> None:
        """Raise ValueError if a trained tensor is among `stored`, those in bf16. name: of the model, for the message."""
        found = (tensor.name for tensor in config.tensors() if tensor.name in stored)
        trained = next((tensor for tensor in found if self.trains(config, tensor)), None)
        if trained is not None:
            raise ValueError(f"{name} keeps {trained} in bf16 as its file has it, which no update can change; train adapters "
                             "alone, or keep its weights in float32 (weights='float32')")

    def tensors(self, config: Config) -> Iterator[Tensor]:
        """Yield the tensors of the model, then those of its adapters."""
        return chain(config.tensors(), () if self.lora is None else self.lora.tensors(config))

    def trains(self, config: Config, name: str) -> bool:
        """Return whether the tensor of this name is trained."""
        if self.lora is not None and not name.startswith(PREFIX):
            return False
        return not any(_matches(pattern, config, name) for pattern in self.freeze)

    def counts(self, config: Config) -> tuple[int, int]:
        """Return how many numbers are trained, and how many there are with those of the adapters."""
        found = [(name, prod(shape)) for name, shape in self.shapes(config)]
        return sum(count for name, count in found if self.trains(config, name)), sum(count for _, count in found)

    def flops_per_token(self, config: Config, seq_len: int) -> int:
        """Return the floating-point operations for each token of a training step on sequences of `seq_len` tokens.

        For a model that is trained whole they are those of `Config.flops_per_token`: 2 for each parameter and pass, which are
        forward, the gradient of the inputs, and that of the parameter. A frozen tensor lacks the third, blocks below the lowest
        trained one lack the second as well. Attention takes 4 forward and 8 backward for each column of queries and position.
        """
        lowest, head = self.lowest_block(config), config.prefix + config.head_tensor
        looked_up = {tensor.name for tensor in config.first_tensors()} - {head}
        below = {tensor.name for layer in range(lowest) for tensor in config.block_tensors(layer)}
        found = 0
        for name, shape in self.shapes(config):
            if name not in looked_up:
                found += 2 * prod(shape) * (1 + (adapted_by(name) not in below) + self.trains(config, name))
        columns = lengths_of(config)["heads"]
        return found + columns * seq_len * (4 * config.n_layer + 8 * (config.n_layer - lowest))

    def lowest_block(self, config: Config) -> int:
        """Return the first block that backward visits: 0 if an embedding trains, n_layer if only the end of the model does."""
        trained = {adapted_by(tensor.name) for tensor in self.tensors(config) if self.trains(config, tensor.name)}

        def trains(tensors: Iterable[Tensor]) -> bool:
            return any(tensor.name in trained for tensor in tensors)

        blocks = range(config.n_layer)
        return 0 if trains(config.first_tensors()) else next(
            (layer for layer in blocks if trains(config.block_tensors(layer))), config.n_layer)

    def shapes(self, config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of every tensor, as `tensors`."""
        sizes = lengths_of(config)
        if self.lora is not None:
            sizes[RANK] = self.lora.rank
        return ((tensor.name, tuple(sizes[axis] for axis in tensor.axes)) for tensor in self.tensors(config))

    def of_one_block(self, config: Config) -> Tuning:
        """Return the tuning of the model of one block that stands for every block of a model of this configuration.

        Its block trains a tensor, or has an adapter, if any block does.
        """
        if self == WHOLE:
            return self
        one, lora = replace(config, n_layer=1), self.lora
        twins = list(zip(*(config.block_tensors(layer) for layer in range(config.n_layer)), strict=True))
        if lora is not None:
            chosen = {tensor.name for tensor in lora.layers(config)}
            found = (layer_of(one, same[0]) for same in twins if any(tensor.name in chosen for tensor in same))
            lora = replace(lora, targets=tuple(found), seed=0)
        by_name = {same[0].name: [tensor.name for tensor in same] for same in twins}
        frozen = (tensor.name for tensor in Tuning(lora).tensors(one) if not self._trains_any(config, tensor.name, by_name))
        return Tuning(lora, tuple(frozen) if self.freeze else ())

    def _trains_any(self, config: Config, name: str, twins: dict[str, list[str]]) -> bool:
        """Return whether a tensor of the one-block model is trained in any block.

        twins: the names of a block's tensors in all blocks, by those in the first.
        """
        for first, same in twins.items():
            stem = first.removesuffix(".weight")
            if name == first or name.startswith(f"{PREFIX}{stem}."):
                return any(self.trains(config, name.replace(stem, twin.removesuffix(".weight"))) for twin in same)
        return self.trains(config, name)


def checked_freeze(freeze: object) -> tuple[str, ...]:
    """Return patterns of tensor names as a tuple; ValueError for anything else."""
    return checked_names("freeze", freeze, "tensors, such as ('wte*', '*.bias')")


def _matches(pattern: str, config: Config, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(title_of(config, name), pattern)


#: A model that is trained whole.
WHOLE = Tuning()
