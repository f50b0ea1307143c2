"""Versions of a model's weights on another share, for texts that are written while the model is trained.

A step changes weights tile by tile. A text that read them in the middle of a step would follow from a model that never existed.
Here texts read whole copies instead. After a step its weights are published into the version that no text reads. Later texts
use that version, and running texts go on with the one that they began with. Two versions suffice, and there are never more.
Their bytes are tiles of the share and count against its caps. serving.py reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import perf_counter
from weakref import WeakKeyDictionary

from asynctile.errors import AsynctileError, TornModelError
from asynctile.execute.job import Job
from asynctile.layers.model_state import ModelState
from asynctile.layers.parameters import Parameters
from asynctile.layers.tuning import Tuning
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.runtime import Runtime
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

#: The number of versions: one that new texts read, and one that is being written or is still read by older texts.
VERSIONS = 2
#: The largest share of a training's time that publishing may take. If steps are short, not every step is published.
EFFORT = 0.05
#: Bytes that are copied at once. Texts can go on between two pieces.
PIECE_NBYTES = 4 << 20

log = logging.getLogger(__name__)


class Version:
    """One copy of a model's weights on the share of `runtime`.

    name: the model's. number: the model's `version` when the copy was made; None if the copy is not whole. readers:
    how many texts use it.
    """

    def __init__(
        self, runtime: Runtime, name: str, parameters: Parameters, beside: Callable[[], Iterable[Tile]] = tuple
    ) -> None:
        self.runtime = runtime
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
        """Yield the version's tiles: those of the weights that operations read, in the order of `Parameters.computed`."""
        return self.parameters.computed()

    def tune(self, tuning: Tuning) -> bool:
        """Make room for the model's adapters while no text reads the version; return whether its tiles are others now."""
        if tuning == self.parameters.tuning:
            return False
        self.parameters = self.parameters.tuned(tuning)
        self._demands.clear()
        return True

    def check_whole(self, wish: str) -> None:
        """Raise TornModelError if the version's bytes were lost. wish: the work that needs them, for the message."""
        if self.number is None:
            raise TornModelError(f"cannot {wish}: the published weights were lost; ask again after the next step, or open the "
                                 "server again")

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """Return what the program demands of an arena in addition to all versions and `also`, its own tiles; measured once."""
        if program not in self._demands:
            self._demands[program] = demand_of([program], chain(self._beside(), also))
        return self._demands[program]

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """End a run that failed or was given up. Runs on the engine's loop."""
        own = set(self.tiles())
        if any(tile in own for tile in await run.abandon()):
            self.number = None


class Versions:
    """The versions of `model` on the share of `runtime`, which is not the model's own; a Source (source.py).

    newest: the version that was published last. follows: whether steps are published; otherwise there is one version, of the
    weights at the time of `open`.
    """

    def __init__(self, model: ModelState, runtime: Runtime, *, follows: bool = True) -> None:
        self.model = model
        self.runtime = runtime
        parameters = (model.parameters.anew() for _ in range(VERSIONS if follows else 1))
        self.all = [Version(runtime, model.name, one, self._standing) for one in parameters]
        self.newest = self.all[0]
        #: how long the last publishing took, successful or not, and when it ended
        self._took_s, self._ended_at = 0.0, 0.0
        self._is_over = False

    @property
    def parameters(self) -> Parameters:
        return self.newest.parameters

    def _standing(self) -> Iterator[Tile]:
        return chain.from_iterable(version.tiles() for version in self.all)

    async def open(self) -> None:
        """Make the first version, on the engine's loop. BudgetError if the share cannot hold all versions; TornModelError."""
        async with self.model.changing.held():
            self.model.check_whole("serve")
            self._is_over = False
            for version in self.all:
                version.tune(self.model.parameters.tuning)
            await self.runtime.reserve(demand_of([], self._standing()))
            await self._publish(self.newest)
            self.model.followers.append(self.follow)

    async def follow(self) -> None:
        """Publish the weights of a step, if there is time for it. On the engine's loop, after a step, inside `changing`.

        An error here does not reach the training: texts go on with the version before.
        """
        if not self.runtime.is_open:  # its server closed with it
            self.model.followers.remove(self.follow)
            return
        if perf_counter() - self._ended_at < self._took_s / EFFORT:
            return
        try:
            await self._renew()
        except AsynctileError as error:
            log.warning("the weights of step %d could not be published: %s", self.model.step_count, error)

    async def publish(self) -> bool:
        """Publish the last step's weights, and return whether texts that begin from now on use them.

        Runs on the engine's loop, after the step under way. It returns False if older texts still read the version that would
        be overwritten. TornModelError if the model is torn.
        """
        async with self.model.changing.held():
            return await self._renew()

    async def close(self) -> None:
        """Free the versions, on the engine's loop. No text may be reading any. A publishing under way is given up."""
        self._is_over = True
        if self.follow in self.model.followers:
            self.model.followers.remove(self.follow)
        await self.runtime.release(self._standing())

    async def _renew(self) -> bool:
        """Do the work of `publish`, inside `changing`."""
        if self._is_over:
            return False
        if self.newest.number == self.model.version:
            return True
        free = next((version for version in self.all if version is not self.newest and not version.readers), None)
        if free is None:
            return False
        self.model.check_whole("publish")
        if free.tune(self.model.parameters.tuning):
            await self.runtime.reserve(demand_of([], self._standing()))
        await self._publish(free)
        return self.newest is free

    async def _publish(self, version: Version) -> None:
        """Copy the model's weights into `version`, piece by piece; then set its number and make it `newest` for later texts.

        If the versions are closed meanwhile, stop without an error; other errors are raised. In both cases `newest` stays and
        `version.number` is None. This wakes nobody and frees no version.
        """
        began = perf_counter()
        version.number = None
        try:
            for sources, targets in _pieces(self.model.parameters.computed(), version.tiles()):
                values = await self.model.runtime.read_all(sources)
                if self._is_over:  # closed meanwhile: tiles stored now would never be freed
                    return
                await self.runtime.store(zip(targets, values, strict=True))
            version.number = self.model.version
            self.newest = version
        finally:  # a failed publishing may take long as well
            self._ended_at = perf_counter()
            self._took_s = self._ended_at - began


def _pieces(sources: Iterable[Tile], targets: Iterable[Tile]) -> Iterator[tuple[list[Tile], list[Tile]]]:
    """Yield the same pairs of tiles in pieces of about PIECE_NBYTES."""
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
