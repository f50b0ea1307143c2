"""Versions of a model's weights on another share, for texts that are written while it is trained.

A step changes weights tile by tile, so a text that read them in the middle of one would follow from no model that there ever
was. Here whole copies are read: behind a step its weights are published, into the version that no text reads, and texts that
begin later follow from those; the others go on with what they began with. Two versions are enough for that, and there are never
more. Their bytes are tiles of the share, counted in its caps. Who reads them is serving.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from asynctile.errors import AsynctileError, TornModelError
from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling
from asynctile.loop.exclusive import Exclusive
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.repeat.job import Job
from asynctile.share import Share
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

#: How many versions there are: the one that new texts read, and the one that is written or still read by older texts.
VERSIONS = 2
#: Of a training's time, what publishing may take at most: where steps are short not each of them is published.
EFFORT = 0.05
#: Bytes that are copied at once; behind each piece a text may be gone on with.
PIECE_NBYTES = 4 << 20

log = logging.getLogger(__name__)


class Followed(Protocol):
    """The model that there are versions of."""

    engine: Share
    name: str
    config: Config
    tiling: Tiling
    step_count: int
    changing: Exclusive

    @property
    def followers(self) -> list[Versions]: ...

    def weights(self) -> Iterator[Tile]: ...

    def check_whole(self, wish: str) -> None: ...


class Version:
    """One copy of a model's weights on `engine`, a share.

    name: of the model. number: updates done when they were those of the model; None: they are not whole. readers: texts that
    follow from them.
    """

    def __init__(self, engine: Share, name: str, parameters: Parameters, beside: Sequence[Tile] = ()) -> None:
        self.engine = engine
        self.name = name
        self.parameters = parameters
        self.number: int | None = None
        self.readers = 0
        self._beside = beside
        self._demands: WeakKeyDictionary[Program, Demand] = WeakKeyDictionary()

    @property
    def version(self) -> int:
        return -1 if self.number is None else self.number

    def tiles(self) -> Iterator[Tile]:
        """Its weights and their copies in another precision, in the order of `Model.weights`."""
        return self.parameters.weights()

    def check_whole(self, wish: str) -> None:
        """TornModelError if its bytes were lost."""
        if self.number is None:
            raise TornModelError(f"cannot {wish}: the published weights were lost; ask again behind the next step, or open the "
                                 "server again")

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """What the program asks of an arena beside all versions, and `also`, which are its own; measured once."""
        if program not in self._demands:
            self._demands[program] = demand_of([program], chain(self._beside, also))
        return self._demands[program]

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """On the engine's loop: end a run that failed or was given up."""
        own = set(self.tiles())
        if any(tile in own for tile in await run.abandon()):
            self.number = None


class Versions:
    """Those of `model` on `share`, another than its own; a Source (source.py). newest: the last of `all` that was published.

    follows: whether steps are published; else there is one version, of the weights as they were at `open`.
    """

    def __init__(self, model: Followed, share: Share, *, follows: bool = True) -> None:
        self.model = model
        self.share = share
        parameters = [
            Parameters(model.config, model.tiling, model.engine.precision) for _ in range(VERSIONS if follows else 1)
        ]
        standing = list(chain.from_iterable(one.weights() for one in parameters))
        self.all = [Version(share, model.name, one, standing) for one in parameters]
        self.newest = self.all[0]
        self.parameters = self.newest.parameters
        #: how long the last publishing took, well or not, and when it ended
        self._took_s, self._ended_at = 0.0, 0.0
        self._is_over = False

    async def open(self) -> None:
        """On the engine's loop: the first version. BudgetError if the share cannot hold all of them, TornModelError."""
        async with self.model.changing.held():
            self.model.check_whole("serve")
            self._is_over = False
            await self.share.reserve(demand_of([], chain.from_iterable(version.tiles() for version in self.all)))
            await self._publish(self.newest)
            self.model.followers.append(self)

    async def follow(self) -> None:
        """On the engine's loop, behind a step, inside `changing`: publish its weights, if that may take its time now.

        What goes wrong here is not the training's: texts go on with the version before.
        """
        if not self.share.is_open:  # its server went with it
            self.model.followers.remove(self)
            return
        if perf_counter() - self._ended_at < self._took_s / EFFORT:
            return
        try:
            await self._renew()
        except AsynctileError as error:
            log.warning("the weights of step %d could not be published: %s", self.model.step_count, error)

    async def publish(self) -> bool:
        """On the engine's loop, behind the step under way: whether texts that begin from now on follow from its weights.

        They do not where older texts still read the version that would be overwritten. TornModelError.
        """
        async with self.model.changing.held():
            return await self._renew()

    async def close(self) -> None:
        """On the engine's loop: free them. Nobody may read any; what is being published is given up."""
        self._is_over = True
        if self in self.model.followers:
            self.model.followers.remove(self)
        await self.share.release(chain.from_iterable(version.tiles() for version in self.all))

    async def _renew(self) -> bool:
        """Inside `changing`: `publish`."""
        if self._is_over:
            return False
        if self.newest.number == self.model.step_count:
            return True
        free = next((version for version in self.all if version is not self.newest and not version.readers), None)
        if free is None:
            return False
        self.model.check_whole("publish")
        await self._publish(free)
        return self.newest is free

    async def _publish(self, version: Version) -> None:
        """Nothing is published if it is closed meanwhile."""
        began = perf_counter()
        version.number = None
        try:
            for sources, targets in _pieces(self.model.weights(), version.tiles()):
                values = await self.model.engine.read_all(sources)
                if self._is_over:  # meanwhile: what is stored now would never be freed
                    return
                await self.share.store(zip(targets, values, strict=True))
            version.number = self.model.step_count
            self.newest = version
        finally:  # what fails may take long as well
            self._ended_at = perf_counter()
            self._took_s = self._ended_at - began


def _pieces(sources: Iterable[Tile], targets: Iterable[Tile]) -> Iterator[tuple[list[Tile], list[Tile]]]:
    """The same tiles in pieces of about PIECE_NBYTES."""
    piece: tuple[list[Tile], list[Tile]] = [], []
    nbytes = 0
    for source, target in zip(sources, targets, strict=True):
        piece[0].append(source)
        piece[1].append(target)
        nbytes += source.nbytes
        if nbytes >= PIECE_NBYTES:
            yield piece
            piece, nbytes = ([], []), 0
    if piece[0]:
        yield piece
