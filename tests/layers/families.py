"""Tiny models of the families beside GPT-2, and their arithmetic in float64, written independently with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.llama.config import LlamaConfig
from asynctile.layers.llama.rotary_config import RotaryConfig
from asynctile.layers.mistral.config import MistralConfig
from asynctile.layers.qwen2.config import Qwen2Config
from asynctile.layers.qwen3.config import Qwen3Config
from tests.laws import law
from tests.layers.shapes import Shape

Array = NDArray[Any]
Weights = Mapping[str, Array]

SCALING = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip
_COMMON: dict[str, Any] = {"block_size": 50, "vocab_size": 53, "hidden_size": 40, "intermediate_size": 52}
#: 2, 4, 8 and 3 query heads share a key head. Sequences are cut, groups of heads are uneven or wider than a tile.
CONFIGS: dict[str, RotaryConfig] = {
    "llama": LlamaConfig(**_COMMON, n_layer=2, num_attention_heads=10, num_key_value_heads=5, attention_bias=True,
                         mlp_bias=True, rope_scaling=SCALING),
    "mistral": MistralConfig(**_COMMON, n_layer=1, num_attention_heads=4, num_key_value_heads=1),
    "qwen2": Qwen2Config(**_COMMON, n_layer=1, num_attention_heads=8, num_key_value_heads=1, head_dim=4,
                         tie_word_embeddings=True),
    "qwen3": Qwen3Config(**_COMMON, n_layer=2, num_attention_heads=6, num_key_value_heads=2, head_dim=6, attention_bias=True),
}  # fmt: skip
FAMILIES = {name: Shape(config, 22, 2, 41, micro_batches=2) for name, config in CONFIGS.items()}
#: Their names as cases: the laws have no verb and no tensor that the other two do not have.
NAMES = ["llama", "qwen3", law("mistral"), law("qwen2")]


def logits_of(config: RotaryConfig, weights: Weights, tokens: Array) -> Array:
    """Return logits (B, T, V) of tokens (B, T). weights: float64, by Hugging Face name."""
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.n_layer):
        prefix = f"model.layers.{layer}"
        x = x + _attention(config, weights, f"{prefix}.self_attn", _rms(config, x, weights[f"{prefix}.input_layernorm.weight"]))
        x = x + _mlp(weights, f"{prefix}.mlp", _rms(config, x, weights[f"{prefix}.post_attention_layernorm.weight"]))
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return _rms(config, x, weights["model.norm.weight"]) @ weights[head].T


def loss_of(config: RotaryConfig, weights: Weights, tokens: Array, targets: Array) -> float:
    """Return the mean cross-entropy over the targets that are not -100."""
    logits = logits_of(config, weights, tokens)
    logits = logits - logits.max(-1, keepdims=True)
    counted = targets >= 0
    of_targets = np.take_along_axis(logits, np.where(counted, targets, 0)[..., None], -1)[..., 0]
    return float((np.log(np.exp(logits).sum(-1)) - of_targets)[counted].mean())


def _rms(config: RotaryConfig, x: Array, gain: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * gain


def _linear(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.float64(0))


def _mlp(weights: Weights, name: str, x: Array) -> Array:
    gate = _linear(weights, f"{name}.gate_proj", x)
    return _linear(weights, f"{name}.down_proj", gate / (1 + np.exp(-gate)) * _linear(weights, f"{name}.up_proj", x))


def _attention(config: RotaryConfig, weights: Weights, name: str, x: Array) -> Array:
    batch, length, _ = x.shape

    def heads(letter: str) -> Array:
        found = _linear(weights, f"{name}.{letter}_proj", x).reshape(batch, length, -1, config.head_size)
        if f"{name}.{letter}_norm.weight" in weights:
            found = _rms(config, found, weights[f"{name}.{letter}_norm.weight"])
        return found.transpose(0, 2, 1, 3)

    shared = config.num_attention_heads // config.key_heads
    q, k, v = _rotated(config, heads("q")), _rotated(config, heads("k")), heads("v")
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(config.head_size)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    out = shares / shares.sum(-1, keepdims=True) @ v
    return _linear(weights, f"{name}.o_proj", out.transpose(0, 2, 1, 3).reshape(batch, length, -1))


def _rotated(config: RotaryConfig, x: Array) -> Array:
    half = config.head_size // 2
    frequencies = config.rope_theta ** -(np.arange(half) / half)
    if config.rope_scaling is not None:
        frequencies = np.array([_scaled(config.rope_scaling, frequency) for frequency in frequencies])
    angles = np.arange(x.shape[2])[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _scaled(scaling: Mapping[str, Any], frequency: float) -> float:
    """Return a frequency as LLaMA 3.1 scales it."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
    smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
