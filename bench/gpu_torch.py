"""PyTorch on the same GPU: GPT-2 as its users train it, in memory, compiled, and offloaded by FSDP2.

bf16 is autocast over float32 weights; AdamW is fused; attention is scaled_dot_product_attention (by PyTorch's choice, or by
cuDNN on request); matrix products outside bf16 may use TF32; the vocabulary is padded to a multiple of 64 (nanoGPT: 25%
faster). `compiled` compiles each block and the head once and uses that for all layers, as PyTorch recommends for repeated
layers. `whole` compiles the model as one graph. Without either the model is eager. Offloaded: FSDP2 over one GPU with
CPUOffloadPolicy, eager, blocks recomputed in backward, the head's loss in recomputed parts too, and the fastest micro-batch
that the cap allows.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from common import batch
from gpu_peaks import Place, free
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch_step import Block, Reference

from asynctile.layers import GPT2Config

#: Tokens whose logits are alive at once in the offloaded model.
PIECE = 1024


class Model(Reference):
    """The GPT-2 of torch_step.py with a padded vocabulary. pieces: compute the loss in parts, each recomputed."""

    def __init__(self, config: GPT2Config, *, pieces: bool = False) -> None:
        super().__init__(dataclasses.replace(config, vocab_size=-(-config.vocab_size // 64) * 64))
        self.pieces = pieces

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.losses(self.ln_f(x).flatten(0, 1), targets.flatten())

    def losses(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of rows x (R, d) against targets (R,)."""
        if not self.pieces:
            return head_loss(x, self.wte.weight, targets) / len(targets)
        sums = [checkpoint(head_loss, part, self.wte.weight, wanted, use_reentrant=False)
                for part, wanted in zip(x.split(PIECE), targets.split(PIECE), strict=True)]  # fmt: skip
        return torch.stack(sums).sum() / len(targets)


def head_loss(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(x, weight), targets, reduction="sum")


def by_cudnn(place: Place) -> AbstractContextManager[None]:
    """Use cuDNN for PyTorch's attention inside the block. Without a GPU the plain attention runs through the same call."""
    manager: AbstractContextManager[None] = sdpa_kernel(SDPBackend.CUDNN_ATTENTION if place.on_gpu else SDPBackend.MATH)
    return manager


class InMemory:
    """A training of a model that fits: eager, or compiled after `compile`. precision: "fp32", "tf32" or "bf16".

    cudnn: whether attention is cuDNN's; set it before `compile`.
    """

    cudnn = False

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
        """Compile for all later steps: the model as one graph, or its repeated parts."""
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
        with by_cudnn(self.place) if self.cudnn else nullcontext():
            with torch.autocast(self.place.where.type, torch.bfloat16, enabled=self.bf16):
                loss = self.run(tokens, targets)
            loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def step_s(self, size: int, length: int, count: int, warm: int = 3) -> float:
        """Return the median seconds of a step on the same batch as the engine's."""
        inputs = inputs_of(self.place, self.config, size, length)
        return median_s(lambda: self.step(*inputs), count, warm)


class Offloaded:
    """A training of a model whose states are in RAM: FSDP2 with CPU offload. Use inside `one_process`."""

    def __init__(self, place: Place, config: GPT2Config, precision: str) -> None:
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        self.place = place
        self.config = config
        with torch.device("meta"):
            model = Model(config, pieces=True)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():  # drawn on the GPU, because billions of draws on a CPU take minutes
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
        """Make one update from micro-batches of `part` sequences."""
        self.optimizer.zero_grad(set_to_none=True)
        total, parts = 0.0, len(tokens) // part
        for some, wanted in zip(tokens.split(part), targets.split(part), strict=True):
            loss = self.model(some, wanted) / parts
            loss.backward()
            total += float(loss.item())
        self.optimizer.step()
        return total

    def trial_s(self, length: int, part: int) -> float:
        """Return the seconds per sequence of one micro-batch of `part` sequences, without an update.

        OutOfMemoryError spoils the model.
        """
        tokens, targets = inputs_of(self.place, self.config, part, length)

        def run() -> float:
            loss = self.model(tokens, targets)
            loss.backward()
            return float(loss.item())

        seconds = median_s(run, 1, 1) / part
        self.optimizer.zero_grad(set_to_none=True)
        return seconds

    def step_s(self, size: int, length: int, part: int, count: int) -> float:
        """Return the median seconds of a step on the same batch as the engine's."""
        inputs = inputs_of(self.place, self.config, size, length)
        return median_s(lambda: self.step(*inputs, part), count, 1)


def micro_batches(size: int) -> Iterator[int]:
    """Yield the micro-batches to try, in sequences and ascending: 1, 4, 16 ... that divide `size`, and `size`."""
    part = 1
    while part < size:
        if size % part == 0:
            yield part
        part *= 4
    yield size


def fastest_micro_batch(
    make: Callable[[], Offloaded], place: Place, size: int, length: int
) -> tuple[Offloaded, int, bool]:
    """Return (a usable model, the micro-batch that is fastest per sequence, whether larger ones run out of memory).

    The micro-batch is 0 if not even one sequence fits.
    """
    side, found = make(), {0: math.inf}
    full = False
    for part in micro_batches(size):
        try:
            found[part] = side.trial_s(length, part)
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            full = True
        if full:  # outside the except block, where the error no longer keeps tensors alive
            del side
            gc.collect()
            free(place)
            side = make()
            break
        print(f"FSDP2, {part} sequences at a time: {found[part]:.3f} s a sequence", flush=True)
    return side, min(found, key=lambda part: found[part]), full


@contextmanager
def one_process(place: Place) -> Iterator[Callable[[], None]]:
    """Yield a function to call before `Offloaded` is made. Its first call makes a process group of one."""

    def join() -> None:
        if dist.is_initialized():
            return
        if place.on_gpu:
            torch.cuda.set_device(place.where)
        backend = "cpu:gloo,cuda:nccl" if place.on_gpu else "gloo"
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())

    try:
        yield join
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def capped(place: Place, nbytes: int) -> Iterator[None]:
    """Limit PyTorch to `nbytes` of the device's memory inside the block."""
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
    """Return tokens and targets (B, T), the same as the engine's."""
    return tuple(torch.from_numpy(ids).long().to(place.where) for ids in batch(config, size, length))


def median_s(step: Callable[[], float], count: int, warm: int) -> float:
    spent = []
    for index in range(warm + count):
        start = time.perf_counter()
        loss = step()  # it reads its loss, so it has ended
        if index >= warm:
            spent.append(time.perf_counter() - start)
    if loss != loss:
        raise ArithmeticError("the loss is NaN, so the training does not work")
    return statistics.median(spent)
