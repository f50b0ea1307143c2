"""The relay between two nodes of scenario `nodes`: a line as TCP has it, until it is cut."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from asynctile.cli.stress.relay import pass_on
from tests.nodes.meetings import free_address
from tests.settle import HANG_S, turns

#: More than sockets and the relay hold.
LARGE = bytes(range(256)) * (1 << 16)
#: Makes a close a reset.
RESETS = struct.pack("ii", 1, 0)


class End(NamedTuple):
    """An end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Far:
    """Who listens behind the relay. came: gets the end of each connection."""

    def __init__(self) -> None:
        self.came = asyncio.Queue[End]()

    @asynccontextmanager
    async def listening(self, address: tuple[str, int]) -> AsyncIterator[None]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.came.put(End(reader, writer))

        async with await asyncio.start_server(accept, *address):
            yield


@asynccontextmanager
async def relayed(address: tuple[str, int]) -> AsyncIterator[End]:
    """Give an end of a connection to `address` by a relay."""
    listener = socket.create_server(("127.0.0.1", 0))
    passing = asyncio.create_task(pass_on(listener, address))
    async with asyncio.timeout(HANG_S):
        near = End(*await asyncio.open_connection(*listener.getsockname()))
        try:
            yield near
        finally:
            near.writer.transport.abort()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
            await turns()


async def test_all_bytes_pass_each_way_also_after_the_other_way_has_ended() -> None:
    far, address = Far(), free_address()
    async with far.listening(address), relayed(address) as near:
        there = await far.came.get()
        near.writer.write(LARGE)
        near.writer.write_eof()
        assert await there.reader.read() == LARGE
        there.writer.write(LARGE)
        there.writer.close()
        assert await near.reader.read() == LARGE


async def test_a_connection_waits_until_somebody_listens() -> None:
    far, address = Far(), free_address()
    async with relayed(address) as near:
        near.writer.write(b"early")
        await turns()
        async with far.listening(address):
            there = await far.came.get()
            assert await there.reader.readexactly(5) == b"early"
            there.writer.transport.abort()


async def test_a_reset_of_one_end_ends_the_other() -> None:
    far, address = Far(), free_address()
    async with far.listening(address), relayed(address) as near:
        there = await far.came.get()
        there.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        there.writer.transport.abort()
        with suppress(ConnectionError):
            assert await near.reader.read() == b""
