"""A relay between nodes: a process of its own that passes on what they send, until it is killed. Then the line is cut."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

__all__ = ["relay"]

_MOST_NBYTES = 1 << 20
_AGAIN_S = 0.02


def relay(listener: socket.socket, address: tuple[str, int]) -> int:
    """Pass on every connection that `listener` gets to `address`. Does not return before its process ends."""
    asyncio.run(_serve(listener, address))
    return 0


async def _serve(listener: socket.socket, address: tuple[str, int]) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                other_reader, other_writer = await asyncio.open_connection(*address)
                break
            except ConnectionRefusedError:  # nobody listens there yet
                await asyncio.sleep(_AGAIN_S)
        await asyncio.gather(_pass_on(reader, other_writer), _pass_on(other_reader, writer))

    async with await asyncio.start_server(accept, sock=listener) as server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(_MOST_NBYTES):
            writer.write(content)
            await writer.drain()
    writer.close()
