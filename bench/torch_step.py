"""The same GPT-2 in PyTorch float32, the reference of bench_step.py, bench_small.py and bench_nanogpt.py.

gpu_torch.py uses its blocks. Also trains a model of any family by transformers, and measures PyTorch's GEMM rate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from common import CORES, Side, library

from asynctile.layers import AdamW, GPT2Config
from asynctile.layers.config import Config
from asynctile.ops.cross_entropy import IGNORED

torch = library("torch")
nn, functional = torch.nn, torch.nn.functional
#: Linear layers of a block: their Hugging Face names, which hold the transposed weights, and their names here.
LINEAR = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}


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


    def load(self, weights: Mapping[str, Any]) -> None:
        """Load arrays by their Hugging Face names."""
        found = {}
        for name, value in weights.items():
            own = name.removeprefix("transformer.")
            for there, here in LINEAR.items():
                if f".{there}." in own:
                    own, value = own.replace(there, here), value.T
            found[own] = torch.from_numpy(np.array(value, order="C"))
        self.load_state_dict(found)


def one_step(run: Any, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, targets: torch.Tensor,
             clip_norm: float | None = None) -> float:
    """Make one update and return the loss. run: the model, or its compiled form."""
    optimizer.zero_grad(set_to_none=True)
    loss = run(tokens, targets)
    loss.backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], clip_norm)
    optimizer.step()
    return float(loss.item())


class TorchTraining(Iterator[float]):
    """The loss of each step on `batches`, starting from these weights, with these settings."""

    def __init__(self, config: GPT2Config, weights: Mapping[str, Any], settings: AdamW, batches: Iterable[Any], *,
                 compiled: bool, clip_norm: float | None = None) -> None:
        self.model = Reference(config)
        self.model.load(weights)
        decayed: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for parameter in self.model.parameters():
            decayed[parameter.dim() == 2].append(parameter)
        groups = [{"params": decayed[True], "weight_decay": settings.weight_decay},
                  {"params": decayed[False], "weight_decay": 0.0}]
        self._settings, self._clip_norm, self._batches, self._count = settings, clip_norm, iter(batches), 0
        self._optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
        self._run = torch.compile(self.model) if compiled else self.model

    def __next__(self) -> float:
        batch = next(self._batches)
        self._count += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.rate(self._count)
        return one_step(self._run, self._optimizer, *map(torch.from_numpy, batch), clip_norm=self._clip_norm)

    def evaluate(self, batches: Iterable[Any]) -> float:
        """Return the mean loss over all targets that are not ignored. Updates nothing."""
        total = count = 0.0
        with torch.no_grad():
            for tokens, targets in batches:
                counted = int((targets != IGNORED).sum())
                total += float(self.model(torch.from_numpy(tokens), torch.from_numpy(targets)).item()) * counted
                count += counted
        return total / count


class Theirs(nn.Module):
    """The model of transformers with this configuration: the loss of tokens (B, T) against targets (B, T)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        transformers = library("transformers")
        self.model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config.to_hf()))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def torch_side(
    kind: type[Reference] | type[Theirs], config: Any, tokens: Any, targets: Any, count: int, *, compiled: bool
) -> Side:
    """Return a side for `alternate` that measures seconds per step, over `count` steps. kind: the class of the model."""
    torch.manual_seed(1)
    model = kind(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    inputs = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()

    async def side() -> float:
        assert torch.get_num_threads() == CORES, "torch must have every core"
        start = time.perf_counter()
        for _ in range(count):
            one_step(run, optimizer, *inputs)
        return (time.perf_counter() - start) / count

    return side


def torch_gemm_gflops(n: int = 4096) -> float:
    a, c = torch.randn(n, n), torch.empty(n, n)
    torch.mm(a, a, out=c)
    start = time.perf_counter()
    torch.mm(a, a, out=c)
    return 2e-9 * n**3 / (time.perf_counter() - start)
