"""The shape of a GPT-2: `GPT2Config`, its checks, tensors, standard sizes, and its config.json in the Hugging Face form.

architectures.py lists the layers that compute with them, config.py defines what every configuration has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from asynctile.layers.config import MODEL, MOST, Axis, Config, Tensor, check_count, check_positive
from asynctile.layers.guesses import answering
from asynctile.layers.special_ids import check_special, special_to_hf, special_within
from asynctile.storage.counts import counted
from asynctile.storage.input import shown

#: (n_layer, n_head, n_embd) of the published models. Their other settings are the defaults.
STANDARD = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
#: The token that begins and ends a text in the vocabulary of the published models.
END_OF_TEXT = 50256
#: Dropout is never applied here. The values of a loaded model are kept so that a save writes them back.
PDROPS = ("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout")
#: Dropout of a head that language models do not have.
_UNUSED = "summary_first_dropout"
#: Settings that change the arithmetic, with the only value that is implemented here.
ONLY: dict[str, Any] = {
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


@answering
@dataclass(frozen=True, kw_only=True)
class GPT2Config(Config):
    """The shape of a GPT-2 with tied head, tanh-GELU and learned positions. The defaults are those of GPT-2 small.

    ValueError or TypeError for a setting out of range.
    """

    model_type: ClassVar[str] = "gpt2"
    prefix: ClassVar[str] = "transformer."
    lora_targets: ClassVar[tuple[str, ...]] = ("c_attn",)

    n_layer: int = 12
    """Number of blocks."""
    n_head: int = 12
    """Number of attention heads in a block; divides n_embd."""
    n_embd: int = 768
    """Width of the residual stream, in columns."""
    block_size: int = 1024
    """Length of the longest sequence, in tokens."""
    vocab_size: int = 50257
    """Number of different tokens."""
    layer_norm_epsilon: float = 1e-5
    """Added to the variance in layer normalization, without unit."""
    initializer_range: float = 0.02
    """Standard deviation of new weights, without unit."""
    n_inner: int | None = None
    """Width of the MLP, in columns; None: 4 n_embd."""
    bos_token_id: int | None = None
    """Id of the token that begins a text; None if there is none. For programs that generate: no arithmetic uses it."""
    eos_token_id: int | tuple[int, ...] | None = None
    """Id of the token that ends a text, or several ids; None if there is none. No arithmetic uses it."""
    pad_token_id: int | None = None
    """Id of the token that pads a batch; None if there is none. No arithmetic uses it."""
    pdrops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Dropout probabilities of a loaded config.json, kept for saving and never applied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_head", "n_embd"):
            check_count(name, getattr(self, name), most=MOST)
        if self.n_inner is not None:
            check_count("n_inner", self.n_inner, most=MOST)
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} is not divisible by n_head {self.n_head}; "
                             "choose an n_head that divides n_embd")
        check_special(self)
        for name in ("layer_norm_epsilon", "initializer_range"):
            check_positive(self, name)
        if not isinstance(self.pdrops, Mapping):
            raise TypeError(f"pdrops is {shown(self.pdrops)}, expected dropout probabilities by name, such as {{}}")
        for name, value in self.pdrops.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"{name} is {shown(value)}, expected a probability from 0 to 1")

    @classmethod
    def named(cls, name: str, **changes: Any) -> GPT2Config:
        """Return a published size: "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl". changes: other settings.

        ValueError for another name.
        """
        if not isinstance(name, str) or name not in STANDARD:
            raise ValueError(f"there is no standard model {shown(name)}; choose one of {', '.join(STANDARD)}")
        n_layer, n_head, n_embd = STANDARD[name]
        return cls(**{"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, **_published_tokens(changes), **changes})

    @property
    def head_size(self) -> int:
        """Width of one attention head, in columns."""
        return self.n_embd // self.n_head

    @property
    def inner(self) -> int:
        """Width of the MLP, in columns."""
        return self.n_inner or 4 * self.n_embd

    @property
    def axes(self) -> Mapping[str, Axis]:
        """The axes that cut tensors and activations, by name.

        model: n_embd columns. heads, key_heads: the same columns in groups of whole heads. sections: q, k and v one after
        another, each cut like `heads`. hidden: columns of the MLP. vocab, positions: rows of wte and wpe.
        """
        heads = Axis(self.n_embd, self.head_size)
        return {
            MODEL: Axis(self.n_embd), "heads": heads, "key_heads": heads, "sections": replace(heads, times=3),
            "hidden": Axis(self.inner), "vocab": Axis(self.vocab_size, padded=True), "positions": Axis(self.block_size),
        }

    @property
    def head_tensor(self) -> str:
        """The name of wte: the head is tied."""
        return "wte.weight"

    @property
    def norm_epsilon(self) -> float:
        """The value of layer_norm_epsilon."""
        return self.layer_norm_epsilon

    @property
    def has_dropout(self) -> bool:
        """Whether one of `pdrops` that language models use is above 0."""
        return any(value for name, value in self.pdrops.items() if name != _UNUSED)

    @property
    def summary(self) -> str:
        """The sizes in words."""
        layers, heads = counted(self.n_layer, "layer"), counted(self.n_head, "head")
        return f"{layers}, {heads}, width {self.n_embd}, vocabulary {self.vocab_size}"

    def first_tensors(self) -> Iterator[Tensor]:
        """Yield the embeddings. wte is also the head."""
        yield Tensor(f"{self.prefix}wte.weight", ("vocab", MODEL), decay=True, std=self.initializer_range)
        yield Tensor(f"{self.prefix}wpe.weight", ("positions", MODEL), decay=True, std=self.initializer_range)

    def block_tensors(self, layer: int) -> Iterator[Tensor]:
        """Yield the tensors of one block."""
        std = self.initializer_range
        # Each block adds two projections to the residual stream. This factor keeps the variance of the sum, as in GPT-2.
        projection = std / math.sqrt(2 * self.n_layer)
        prefix = f"{self.prefix}h.{layer}"
        yield from _layernorm(f"{prefix}.ln_1")
        yield from _linear(f"{prefix}.attn.c_attn", MODEL, "sections", std)
        yield from _linear(f"{prefix}.attn.c_proj", "heads", MODEL, projection)
        yield from _layernorm(f"{prefix}.ln_2")
        yield from _linear(f"{prefix}.mlp.c_fc", MODEL, "hidden", std)
        yield from _linear(f"{prefix}.mlp.c_proj", "hidden", MODEL, projection)

    def last_tensors(self) -> Iterator[Tensor]:
        """Yield the last layer norm."""
        yield from _layernorm(f"{self.prefix}ln_f")

    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json of the Hugging Face GPT-2."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": self.model_type,
            "n_layer": self.n_layer,
            "n_head": self.n_head,
            "n_embd": self.n_embd,
            "n_inner": self.n_inner,
            "n_positions": self.block_size,
            "n_ctx": self.block_size,
            "vocab_size": self.vocab_size,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            **special_to_hf(self),
            **ONLY,
            "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, **self.pdrops,
        }

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> GPT2Config:
        """Return the configuration with the content of a Hugging Face config.json.

        ValueError if it is not a GPT-2's, or for a variant with other arithmetic.
        """
        own = {item.name for item in fields(cls)} - {"pdrops", "block_size"}
        if not values.keys() & {"model_type", "n_positions", "n_ctx", *own}:
            raise ValueError("config.json does not describe a GPT-2: it has neither model_type nor n_layer, n_embd or "
                             "another size; name a model's config.json")
        kind = values.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(f"config.json says model_type {shown(kind)}, expected {cls.model_type!r}")
        for name, expected in ONLY.items():
            found = values.get(name, expected)
            if found != expected:
                raise ValueError(f"config.json says {name} {shown(found)}; only {expected!r} is supported, "
                                 "load a model without this variant")
        # Hugging Face's GPT2Config calls the limit n_positions, and called it n_ctx earlier.
        renamed = {"block_size": values.get("n_positions", values.get("n_ctx"))}
        # If config.json does not mention these tokens, readers use those of the published models.
        values = {**_published_tokens(values), **values}
        given = {name: values[name] for name in own if name in values}
        given |= {name: value for name, value in renamed.items() if value is not None}
        return special_within(cls(**given, pdrops={name: values[name] for name in PDROPS if name in values}))


def _published_tokens(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the published models' tokens that begin and end a text, if the vocabulary is large enough to have them."""
    size = values.get("vocab_size", GPT2Config.vocab_size)
    return {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT} if isinstance(size, int) and size > END_OF_TEXT else {}


def _linear(name: str, rows: str, columns: str, std: float) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), decay=True, std=std)
    yield Tensor(f"{name}.bias", (columns,))


def _layernorm(name: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (MODEL,), mean=1.0)
    yield Tensor(f"{name}.bias", (MODEL,))
