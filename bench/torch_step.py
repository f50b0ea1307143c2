"""The same GPT-2 in PyTorch float32, which bench_step.py measures asynctile against; gpu_torch.py takes
its blocks; and PyTorch's GEMM rate.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from common import CORES, Side
from torch import nn
from torch.nn import functional

from asynctile.layers import GPT2Config


class Block(nn.Module):
    """A block of the reference, as a PyTorch user would write it."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        d = config.n_embd
        self.n_head = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.attn_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.mlp_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, d = x.shape
        # (B, T, d) -> (B, nh, T, hs)
        q, k, v = (
            part.view(size, length, self.n_head, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(d, dim=2))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(out.transpose(1, 2).reshape(size, length, d))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Reference(nn.Module):
    """GPT-2 with a tied head: the loss of tokens (B, T) against targets (B, T)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def torch_side(config: GPT2Config, tokens: Any, targets: Any, count: int, *, compiled: bool) -> Side:
    """A side for `alternate`: seconds a step, over `count` steps."""
    torch.manual_seed(1)
    model = Reference(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    inputs = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()

    async def side() -> float:
        assert torch.get_num_threads() == CORES, "torch must have every core"
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = run(*inputs)
            loss.backward()
            optimizer.step()
            loss.item()
        return (time.perf_counter() - start) / count

    return side


def torch_gemm_gflops(n: int = 4096) -> float:
    a, c = torch.randn(n, n), torch.empty(n, n)
    torch.mm(a, a, out=c)
    start = time.perf_counter()
    torch.mm(a, a, out=c)
    return 2e-9 * n**3 / (time.perf_counter() - start)
