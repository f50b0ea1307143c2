"""A GPT-2 in PyTorch with the Hugging Face names and layouts, written independently: tests and benchmarks compare with it.

Needs torch (the extra `reference`). Without it the import raises ImportError, so tests ask with pytest.importorskip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from asynctile.layers.gpt2.config import GPT2Config

IGNORED = -100


class Conv1D(nn.Module):
    """x W + b with W stored (in, out)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        # (B, T, d) -> (B, nh, T, hs)
        q, k, v = (
            part.view(batch, length, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(out.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.n_embd, config.inner)
        self.c_proj = Conv1D(config.inner, config.n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class ReferenceGPT2(nn.Module):
    """A GPT-2 from tokens (B, T) to logits (B, T, V), with the loss if targets (B, T) are given; the head is tied to wte."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = (2 * config.n_layer) ** -0.5 if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=config.initializer_range * scale)

    @classmethod
    def from_state(
        cls, config: GPT2Config, state: Mapping[str, NDArray[Any]], dtype: torch.dtype = torch.float32
    ) -> ReferenceGPT2:
        """Build the model from {Hugging Face name: array}."""
        model = cls(config)
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
        return model.to(dtype)

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = self.transformer(tokens) @ self.transformer.wte.weight.T
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def logits(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return logits of shape (B, T, V)."""
        with torch.no_grad():
            return self(_long(tokens))[0].numpy()

    def gradients(self, tokens: NDArray[Any], targets: NDArray[Any]) -> tuple[float, dict[str, NDArray[Any]]]:
        """Return the mean loss and every gradient by name; earlier gradients are dropped."""
        self.zero_grad(set_to_none=True)
        loss = self(_long(tokens), _long(targets))[1]
        loss.backward()
        return loss.item(), {name: _gradient(value) for name, value in self.named_parameters()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of every tensor by name."""
        return {name: value.detach().numpy().copy() for name, value in self.named_parameters()}

    def adamw(
        self, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **options: Any
    ) -> torch.optim.AdamW:
        """Return PyTorch's AdamW with weight decay on matrices only."""
        groups = [
            {"params": [p for p in self.parameters() if p.ndim == 2], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters() if p.ndim != 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, **options)


def _gradient(parameter: nn.Parameter) -> NDArray[Any]:
    assert parameter.grad is not None
    return parameter.grad.numpy().copy()


def _long(tokens: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(tokens.astype(np.int64))
