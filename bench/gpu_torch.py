"""What PyTorch does on the same GPU: GPT-2 as its users train it, in memory, compiled, and offloaded by FSDP2.

bf16 is autocast over float32 weights; AdamW is fused, attention is scaled_dot_product_attention, matrix products outside bf16
may use TF32, and the vocabulary is padded to a multiple of 64 (nanoGPT: 25% faster). `compiled` compiles each block and the
head once and uses that for all layers, which PyTorch recommends for repeated layers; `whole` compiles the model as one graph.
Offloaded: FSDP2 over one GPU with CPUOffloadPolicy, blocks recomputed in backward, the head's loss in pieces that are
recomputed too, and micro-batches as large as the cap allows.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from bench_step import Block, Reference
from common import batch
from gpu_peaks import Place, free
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from asynctile.layers import GPT2Config

#: Tokens whose logits are alive at once in the offloaded model.
PIECE = 1024


class Model(Reference):
    """The GPT-2 of bench_step.py with a padded vocabulary. pieces: compute the loss piece by piece, each recomputed."""

    def __init__(self, config: GPT2Config, *, pieces: bool = False) -> None:
        super().__init__(dataclasses.replace(config, vocab_size=-(-config.vocab_size // 64) * 64))
        self.pieces = pieces

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.losses(self.ln_f(x).flatten(0, 1), targets.flatten())

    def losses(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of rows x (R, d) against targets (R,)."""
        if not self.pieces:
            return head_loss(x, self.wte.weight, targets) / len(targets)
        sums = [checkpoint(head_loss, part, self.wte.weight, wanted, use_reentrant=False)
                for part, wanted in zip(x.split(PIECE), targets.split(PIECE), strict=True)]  # fmt: skip
        return torch.stack(sums).sum() / len(targets)


def head_loss(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(x, weight), targets, reduction="sum")


class InMemory:
    """Trains a model that fits, eager, or compiled once `compile` was called. precision: "fp32", "tf32" or "bf16"."""

    def __init__(self, place: Place, config: GPT2Config, precision: str) -> None:
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        self.place = place
        self.config = config
        self.bf16 = precision == "bf16"
        with place.where:
            self.model = Model(config)
        self.run: Callable[..., torch.Tensor] = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def compile(self, *, whole: bool = False) -> None:
        """From the next step on, compiled: the model as one graph, or its repeated parts."""
        torch.compiler.reset()
        self.run = torch.compile(self.model) if whole else self.model
        if whole:
            return
        for block in self.model.h:
            assert isinstance(block, Block)
            block.compile()
        self.model.losses = torch.compile(self.model.losses)  # type: ignore[method-assign]

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.place.where.type, torch.bfloat16, enabled=self.bf16):
            loss = self.run(tokens, targets)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def step_s(self, size: int, length: int, count: int, warm: int = 3) -> float:
        """Median seconds of a step on the batch that the engine gets too."""
        inputs = inputs_of(self.place, self.config, size, length)
        return median_s(lambda: self.step(*inputs), count, warm)


class Offloaded:
    """Trains a model whose states are in RAM: FSDP2 with CPU offload. Inside `one_process`."""

    def __init__(self, place: Place, config: GPT2Config, precision: str) -> None:
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        self.place = place
        self.config = config
        with torch.device("meta"):
            model = Model(config, pieces=True)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():  # drawn on the GPU: billions of draws on a CPU take minutes
                drawn = 0.02 * torch.randn(parameter.shape, device=place.where)
                parameter.copy_(drawn if parameter.dim() == 2 else 1 + drawn)
        free(place)
        mesh = init_device_mesh(place.where.type, (1,))
        dtype = torch.bfloat16 if precision == "bf16" else None
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(dtype, torch.float32)}
        if place.on_gpu:
            options["offload_policy"] = CPUOffloadPolicy()
        for index, block in enumerate(model.h):
            model.h[index] = fully_shard(checkpoint_wrapper(block), **options)  # type: ignore[assignment, call-overload]
        self.model = fully_shard(model, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, part: int) -> float:
        """One update from micro-batches of `part` sequences."""
        self.optimizer.zero_grad(set_to_none=True)
        total, parts = 0.0, len(tokens) // part
        for some, wanted in zip(tokens.split(part), targets.split(part), strict=True):
            loss = self.model(some, wanted) / parts
            loss.backward()
            total += float(loss.item())
        self.optimizer.step()
        return total

    def best_step_s(self, size: int, length: int, count: int) -> Iterator[tuple[int, float]]:
        """(sequences in a micro-batch, seconds a step), larger and larger until one raises OutOfMemoryError."""
        inputs = inputs_of(self.place, self.config, size, length)
        part = 1
        while part <= size:
            if size % part == 0:
                yield part, median_s(lambda part=part: self.step(*inputs, part), count, 1)  # type: ignore[misc]
            part *= 4


@contextmanager
def one_process(place: Place) -> Iterator[None]:
    """A process group of one."""
    if place.on_gpu:
        torch.cuda.set_device(place.where)
    backend = "cpu:gloo,cuda:nccl" if place.on_gpu else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def capped(place: Place, nbytes: int) -> Iterator[None]:
    """PyTorch may take at most `nbytes` of the device's memory."""
    if not place.on_gpu:
        yield
        return
    free(place)
    whole = torch.cuda.mem_get_info(place.where)[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / whole), place.where)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, place.where)
        free(place)


def inputs_of(place: Place, config: GPT2Config, size: int, length: int) -> tuple[torch.Tensor, ...]:
    """Tokens and targets (B, T): those that the engine gets too."""
    return tuple(torch.from_numpy(ids).long().to(place.where) for ids in batch(config, size, length))


def median_s(step: Callable[[], float], count: int, warm: int) -> float:
    spent = []
    for index in range(warm + count):
        start = time.perf_counter()
        loss = step()  # reads its loss, so it has ended
        if index >= warm:
            spent.append(time.perf_counter() - start)
    if loss != loss:
        raise ArithmeticError("the loss is NaN, so this is no training")
    return statistics.median(spent)
