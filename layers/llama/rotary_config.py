"""The part of a configuration that LLaMA, Mistral and Qwen share: `RotaryConfig`.

Each family derives its own, with the settings that only it has. scaling.py reads rotary positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from asynctile.layers.config import MODEL, MOST, Axis, Config, Tensor, check_count, check_positive
from asynctile.layers.llama.scaling import checked_scaling, rope_from_hf, rotation_of
from asynctile.layers.special_ids import check_special, special_to_hf, special_within
from asynctile.ops.rope import Rotation
from asynctile.storage.counts import counted
from asynctile.storage.input import shown

#: The shared settings under the names that config.json has for them.
RENAMED = {"n_layer": "num_hidden_layers", "block_size": "max_position_embeddings"}
#: The sliding window of a config.json that does not mention one, in tokens.
WINDOW = 4096


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(Config):
    """The shape of a model with RMSNorm, rotary positions, grouped keys and a gated MLP, by default as in transformers.

    class_name: of the model in transformers. only: settings that change the arithmetic, each with the only value that is
    implemented. published: settings of a config.json that does not mention them. ValueError for a setting out of range.
    """

    prefix: ClassVar[str] = "model."
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    class_name: ClassVar[str]
    only: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu"}
    published: ClassVar[Mapping[str, Any]] = {}

    n_layer: int = 32
    """Number of blocks."""
    block_size: int = 2048
    """Length of the longest sequence, in tokens."""
    vocab_size: int = 32000
    """Number of different tokens."""
    hidden_size: int = 4096
    """Width of the residual stream, in columns."""
    intermediate_size: int = 11008
    """Width of the MLP, in columns."""
    num_attention_heads: int = 32
    """Number of query heads in a block."""
    num_key_value_heads: int | None = None
    """Number of heads of keys and values; divides num_attention_heads; None: as many."""
    head_dim: int | None = None
    """Width of one attention head, in columns, an even number; None: hidden_size / num_attention_heads."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square in normalization, without unit."""
    rope_theta: float = 10000.0
    """Base of the rotary positions, without unit."""
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    """Scaling of the rotary positions as config.json has it, of rope_type "llama3"; None: none."""
    tie_word_embeddings: bool = False
    """Whether the head multiplies with the embedding of tokens."""
    initializer_range: float = 0.02
    """Standard deviation of new weights, without unit."""
    attention_dropout: float = 0.0
    """Dropout probability of a loaded config.json, kept for saving and never applied."""
    bos_token_id: int | None = None
    """Id of the token that begins a text; None if there is none. No arithmetic uses it."""
    eos_token_id: int | tuple[int, ...] | None = None
    """Id of the token that ends a text, or several ids; None if there is none. No arithmetic uses it."""
    pad_token_id: int | None = None
    """Id of the token that pads a batch; None if there is none. No arithmetic uses it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
            check_count(name, getattr(self, name), most=MOST)
        self._complete_heads()
        for name in ("rms_norm_eps", "rope_theta", "initializer_range"):
            check_positive(self, name)
        for item in fields(self):
            if item.type == "bool" and not isinstance(getattr(self, item.name), bool):
                raise ValueError(f"{item.name} is {shown(getattr(self, item.name))}, expected True or False")
        dropout = self.attention_dropout
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise ValueError(f"attention_dropout is {shown(dropout)}, expected a probability from 0 to 1")
        object.__setattr__(self, "rope_scaling", checked_scaling(self.rope_scaling))
        check_special(self)

    def _complete_heads(self) -> None:
        """Check the sizes of heads, and set those that follow from others."""
        heads = self.num_attention_heads
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", heads)
        keys = check_count("num_key_value_heads", self.key_heads, most=MOST)
        if heads % keys:
            raise ValueError(f"num_attention_heads {heads} is not divisible by num_key_value_heads {keys}; choose a number of "
                             "key heads that divides the query heads")
        if self.head_dim is None:
            if self.hidden_size % heads:
                raise ValueError(f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {heads}; choose "
                                 "heads that divide it, or give head_dim")
            object.__setattr__(self, "head_dim", self.hidden_size // heads)
        if check_count("head_dim", self.head_size, most=MOST) % 2:
            raise ValueError(f"head_dim is {self.head_dim}, expected an even number: positions rotate pairs of columns")

    @property
    def head_size(self) -> int:
        """Width of one attention head, in columns."""
        assert self.head_dim is not None, "set when the configuration was made"
        return self.head_dim

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        assert self.num_key_value_heads is not None, "set when the configuration was made"
        return self.num_key_value_heads

    @property
    def rotation(self) -> Rotation:
        """The numbers that `rope` takes."""
        return rotation_of(self.rope_theta, self.rope_scaling)

    @property
    def axes(self) -> Mapping[str, Axis]:
        """The axes that cut tensors and activations, by name.

        model: hidden_size columns. heads: columns of queries, cut at whole key heads with all query heads that share them.
        key_heads: columns of keys, and of values, in as many parts. hidden: columns of the MLP. vocab: rows of embed_tokens and
        lm_head. head: the columns of one head, never cut.
        """
        size, shared = self.head_size, self.num_attention_heads // self.key_heads
        return {
            MODEL: Axis(self.hidden_size), "heads": Axis(self.num_attention_heads * size, shared * size),
            "key_heads": Axis(self.key_heads * size, size, narrow=shared), "hidden": Axis(self.intermediate_size),
            "vocab": Axis(self.vocab_size, padded=True), "head": Axis(size, size),
        }  # fmt: skip

    @property
    def head_tensor(self) -> str:
        """The name of embed_tokens if the head is tied, else of lm_head."""
        return "embed_tokens.weight" if self.tie_word_embeddings else "lm_head.weight"

    @property
    def norm_epsilon(self) -> float:
        """The value of rms_norm_eps."""
        return self.rms_norm_eps

    @property
    def has_dropout(self) -> bool:
        """Whether attention_dropout is above 0."""
        return self.attention_dropout > 0

    @property
    def summary(self) -> str:
        """The sizes in words."""
        layers, heads = counted(self.n_layer, "layer"), counted(self.num_attention_heads, "head")
        keys = "" if self.key_heads == self.num_attention_heads else f" ({self.key_heads} of keys)"
        return f"{layers}, {heads}{keys}, width {self.hidden_size}, vocabulary {self.vocab_size}"

    def has_bias(self, projection: str) -> bool:
        """Return whether a projection, such as "q_proj" or "up_proj", has a bias."""
        return False

    def attention_norms(self) -> Iterator[str]:
        """Yield the names of the norms inside attention, whose gain all heads share."""
        yield from ()

    def first_tensors(self) -> Iterator[Tensor]:
        """Yield the embedding of tokens, which is also the head if that is tied."""
        yield Tensor(f"{self.prefix}embed_tokens.weight", ("vocab", MODEL), decay=True, std=self.initializer_range)

    def block_tensors(self, layer: int) -> Iterator[Tensor]:
        """Yield the tensors of one block."""
        prefix = f"{self.prefix}layers.{layer}"
        yield Tensor(f"{prefix}.input_layernorm.weight", (MODEL,), mean=1.0)
        for name, rows in (("q", "heads"), ("k", "key_heads"), ("v", "key_heads")):
            yield from self._projection(f"{prefix}.self_attn", f"{name}_proj", rows, MODEL)
        for name in self.attention_norms():
            yield Tensor(f"{prefix}.self_attn.{name}.weight", ("head",), mean=1.0)
        yield from self._projection(f"{prefix}.self_attn", "o_proj", MODEL, "heads")
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", (MODEL,), mean=1.0)
        for name in ("gate_proj", "up_proj"):
            yield from self._projection(f"{prefix}.mlp", name, "hidden", MODEL)
        yield from self._projection(f"{prefix}.mlp", "down_proj", MODEL, "hidden")

    def last_tensors(self) -> Iterator[Tensor]:
        """Yield the last norm, and the head unless it is tied."""
        yield Tensor(f"{self.prefix}norm.weight", (MODEL,), mean=1.0)
        if not self.tie_word_embeddings:
            yield Tensor("lm_head.weight", ("vocab", MODEL), decay=True, std=self.initializer_range)

    def _projection(self, layer: str, name: str, rows: str, columns: str) -> Iterator[Tensor]:
        """Yield the weight of a projection, whose rows are its outputs, and its bias if it has one."""
        yield Tensor(f"{layer}.{name}.weight", (rows, columns), decay=True, std=self.initializer_range, transposed=True)
        if self.has_bias(name):
            yield Tensor(f"{layer}.{name}.bias", (rows,))

    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json of the Hugging Face model of this family."""
        values = {RENAMED.get(item.name, item.name): getattr(self, item.name) for item in fields(self)}
        values["rope_scaling"] = copy(self.rope_scaling)  # transformers adds to the one that it is given
        return {
            "architectures": [self.class_name], "model_type": self.model_type, **values, **special_to_hf(self), **self.only,
        }

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with the content of a Hugging Face config.json.

        ValueError if it is not this family's, or for a variant with other arithmetic.
        """
        kind = values.get("model_type")
        if kind != cls.model_type:
            raise ValueError(f"config.json says model_type {shown(kind)}, expected {cls.model_type!r}")
        values = {**cls.published, **values}
        for name, expected in cls.only.items():
            found = values.get(name, expected)
            if found != expected:
                raise ValueError(f"config.json says {name} {shown(found)}; only {expected!r} is supported, "
                                 "load a model without this variant")
        cls.check_variant(values)
        names = {RENAMED.get(item.name, item.name): item.name for item in fields(cls)}
        given = {own: values[name] for name, own in names.items() if name in values}
        given.pop("rope_scaling", None)
        return special_within(cls(**given | rope_from_hf(values)))

    @classmethod
    def check_variant(cls, values: Mapping[str, Any]) -> None:
        """Raise ValueError for further variants of a config.json that have other arithmetic."""
        if values.get("partial_rotary_factor") not in (None, 1):
            raise ValueError(f"config.json says partial_rotary_factor {shown(values['partial_rotary_factor'])}; only 1 is "
                             "supported, load a model that rotates whole heads")
        kinds = values.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            raise ValueError(f"config.json says layer_types {shown(kinds)}; only 'full_attention' is supported, load a model "
                             "whose layers all see every earlier token")


def check_window(config: type[Config], values: Mapping[str, Any], window: Any) -> None:
    """Raise ValueError for the sliding window of a config.json unless the longest sequence fits into it. None: no window."""
    longest = values.get("max_position_embeddings", config.__dataclass_fields__["block_size"].default)
    if window is not None and not (isinstance(window, int) and isinstance(longest, int) and window >= longest):
        raise ValueError(f"config.json says sliding_window {shown(window)} with max_position_embeddings {shown(longest)}; "
                         "sliding windows are not computed, so set max_position_embeddings to at most the window")
