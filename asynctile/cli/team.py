"""The nodes of a run: how they meet, and what node 0 tells the others to do next.

Node 0 decides what a run does. It tells each thing before it does it, and the other nodes (follower.py) do their part. A node
that is asked to stop says so in its answer, and node 0 ends the run for all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from asynctile import __version__, nodes
from asynctile.cli.interrupt import Interrupt
from asynctile.cli.options import Options
from asynctile.cli.terminal import one_line
from asynctile.errors import AsynctileError
from asynctile.nccl import NcclExchange
from asynctile.nodes.handshake import Hello
from asynctile.nodes.meeting import decline
from asynctile.nodes.secret import find_secret
from asynctile.nodes.tcp_exchange import NCCL, TcpExchange
from asynctile.nodes.wire import at
from asynctile.storage import documents

__all__ = ["Team", "team_of", "told_if_refused"]

#: What all nodes share when node 0 tells the next thing. The others say WAITS or STOPS.
_TOPIC = "what comes next"
_WAITS, _STOPS = b"", b"stop"


class Team:
    """The nodes of a run. exchange: between them; None for a run of one node."""

    def __init__(self, exchange: TcpExchange | None) -> None:
        self.exchange = exchange

    async def tell(self, do: str, **what: Any) -> bool:
        """Tell the other nodes what comes next, as node 0; return whether one of them was asked to stop."""
        if self.exchange is None:
            return False
        word = json.dumps({"do": do, **what}).encode()
        return _STOPS in (await asyncio.to_thread(self.exchange.share, _TOPIC, word))[1:]

    async def hear(self, *, stops: bool) -> dict[str, Any]:
        """Return what comes next, as another node than node 0. stops: this node was asked to stop."""
        assert self.exchange is not None
        said = await asyncio.to_thread(self.exchange.share, _TOPIC, _STOPS if stops else _WAITS)
        word: dict[str, Any] = json.loads(said[0])
        return word


@asynccontextmanager
async def told_if_refused(given: Mapping[str, Any], interrupt: Interrupt) -> AsyncIterator[None]:
    """Tell the other nodes of the run why this one does not join them, if its options are refused in here. given: as typed."""
    try:
        yield
    except (AsynctileError, ValueError, OSError) as error:
        if given.get("nodes", 1) > 1 and "join" in given:
            with suppress(ValueError, OSError):  # no secret, or stopped by a signal
                secret = find_secret(os.environ, given.get("secret_file"))
                own = Hello(node=given.get("node", 0), nodes=given["nodes"], terms={})
                await documents.finish(asyncio.to_thread(decline, own, given["join"], secret, one_line(error), interrupt.check))
        raise


@asynccontextmanager
async def team_of(options: Options, stage: Callable[[str], object], interrupt: Interrupt) -> AsyncIterator[Team]:
    """Meet the other nodes, and leave them at the end. An error ends the run on all nodes, with its words.

    stage: called with a description of the wait, which `interrupt` ends. NodeError if the nodes do not meet; ValueError or
    OSError without a secret.
    """
    if options.join is None:
        yield Team(None)
        return
    secret = find_secret(os.environ, options.secret_file)
    join = partial(NcclExchange.meet, device=options.device) if options.network == NCCL else TcpExchange.meet
    stage(f"waiting for the other nodes of {options.nodes} at {at(options.join)}")
    with _shown(interrupt):
        exchange = await documents.finish(asyncio.to_thread(
            join, options.node, options.nodes, options.join, secret, {"version": __version__},
            check=interrupt.check))
        try:
            yield Team(exchange)
        except BaseException as error:
            exchange.abort(one_line(error) if str(error) else "it was asked to stop")
            raise
        finally:
            await asyncio.to_thread(exchange.close)


class _Announcing(logging.Handler):
    """Shows warnings to the user of a run."""

    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__(logging.WARNING)
        self._interrupt = interrupt

    def emit(self, record: logging.LogRecord) -> None:
        self._interrupt.announce(record.getMessage())


@contextmanager
def _shown(interrupt: Interrupt) -> Iterator[None]:
    """Show what the nodes' connections warn of, such as a caller that was refused."""
    logger, handler = logging.getLogger(nodes.__name__), _Announcing(interrupt)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
