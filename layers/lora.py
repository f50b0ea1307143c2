"""Low-rank adapters: `LoRA`, their settings, and the tensors that they add to a model. Pure.

The adapter of a linear layer adds (x A^T) scaling B^T to its output: Hu et al., LoRA: Low-Rank Adaptation of Large Language
Models, 2021, without dropout. Names, shapes and initial values are those of PEFT. tuning.py says which tensors are trained,
adapter.py computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain

from asynctile.layers.config import LARGEST, MOST, Config, Tensor, check_count, check_seed, lengths_of
from asynctile.layers.guesses import answering
from asynctile.storage.input import shown

#: The axis between the two matrices of an adapter. It is never cut.
RANK = "rank"
#: The prefix of the names of adapters' tensors.
PREFIX = "base_model.model."
#: The names of the two matrices of a layer's adapter: A (rank, inputs) and B (outputs, rank).
A, B = "lora_A", "lora_B"


@answering
@dataclass(frozen=True, kw_only=True)
class LoRA:
    """The settings of the adapters of a model. ValueError or TypeError for a setting out of range."""

    rank: int = 16
    """Rank of each adapter."""
    alpha: float = 32.0
    """Weight of the adapters: their outputs are scaled by alpha / rank."""
    targets: tuple[str, ...] | None = None
    """The layers that get an adapter, by the last parts of their names, such as ("q_proj", "v_proj"); None: those of PEFT."""
    seed: int = 0
    """Of the initial values of A; B begins with zeros."""

    def __post_init__(self) -> None:
        check_count("rank", self.rank, most=MOST)
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha < LARGEST:
            raise ValueError(f"alpha is {shown(self.alpha)}, expected a number above 0")
        if self.targets is not None:
            object.__setattr__(self, "targets", checked_names("targets", self.targets, "layers, such as ('q_proj', 'v_proj')"))
            if not self.targets:
                raise ValueError("targets is empty, expected names of layers, such as ('q_proj', 'v_proj')")
        object.__setattr__(self, "seed", check_seed(self.seed))

    @property
    def scaling(self) -> float:
        """The factor of the adapters' outputs: alpha / rank."""
        return self.alpha / self.rank

    def layers(self, config: Config) -> tuple[Tensor, ...]:
        """Return the weights of the layers that get an adapter, in the order of a forward pass.

        ValueError if a target names no layer.
        """
        weights = [(layer_of(config, tensor), tensor) for tensor in linear_weights(config)]
        targets = config.lora_targets if self.targets is None else self.targets
        for target in targets:
            if not any(names(target, layer) for layer, _ in weights):
                found = dict.fromkeys(layer.rpartition(".")[2] for layer, _ in weights)
                raise ValueError(f"targets has {shown(target)}, which names no layer of a {config.model_type}; its layers are "
                                 f"{', '.join(found)}")
        return tuple(tensor for layer, tensor in weights if any(names(target, layer) for target in targets))

    def excess(self, config: Config) -> str | None:
        """Return a sentence if the rank is above what the narrowest of the layers can use, and None if it is not.

        Such a rank is no error, in PEFT neither: it costs memory and time.
        """
        lengths = lengths_of(config)
        shapes = {layer_of(config, weight): [lengths[axis] for axis in weight.axes] for weight in self.layers(config)}
        layer, shape = min(shapes.items(), key=lambda item: min(item[1]))
        if self.rank <= min(shape):
            return None
        return (f"adapters of rank {self.rank} are larger than useful: {layer} is {' x '.join(map(str, shape))}, and no change "
                f"of it has a rank above {min(shape)}; choose a rank of at most {min(shape)}")

    def tensors(self, config: Config) -> Iterator[Tensor]:
        """Yield the adapters' tensors: A and B of one layer after another. ValueError as `layers`."""
        lengths = lengths_of(config)
        for weight in self.layers(config):
            outputs, inputs = weight.axes if weight.transposed else reversed(weight.axes)
            layer = f"{PREFIX}{weight.name.removesuffix('.weight')}"
            bound = 1.0 / math.sqrt(lengths[inputs])
            yield Tensor(f"{layer}.{A}.weight", (RANK, inputs), decay=True, bound=bound, transposed=True)
            yield Tensor(f"{layer}.{B}.weight", (outputs, RANK), decay=True, transposed=True)


def linear_weights(config: Config) -> Iterator[Tensor]:
    """Yield the weights of the linear layers of all blocks."""
    blocks = chain.from_iterable(config.block_tensors(layer) for layer in range(config.n_layer))
    return (tensor for tensor in blocks if len(tensor.axes) == 2)


def title_of(config: Config, name: str) -> str:
    """Return a tensor's name without the prefixes of adapters and of the family."""
    return name.removeprefix(PREFIX).removeprefix(config.prefix)


def layer_of(config: Config, weight: Tensor) -> str:
    """Return the title of the layer that has this weight, such as "h.0.attn.c_attn"."""
    return title_of(config, weight.name).removesuffix(".weight")


def adapted_by(name: str) -> str:
    """Return the name of the weight that an adapter's tensor belongs to; the name of another tensor as it is."""
    layer, _, matrix = name.removesuffix(".weight").rpartition(".")
    return f"{layer.removeprefix(PREFIX)}.weight" if matrix in (A, B) else name


def names(target: str, layer: str) -> bool:
    """Return whether a target names a layer: its whole title, or the last parts of it."""
    return layer == target or layer.endswith(f".{target}")


def checked_names(field: str, found: object, what: str) -> tuple[str, ...]:
    """Return a collection of non-empty strings as a tuple; ValueError otherwise. what: their kind, with an example."""
    if isinstance(found, str) or not isinstance(found, Collection):
        raise ValueError(f"{field} is {shown(found)}, expected names of {what}")
    for name in found:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{field} has {shown(name)}, expected names of {what}")
    return tuple(found)
