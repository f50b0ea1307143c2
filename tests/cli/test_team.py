"""How the nodes of a run meet over the network of their options."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from asynctile.cli.interrupt import Interrupt
from asynctile.cli.options import Options
from asynctile.cli.team import team_of
from asynctile.errors import DeviceError
from asynctile.nccl import NcclExchange
from asynctile.nodes.secret import VARIABLE
from tests.cuda.nccl import SoftNccl
from tests.nodes.meetings import free_address


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a secret of sixteen")


async def test_nodes_meet_over_nccl_if_their_options_say_so(soft_nccl: SoftNccl) -> None:
    address = free_address()

    async def said(node: int) -> Any:
        options = Options(nodes=2, node=node, join=address, network="nccl", device=f"cuda:{node}")
        async with team_of(options, bool, Interrupt()) as team:
            assert isinstance(team.exchange, NcclExchange)
            return await (team.hear(stops=True) if node else team.tell("step"))

    assert await asyncio.gather(said(0), said(1)) == [True, {"do": "step"}]
    assert {communicator.device for communicator in soft_nccl.made} == {0, 1}


async def test_a_node_without_nccl_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, soft_gpu: Any) -> None:
    monkeypatch.setattr("asynctile.nccl.nccl_exchange.open_driver", soft_gpu.open)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    options = Options(nodes=2, join=free_address(), network="nccl", device="cuda:0")
    with pytest.raises(DeviceError, match=r"NCCL does not load.*'asynctile\[nccl13\]'"):
        async with team_of(options, bool, Interrupt()):
            pass
