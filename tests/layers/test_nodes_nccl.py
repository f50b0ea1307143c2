"""Trainings on nodes whose tiles travel over NCCL (tests/cuda/nccl.py), beside the same over TCP."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.errors import NodeError
from asynctile.layers import Trainer
from tests.cuda.nccl import SoftCommunicator, SoftNccl
from tests.laws import law
from tests.layers.test_nodes import Found, exchange_of, on_nodes, trained
from tests.layers.test_replicas_trained import BATCHES
from tests.layers.training import assert_same_tensors
from tests.nccl.meetings import met


def on_own_gpu(device: str, *, exchange: Any, **options: Any) -> Engine:
    """Return the engine of a node on the GPU of its number."""
    return Engine(f"{device}:{exchange.node}", exchange=exchange, **options)


@pytest.mark.parametrize("steps", [1, law(3)])
async def test_nodes_have_equal_bits_over_nccl_and_over_tcp(soft_nccl: SoftNccl, steps: int) -> None:
    async def work(engine: Engine, trainer: Trainer) -> Found:
        return await trained(engine, trainer, BATCHES[:steps])

    by_tcp = await on_nodes(2, work, "cuda", make=on_own_gpu)
    by_nccl = await on_nodes(2, work, "cuda", make=on_own_gpu, meeting=met)
    for found, expected in zip(by_nccl, by_tcp, strict=True):
        assert (found.losses, found.norms) == (expected.losses, expected.norms)
        assert (found.sent, found.received) == (expected.sent, expected.received) and found.sent > 0
        assert_same_tensors(found.weights, expected.weights)
        for (name, _, piece), (other, _, wanted) in zip(found.moments, expected.moments, strict=True):
            assert name == other and np.array_equal(piece, wanted)
    assert soft_nccl.launched.total() > 40, "tiles travelled over NCCL"


async def test_a_step_whose_kernels_wait_for_ever_ends_with_the_exchange(soft_nccl: SoftNccl) -> None:
    lost = asyncio.Event()
    loop = asyncio.get_running_loop()

    def loses(communicator: SoftCommunicator, kind: str) -> bool:
        loop.call_soon_threadsafe(lost.set)
        return kind == "send"

    async def work(engine: Engine, trainer: Trainer) -> None:
        soft_nccl.loses = loses
        step = asyncio.ensure_future(trainer.step(*BATCHES[0]))
        await lost.wait()
        exchange_of(engine).abort("for a test")
        await step

    for error in await on_nodes(2, work, "cuda", make=on_own_gpu, meeting=met):
        assert isinstance(error, NodeError) and "gave up: for a test" in str(error)
