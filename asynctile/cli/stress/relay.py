"""A relay between nodes: a process of its own that passes on what they send.

Killed, it is a line that was cut. Stopped, it is a line that stays open and passes nothing on.
"""

from __future__ import annotations

import asyncio
import socket

__all__ = ["pass_on", "relay"]

_MOST_NBYTES = 1 << 20
_AGAIN_S = 0.02


def relay(listener: socket.socket, address: tuple[str, int]) -> int:
    """Pass on every connection that `listener` gets to `address`. Does not return before its process ends."""
    asyncio.run(pass_on(listener, address))
    return 0


async def pass_on(listener: socket.socket, address: tuple[str, int]) -> None:
    """Do so until this is cancelled, which closes the listener. A connection waits until somebody listens at `address`.

    Each way of a connection ends for itself, so that what was sent still arrives. An error ends both.
    """

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                other_reader, other_writer = await asyncio.open_connection(*address)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(_AGAIN_S)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_one_way(reader, other_writer))
                ways.create_task(_one_way(other_reader, writer))
        except* OSError:
            writer.transport.abort()
            other_writer.transport.abort()
        else:
            writer.close()
            other_writer.close()

    async with await asyncio.start_server(accept, sock=listener) as server:
        await server.serve_forever()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(_MOST_NBYTES):
        writer.write(content)
        await writer.drain()
    writer.write_eof()
