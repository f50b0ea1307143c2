"""The nodes of a training, as one of them sees them: its part of each program, its tiles, and agreements with the others.

Every node records the whole program and carries out its part of it (asynctile/program/parts.py). All agree before a step
begins, where its loss is known, and at its end. So no node updates a weight unless all do, and a step counts on all or on none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import AsynctileError, NodeError
from asynctile.layers.arrangement import Arrangement, agreed
from asynctile.layers.carriers import homes_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.weight_files import ReadTile
from asynctile.nodes.boxes import Told
from asynctile.program.parts import part_of, reporters
from asynctile.program.program import Program
from asynctile.runtime import Runtime
from asynctile.storage.input import parse_json, shown
from asynctile.storage.tile import Tile


class Nodes:
    """The nodes that train with the engine of `runtime`; a single one unless the engine has an exchange.

    node: the number of this one. count: of all. devices: of all nodes together, equally many on each.
    """

    def __init__(self, runtime: Runtime) -> None:
        link = runtime.tiers.nodes
        self._runtime = runtime
        self.node, self.count = (0, 1) if link is None else (link.exchange.node, link.exchange.nodes)
        self._exchange = None if link is None or self.count == 1 else link.exchange
        self.devices = runtime.devices * self.count
        self._parts: WeakKeyDictionary[Program, Program] = WeakKeyDictionary()
        #: by part, which node reports each number
        self._reporters: WeakKeyDictionary[Program, NDArray[np.int64]] = WeakKeyDictionary()
        #: the terms of all nodes have been compared
        self._are_alike = False
        #: this node has ended the training for all, and what had ended it before
        self._has_given_up = False
        self._earlier: NodeError | None = None

    def part(self, whole: Program) -> Program:
        """Return what this node does of a program over all devices."""
        if self.count == 1:
            return whole
        if whole not in self._parts:
            self._parts[whole] = part = part_of(whole, self.node, self._runtime.devices)
            self._reporters[part] = np.array(reporters(whole, self._runtime.devices), np.int64)
        return self._parts[whole]

    def homes(self, parameters: Parameters) -> dict[Tile, int]:
        """Return the node of each tile that stands on one node alone: of moments, and of master weights that have copies."""
        return homes_of(parameters, self.count, self._runtime.devices)

    def own(self, parameters: Parameters, tiles: Iterable[Tile]) -> Iterator[Tile]:
        """Yield those of the tiles that stand on this node."""
        homes = self.homes(parameters)
        return (tile for tile in tiles if homes.get(tile, self.node) == self.node)

    async def begin(
        self, what: str, inputs: Mapping[str, Any] | Exception, terms: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> None:
        """Agree that `what`, such as "step 3", begins. AsynctileError if another node has another batch or learning rate.

        inputs: of this node, or the error for which it refuses its batch. Then this returns, and the other nodes raise
        AsynctileError with its words. terms: returns what this node's training depends on (terms.py). When the nodes begin for
        the first time, they compare these, and AsynctileError names the first in which two differ.
        """
        if self._exchange is None:
            return
        if not self._are_alike:
            await self.compare(terms)
            self._are_alike = True
        word = {"refused": str(inputs)} if isinstance(inputs, Exception) else {"inputs": _digest(inputs)}
        said = [parse_json(one) for one in await self._share(f"begin of {what}", json.dumps(word).encode())]
        if isinstance(inputs, Exception):
            return
        for node, one in enumerate(said):
            if "refused" in one:
                raise AsynctileError(f"node {node} refused its batch for {what}: {one['refused']}")
        if (other := next((node for node, one in enumerate(said) if one != said[0]), None)) is not None:
            raise AsynctileError(f"nodes 0 and {other} have other batches or learning rates for {what}; give all nodes the "
                                 "same data and options")

    async def compare(self, terms: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """Raise AsynctileError, which names the first term in which two nodes differ. terms: as for `begin`."""
        if self._exchange is not None:
            _compare(await self._share("terms of the training", json.dumps(await terms()).encode()))

    async def digest(self, parameters: Parameters) -> str:
        """Return a digest of one tile of each tensor: another seed, file or step changes all of them."""
        found = hashlib.blake2b(digest_size=8)
        for parameter in parameters.values():
            tile = await self._runtime.read(next(iter(parameter.compute.values())))
            found.update(np.ascontiguousarray(tile).tobytes())
        return found.hexdigest()

    async def arrangement(self, own: Arrangement) -> Arrangement:
        """Return the arrangement that fits all nodes, each of which found its own."""
        said = await self.tell("arrangement", f"{own.passes} {own.kept}".encode())
        return agreed(Arrangement(*map(int, one.split())) for one in said)

    async def numbers(self, topic: str, program: Program, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the numbers that all nodes' parts of a program have reported so far, where `own` are those of this node."""
        if self._exchange is None:
            return own
        said = await self._share(topic, own.tobytes())
        every = np.stack([np.frombuffer(one, np.float64) for one in said])  # (nodes, numbers + 1)
        found = own.copy()
        chosen = self._reporters[program]
        found[: len(chosen)] = every[chosen, np.arange(len(chosen))]
        return found

    @asynccontextmanager
    async def gather(
        self, homes: Mapping[Tile, int], readers: Mapping[int, Iterable[Tile]], own: ReadTile
    ) -> AsyncGenerator[ReadTile]:
        """Yield a function that reads a tile wherever it stands, while other nodes are sent the tiles that they read.

        homes: as `homes` returns them. readers: the tiles that each node reads, in its order. own: reads a tile that this node
        has. All nodes enter this with the same tiles. It ends when this node has read its own and sent all that others read.
        """
        exchange, node = self._exchange, self.node
        moves = [(tile, homes[tile], reader)
                 for reader, tiles in readers.items() for tile in tiles if homes.get(tile, reader) != reader]
        if exchange is not None:
            exchange.begin(Counter(to for _, at, to in moves if at == node), Counter(at for _, at, to in moves if to == node))
        received = Counter[int]()

        async def read(tile: Tile) -> NDArray[Any]:
            home = homes.get(tile, node)
            if exchange is not None and exchange.failure is not None:
                raise exchange.failure  # nobody needs what would be written
            if exchange is None or home == node:
                return await own(tile)
            found = np.empty(tile.shape, tile.dtype)
            received[home] += 1
            await _moved(exchange.receive, home, received[home] - 1, found, tile.name)
            return found

        async def send_to(reader: int) -> None:
            try:
                for index, tile in enumerate(tile for tile, home, to in moves if home == node and to == reader):
                    assert exchange is not None, "a node alone has all tiles"
                    await _moved(exchange.send, reader, index, await own(tile), tile.name)
            except Exception as error:
                self.give_up(error)  # at once: the reader waits for the tile, and this node perhaps for the reader
                raise

        sending = [asyncio.ensure_future(send_to(reader)) for reader in range(self.count) if reader != node]
        try:
            yield read
            await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def tell(self, topic: str, body: bytes) -> list[bytes]:
        """Tell all nodes `body` about `topic`; return what each said, by node, once all have."""
        return [body] if self._exchange is None else await self._share(topic, body)

    def give_up(self, error: BaseException) -> NodeError | None:
        """End the training on all nodes, because it has failed on this one.

        Return the error that had ended it before, on another node or on this one; None if this is the first.
        """
        if self._exchange is None:
            return None
        if not self._has_given_up:
            self._has_given_up = True
            self._earlier = self._exchange.failure
            self._exchange.abort(str(error) or type(error).__name__)
        return self._earlier

    async def _share(self, topic: str, body: bytes) -> list[bytes]:
        """Share what `TcpExchange.share` does. A node that is cancelled meanwhile ends the training: others may count on it."""
        assert self._exchange is not None
        sharing = asyncio.ensure_future(asyncio.to_thread(self._exchange.share, topic, body))
        try:
            return await asyncio.shield(sharing)
        except asyncio.CancelledError:
            self._exchange.abort(f"it was cancelled at {topic}")
            with suppress(NodeError):
                await sharing  # at once
            raise


def _digest(inputs: Mapping[str, Any]) -> str:
    """Return a digest of arrays with their names and shapes."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        array = np.ascontiguousarray(inputs[name])
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _compare(said: Sequence[bytes]) -> None:
    """Raise AsynctileError with the first of the terms of all nodes in which two of them differ."""
    first, *others = [parse_json(one) for one in said]
    for node, terms in enumerate(others, 1):
        for name, value in first.items():
            if terms.get(name) != value:
                raise AsynctileError(f"node {node} has {name} {shown(terms.get(name))}, and node 0 has {shown(value)}; start "
                                     "all nodes with the same model, options and versions")


async def _moved(
    move: Callable[[int, int, memoryview, Told, object], None], node: int, index: int, array: NDArray[Any], what: str
) -> None:
    """Send or receive an array, the tile `what`, and wait until that is over."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not over.done():
            over.set_result(None) if error is None else over.set_exception(error)

    move(node, index, array.reshape(-1).view(np.uint8).data, lambda error: _post(loop, settle, error), what)
    await over


def _post(loop: asyncio.AbstractEventLoop, work: Callable[..., None], *args: Any) -> None:
    """Call `work` on a loop, unless it was closed meanwhile: then nobody waits any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *args)
