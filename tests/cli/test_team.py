"""How the nodes of a run meet over the network of their options."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from typing import Any

import pytest

from asynctile.cli.follower import follow_run
from asynctile.cli.interrupt import Interrupt
from asynctile.cli.options import Options
from asynctile.cli.team import team_of
from asynctile.cli.train import train
from asynctile.errors import DeviceError, NodeError
from asynctile.nccl import NcclExchange
from asynctile.nodes import meeting
from asynctile.nodes.secret import VARIABLE
from tests.cuda.nccl import SoftNccl
from tests.nodes.meetings import SECRET, free_address, join
from tests.settle import HANG_S


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET.decode())


async def test_nodes_meet_over_nccl_if_their_options_say_so(soft_nccl: SoftNccl) -> None:
    address = free_address()

    async def said(node: int) -> Any:
        options = Options(nodes=2, node=node, join=address, network="nccl", device=f"cuda:{node}")
        async with team_of(options, bool, Interrupt()) as team:
            assert isinstance(team.exchange, NcclExchange)
            return await (team.hear(stops=True) if node else team.tell("step"))

    assert await asyncio.gather(said(0), said(1)) == [True, {"do": "step"}]
    assert {communicator.device for communicator in soft_nccl.made} == {0, 1}


@pytest.mark.parametrize(("given", "words"), [
    ({"node": 0, "spill_limit": 5}, "node 0 gave up: --spill-limit without --spill"),
    ({"node": 1, "lr": 0.1}, "node 1 gave up: --lr is for node 0"),
])  # fmt: skip
async def test_the_others_are_told_at_once_that_a_node_refuses_its_options(
    given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "TELL_S", HANG_S)
    address, node = free_address(), given["node"]
    other = asyncio.create_task(asyncio.to_thread(join, 1 - node, 2, address))
    given = {**given, "nodes": 2, "join": address}
    with pytest.raises(ValueError, match=words.partition(": ")[2]):
        await (follow_run(given, Interrupt()) if node else train(given, Interrupt()))
    with pytest.raises(NodeError, match=words):
        await other


async def test_a_node_without_nccl_is_told_what_to_install_and_the_others_too(
    monkeypatch: pytest.MonkeyPatch, soft_gpu: Any
) -> None:
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.open_driver", soft_gpu.open)
    monkeypatch.setattr(meeting, "TELL_S", HANG_S)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    options = Options(nodes=2, join=free_address(), network="nccl", device="cuda:0")
    other = asyncio.create_task(asyncio.to_thread(join, 1, 2, options.join))
    with pytest.raises(DeviceError, match=r"NCCL does not load.*'asynctile\[nccl13\]'"):
        async with team_of(options, bool, Interrupt()):
            pass
    with pytest.raises(NodeError, match="node 0 gave up: NCCL does not load"):
        await other


async def test_an_error_of_the_disk_has_the_same_words_on_all_nodes() -> None:
    address = free_address()

    async def part(node: int) -> None:
        async with team_of(Options(nodes=2, node=node, join=address), bool, Interrupt()) as team:
            if node == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/metrics.jsonl")
            await team.hear(stops=False)

    _, other = await asyncio.gather(part(0), part(1), return_exceptions=True)
    assert isinstance(other, NodeError)
    assert "gave up: run/metrics.jsonl: No space left on device; free some space there" in str(other)


async def test_a_node_shows_whom_it_has_refused_and_goes_on() -> None:
    address, interrupt, shown = free_address(), Interrupt(), list[str]()
    interrupt.announce = shown.append

    async def part(node: int) -> None:
        if node:
            with pytest.raises(NodeError, match="the secrets differ"):
                await asyncio.to_thread(join, 1, 2, address, secret=b"another secret of the tests")
        async with team_of(Options(nodes=2, node=node, join=address), bool, Interrupt() if node else interrupt):
            pass

    await asyncio.gather(part(0), part(1))
    assert len(shown) == 1 and shown[0].startswith("refused a connection from 127.0.0.1:") and "secrets differ" in shown[0]

