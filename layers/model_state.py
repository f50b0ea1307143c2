"""The inside of a model: its tiles on a runtime, the programs recorded for it, and whether its weights are whole.

Trainers, servers, checkpoints and commands take a `ModelState`; users see a `Model` (model.py). What a step computes is
recorded in step.py, files are written in weight_files.py.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import AsynctileError, StalledError, TornModelError
from asynctile.execute.job import Job
from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.layers.carriers import forward_table
from asynctile.layers.companions import Companions
from asynctile.layers.config import Config
from asynctile.layers.exchange import Base
from asynctile.layers.floor import floor_demand
from asynctile.layers.layout import weights_nbytes
from asynctile.layers.lora import LoRA
from asynctile.layers.nodes import Nodes
from asynctile.layers.parameters import MOMENTS, Parameter, Parameters, initial_piece
from asynctile.layers.programs import Programs
from asynctile.layers.rows import Rows
from asynctile.layers.step import record
from asynctile.layers.telling import tell_failed, tell_torn
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.layers.weight_files import ReadTile
from asynctile.loop.exclusive import Exclusive
from asynctile.loop.files import Files
from asynctile.loop.thread import under_shield
from asynctile.program.needs import demand_of
from asynctile.program.precision import BF16
from asynctile.program.program import Program
from asynctile.runtime import Runtime
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile
from asynctile.streams.stall import called

#: Up to this many tiles a model is checked against the caps tile by tile, which says exactly what fits.
COUNTED_TILES = 10_000
_NUMBERS = itertools.count(1)


def check_room(runtime: Runtime, tiling: Tiling, nbytes: int) -> None:
    """Raise BudgetError, without a look at single tiles, if a large model of `nbytes` in all fits nowhere at all."""
    if tiling.count > COUNTED_TILES:
        runtime.tiers.caps.check_room(nbytes)


class ModelState:
    """The weights of one model, and its moments once it is in training. BudgetError if a large model fits nowhere.

    name: for events and logs, "gpt2-1" for the first of a process. companions: files kept beside the weights, by name.
    in_training: whether a Trainer was made for the model, so that its moments count. has_moments: whether they have values.
    step_count: updates done, by all Trainers together. torn: why weights and moments belong to no single step, or None.
    last_checkpoint: the path that the model was last saved to or loaded from. base: the folder that the weights, without
    adapters, were read from; None if there is none, or if a step has changed them. tuning: the trained part that was asked for
    last; parameters.tuning is the one in force. changing: the lock held while the weights change, or must all be of one step.
    followers: called after each step, to publish its weights on other shares. readers: texts that are generated from these
    weights now.
    """

    def __init__(
        self, runtime: Runtime, config: Config, tile: int | None = None, stored: frozenset[str] = frozenset()
    ) -> None:
        """Make a model whose tiles have no bytes yet. stored: as in Parameters."""
        self.runtime = runtime
        self.config = config
        self.name = f"{config.model_type}-{next(_NUMBERS)}"
        self.tiling = Tiling(config, tile, runtime.device.grain)
        check_room(runtime, self.tiling, weights_nbytes(config, stored))
        self.parameters = Parameters(config, self.tiling, runtime.life.precision, stored=stored)
        self.tuning = WHOLE
        self.companions: Companions = {}
        self.in_training = False
        self.has_moments = False
        self.step_count = 0
        self.torn: str | None = None
        self.last_checkpoint: str | None = None
        self.base: Base | None = None
        self.changing = Exclusive("a model", runtime.tiers.run_ahead)
        self.followers: list[Callable[[], Awaitable[None]]] = []
        self.readers = 0
        self.programs = Programs()
        #: how often adapters came
        self._adapted = 0
        self._demands: WeakKeyDictionary[Program, Demand] = WeakKeyDictionary()

    @property
    def version(self) -> int:
        """A number that is another one after every change of the weights."""
        return self.step_count + self._adapted

    def weights(self) -> Iterator[Tile]:
        """Yield every weight tile of this node, and their copies in another precision."""
        return Nodes(self.runtime).own(self.parameters, self.parameters.weights())

    def standing(self) -> Iterator[Tile]:
        """Yield every tile that stays between runs: weights, and moments once the model is in training."""
        return self._states() if self.in_training else self.weights()

    def _states(self) -> Iterator[Tile]:
        """Yield every persistent tile of this node."""
        return Nodes(self.runtime).own(self.parameters, self.parameters.states())

    def train(self, lora: LoRA | None = None, freeze: Collection[str] = ()) -> None:
        """Count the moments among the standing tiles from now on.

        lora, freeze: new adapters and other frozen tensors, which `tuned` puts in force; none: as it is. ValueError if they do
        not fit the model, if it has an adapter or moments already, or if a matrix in bf16 would have to be updated.
        """
        tuning = self._changed(lora, freeze)
        if self.parameters.stored:
            tuning.check_stored(self.config, self.parameters.stored, self.name)
        self.tuning = tuning
        if not self.in_training:
            self.in_training = True
            self._demands.clear()

    async def tuned(self) -> None:
        """Put the tuning that was asked for in force, on the device's loop, inside `changing`.

        New adapters change no result. BudgetError if there is no room; the model is then as it was.
        """
        if self.tuning != self.parameters.tuning:
            lora = self.tuning.lora
            seed = 0 if lora is None else lora.seed
            await self._tune(lambda parameter, key: initial_piece(parameter, parameter.index(*key), seed), None)

    async def adapt(self, lora: LoRA, value: Any, files: Files | None = None) -> None:
        """Give the model these adapters with the values value(parameter, (i, j)), on the device's loop.

        files: as for `set_weights`. ValueError as `train`; BudgetError if there is no room. On an error the model is as it was.
        """
        async with self.changing.held():
            self.check_whole("take an adapter")
            before = self.tuning
            self.tuning = self._changed(lora)
            try:
                await self._tune(value, files)
            except BaseException:
                self.tuning = before
                raise

    async def _tune(self, value: Any, files: Files | None) -> None:
        self._check_untrained()
        parameters = self.parameters.tuned(self.tuning)
        self._check_floor(parameters.tuning)
        new = [parameter for parameter in parameters.values() if parameter.name not in self.parameters]
        if new:
            try:
                await self._store(parameters, new, value, files)
            except BaseException:
                await under_shield(self.runtime.release(chain.from_iterable(_weights_of(parameter) for parameter in new)))
                raise
        # Another object, because programs that are being recorded now read the one before. Their keys have the tuning.
        self.parameters = parameters
        self._demands.clear()
        self._adapted += bool(new)

    def _changed(self, lora: LoRA | None = None, freeze: Collection[str] = ()) -> Tuning:
        """Return the model's tuning with these adapters and patterns; ValueError if the model cannot have it."""
        if lora is not None and self.tuning.lora is not None:
            raise ValueError(f"{self.name} has an adapter already, {self.tuning.lora!r}; leave out adapters to train that one, "
                             "or load the model again")
        tuning = Tuning(lora or self.tuning.lora, tuple(freeze) or self.tuning.freeze)
        if tuning != self.tuning:
            self._check_untrained()
            tuning.check(self.config)
        return tuning

    def _check_untrained(self) -> None:
        if self.has_moments:
            raise ValueError(f"{self.name} has moments after {self.step_count} steps, so its trained tensors cannot change; "
                             "call save_pretrained and load that")

    def count_step(self) -> None:
        """Count an update. Unless it changed adapters alone, the weights are no longer those of `base`."""
        self.step_count += 1
        if self.parameters.lora is None:
            self.base = None

    def saved_to(self, path: Path) -> None:
        """Remember `path` as the checkpoint to go back to."""
        self.last_checkpoint = str(path)

    async def set_weights(self, value: Any, files: Files | None = None) -> None:
        """Give every weight tile, and its copy, value(parameter, (i, j)), tile by tile, on the device's loop.

        Values have the dtype of the tile. files: reads the values if they come from files; None: they are computed. On an error
        the model is released.
        """
        self.check_floor()
        try:
            await self._store(self.parameters, self.parameters.values(), value, files)
        except BaseException:
            await under_shield(self.release())
            raise

    async def _store(self, parameters: Parameters, chosen: Iterable[Parameter], value: Any, files: Files | None) -> None:
        """Give the tiles of the weights of `chosen` their values, after the arena is cut for the weights of `parameters`."""
        made = self.runtime.compute if files is None else files.run
        own = set(Nodes(self.runtime).own(parameters, parameters.weights()))

        async def tiles() -> AsyncGenerator[tuple[Tile, NDArray[Any]]]:
            for parameter in chosen:
                for key, tile in parameter.weights.items():
                    piece = parameter.padded(await made(value, parameter, key), *key)
                    if tile in own:
                        yield tile, piece
                    if key in parameter.copies:
                        yield parameter.copies[key], to_bf16(piece)

        await self.runtime.store(tiles(), demand_of([], own))

    async def prepare_moments(self, value: Any = None, files: Files | None = None) -> None:
        """Create the moments of trained tensors on the device's loop, unless they have values.

        They are zeros, or value(parameter, family, key).

        files: reads the values; None: zeros.
        """
        if self.has_moments:
            return

        own = set(self._states())

        async def tiles() -> AsyncGenerator[tuple[Tile, NDArray[Any]]]:
            for parameter in self.parameters.values():
                for family in MOMENTS:
                    for key, tile in getattr(parameter, family).items():
                        if tile not in own:
                            continue
                        array = np.zeros(tile.shape, np.float32)
                        if files is not None:
                            array = parameter.padded(await files.run(value, parameter, family, key), *key)
                        yield tile, array

        await self.runtime.store(tiles(), demand_of([], own))
        self.has_moments = True

    @asynccontextmanager
    async def reading(self, parameters: Iterable[Parameter], *, wants: bool = True) -> AsyncGenerator[ReadTile | None]:
        """Yield a function that reads the weights of these tensors in their order; inside `changing`, on the device's loop.

        None: all stand on this node. Otherwise all nodes enter this together, and it ends when each has read what it wants.
        wants: whether this node reads. An error on one node then ends the training on all.
        """
        nodes = Nodes(self.runtime)
        tiles, homes = [tile for item in parameters for tile in item.weights.values()], nodes.homes(self.parameters)
        if not any(tile in homes for tile in tiles):
            yield None
            return
        try:
            digest = (await nodes.digest(self.parameters)).encode()
            said = await nodes.tell(f"{len(tiles)} master weights of step {self.step_count}", digest + b"reads" * wants)
            if (other := next((node for node, one in enumerate(said) if not one.startswith(said[0][: len(digest)])), None)):
                raise AsynctileError(f"nodes 0 and {other} have other weights; give all nodes the same model")
            readers = {node: tiles for node, one in enumerate(said) if one.endswith(b"reads")}
            async with nodes.gather(homes, readers, self.runtime.read) as anywhere:
                yield anywhere
            await nodes.tell(f"end of the read of step {self.step_count}", b"")  # tiles that were sent may not have been read
        except BaseException as error:
            nodes.give_up(error)
            raise

    async def lend(self) -> None:
        """Send other nodes what they lack of the weights that they save now, on the device's loop.

        These are the weights of the adapters if there are any, otherwise all.
        """
        async with self.changing.held():
            await self.tuned()
            parameters = self.parameters
            chosen = parameters.values() if parameters.lora is None else parameters.adapters()
            async with self.reading(chosen, wants=False):
                pass

    async def gather(
        self, parameter: Parameter, tiles: dict[tuple[int, int], Tile], read: ReadTile | None = None
    ) -> NDArray[np.float32]:
        """Return one tensor, whole, from its tiles. read: reads them one by one; None: all stand on this node."""
        whole = np.empty(parameter.shape, np.float32)
        pieces = await self.runtime.read_all(tiles.values()) if read is None else [await read(one) for one in tiles.values()]
        for (i, j), piece in zip(tiles, pieces, strict=True):
            part = parameter.cut(piece, i, j)
            whole[parameter.index(i, j)] = from_bf16(part) if part.dtype == BF16 else part
        return whole

    async def release(self) -> None:
        """Free every tile of the model; it cannot be used afterwards."""
        self.torn = "the model was released"  # at once: steps that are asked for from now on find no tiles
        await self.runtime.call(self._free())

    @called("Model.release")
    async def _free(self) -> None:
        await self.runtime.release(self.parameters.states())

    async def publish(self) -> None:
        """Offer the weights of a step to `followers`; inside `changing`, on the device's loop."""
        for follow in list(self.followers):
            await follow()

    def check_floor(self) -> None:
        """Raise BudgetError if the device cap is below the model's floor."""
        self._check_floor(self.parameters.tuning)

    def _check_floor(self, tuning: Tuning) -> None:
        runtime = self.runtime
        stored = self.parameters.stored
        floor = floor_demand(self.config, self.tiling.tile, runtime.device.grain, runtime.life.precision, tuning, stored)
        runtime.tiers.caps.check_floor(floor)

    def tear(self, why: str) -> None:
        """Mark the model as torn from now on, and tell the readers of events."""
        self.torn = why
        tell_torn(self.runtime, self.name, why)

    def check_whole(self, wish: str) -> None:
        """Raise TornModelError if the model is torn. wish: the verb of what cannot be done then, for the message."""
        if self.torn is not None:
            raise TornModelError(f"cannot {wish}: {self.torn_message()}")

    def torn_message(self) -> str:
        """Return why the model is torn, and the way out."""
        return f"{self.torn}; load the last checkpoint ({self.last_checkpoint or 'none was saved'})"

    async def recorded(
        self, kind: str, rows: Rows, kept: int = 0, on_host: frozenset[Tile] = frozenset(), carriers: tuple[int, ...] = ()
    ) -> Program:
        """Return `program`, on the device's loop: at once if it is kept, else recorded in a thread."""
        found = self.programs.kept(_key(self.parameters, kind, rows, kept, on_host, carriers))
        return await self.runtime.compute(self.program, kind, rows, kept, on_host, carriers) if found is None else found

    async def forward(self, kind: str, rows: Rows) -> Program:
        """Return the program of a forward pass over these rows, shared by all devices, on the device's loop."""
        devices = self.runtime.devices
        return await self.recorded(kind, rows, carriers=forward_table(len(rows.groups), devices) if devices > 1 else ())

    def program(
        self, kind: str, rows: Rows, kept: int = 0, on_host: frozenset[Tile] = frozenset(), carriers: tuple[int, ...] = ()
    ) -> Program:
        """Return the program of this kind over these rows in their passes, recorded once while it is kept.

        kept: how many parts keep their activations, as in `record`. on_host: weight tiles that are updated on the host.
        carriers: the device of each replica, or of each group of row tiles, as in `record`; none: one device carries all.
        """
        parameters = self.parameters
        recorded = partial(record, kind, parameters, rows, kept=kept, on_host=on_host, carriers=carriers,
                           nodes=self.runtime.tiers.count_of_nodes)  # fmt: skip
        return self.programs.get(_key(parameters, kind, rows, kept, on_host, carriers), recorded)

    def keep_program(self, program: Program | None, kind: str, rows: Rows, kept: int) -> None:
        """Keep a program that `record` made of these arguments, for one device, so that `program` need not record it again."""
        if program is not None:
            self.programs.get(_key(self.parameters, kind, rows, kept, frozenset(), ()), lambda: program)

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """Return what the program asks of an arena beside the standing tiles and `also`, its own; measured once a program."""
        if program not in self._demands:
            self._demands[program] = demand_of([program], chain(self.standing(), also))
        return self._demands[program]

    async def run(self, program: Program, inputs: dict[str, Any], outputs: dict[str, Any]) -> NDArray[np.float64]:
        """Run a program that changes no weights, on the device's loop; return the numbers that its operations report."""
        async with self.runtime.exclusive():
            self.check_whole("compute")
            run = await self.runtime.start(program, self.demand(program), inputs, outputs)
            try:
                await run.finish()
            except BaseException as error:
                await under_shield(self.abandon(run, error))
                raise
            return run.numbers

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """End a run that failed or was given up, on the device's loop; the model is torn if the run lost weights or moments."""
        own = set(self.parameters.states())
        lost = [tile for tile in await run.abandon() if tile in own]
        if isinstance(why, StalledError):
            self.tear(str(why))
            return
        if isinstance(why, Exception):
            tell_failed(self.runtime, self.name, why)
        if lost:
            self.tear(f"tile {lost[0].name} was lost between two tiers" + (f" ({why})" if why else ""))


def _weights_of(parameter: Parameter) -> Iterator[Tile]:
    return chain(parameter.weights.values(), parameter.copies.values())


def _key(
    parameters: Parameters, kind: str, rows: Rows, kept: int, on_host: frozenset[Tile], carriers: tuple[int, ...]
) -> Hashable:
    """Return the key of a program among those of one model: every argument of its recording that may differ.

    If the first device carries all, the program is the one without carriers.
    """
    others = carriers if any(carriers) else ()
    return parameters.tuning, kind, rows.shape, len(rows.passes), kept, on_host, others
