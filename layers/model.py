"""A model whose tiles live on an engine: creation, logits, loss, generation, exchange with Hugging Face files.

Its family is that of its configuration (architectures.py): users know the class as GPT2. What a step computes is recorded by
step.py, training is trainer.py, files are exchange.py.

Long because a model is one object to its users: making, reading, writing, computing and letting go are its methods.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.errors import StalledError, TornModelError
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers.batch import check_tokens, loss_inputs, token_inputs
from asynctile.layers.companions import Companions, checked
from asynctile.layers.config import WEIGHT_NBYTES, Config, check_seed
from asynctile.layers.exchange import Pretrained, check_place, replaced, write_model
from asynctile.layers.floor import floor_demand
from asynctile.layers.generation import written
from asynctile.layers.guesses import Continuation, answering
from asynctile.layers.parameters import MOMENTS, Parameter, Parameters, initial_piece
from asynctile.layers.programs import Programs
from asynctile.layers.requests import check_context, check_count, check_kind
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.server import Server
from asynctile.layers.serving import MOST, Serving
from asynctile.layers.source import InPlace, Source
from asynctile.layers.step import record
from asynctile.layers.telling import tell_failed, tell_torn, told_save
from asynctile.layers.tiling import Tiling
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.versions import Versions
from asynctile.loop.exclusive import Exclusive
from asynctile.loop.files import Files
from asynctile.loop.thread import under_shield
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.repeat.job import Job
from asynctile.share import Share
from asynctile.storage.demand import Demand
from asynctile.storage.input import shown
from asynctile.storage.tile import Tile

#: Up to so many tiles are counted one by one, which says exactly what fits.
COUNTED_TILES = 10_000
_NUMBERS = itertools.count(1)


def check_engine(engine: object) -> None:
    """TypeError for what no model can stand on."""
    check_kind("engine", engine, Share, "an Engine that is open, or a share of one")


def check_room(engine: Share, tiling: Tiling, nbytes: int) -> None:
    """BudgetError, without a look at single tiles, if a large model at `nbytes` a parameter fits nowhere at all."""
    if tiling.count > COUNTED_TILES:
        engine.check_room(nbytes * tiling.config.parameter_count)


@answering
class Model:
    """Made by `await GPT2.create(...)` or `await GPT2.from_pretrained(...)`, inside an open engine.

    in_training: a Trainer was made for it, and its moments count. has_moments: they have values. step_count: updates done, by
    whichever Trainers.
    torn: None, or why weights and moments are of no single step (then step, save and logits refuse).
    name: for events and logs, "gpt2-1" for the first of a process; it may be set.
    last_checkpoint: where the model was last saved to or loaded from, for that message.
    """

    def __init__(self, engine: Share, config: Config, tile: int | None = None) -> None:
        self.engine = engine
        self.config = config
        self.name: str = f"{config.model_type}-{next(_NUMBERS)}"
        self.tiling: Tiling = Tiling(config, tile, engine.grain)
        check_room(engine, self.tiling, WEIGHT_NBYTES)
        self.parameters: Parameters = Parameters(config, self.tiling, engine.precision)
        self.in_training: bool = False
        self.has_moments: bool = False
        self.step_count: int = 0
        self.torn: str | None = None
        self.last_checkpoint: str | None = None
        #: held by whoever changes the weights or must see those of one step
        self.changing: Exclusive = engine.lock("a model")
        self.companions = {}
        #: versions of the weights on other shares
        self.followers: list[Versions] = []
        self._programs = Programs()
        #: texts that follow from the weights as they are
        self.readers = 0
        self._serving = Serving(InPlace(self))
        self._demands: WeakKeyDictionary[Program, Demand] = WeakKeyDictionary()

    def __repr__(self) -> str:
        """Its name for events and logs, how large it is, where it stands and how far it is trained."""
        torn = "" if self.torn is None else ", torn"
        return (f"<{type(self).__name__} {self.name}: {self.config.parameter_count:,} parameters, {self.config.summary}; on "
                f"{self.engine.device} after step {self.step_count}{torn}>")

    @classmethod
    async def create(cls, engine: Share, config: Config, *, seed: int = 0, tile: int | None = None) -> Self:
        """A new model: same seed, same weights, whatever the budget and the tile. seed: a whole number of at least 0.

        BudgetError, before any work, if the engine's caps are below the floor; TypeError for what is no engine, no
        configuration or no whole number.
        """
        check_engine(engine)
        check_kind("config", config, Config, "a GPT2Config, such as GPT2Config.named('gpt2')")
        seed = check_seed(seed)

        async def job() -> Self:
            model = cls(engine, config, tile)
            await model.set_weights(lambda parameter, key: initial_piece(parameter, parameter.index(*key), seed))
            return model

        return await engine.call(job(), undo=cls.release)

    @classmethod
    async def from_pretrained(cls, engine: Share, path: str | os.PathLike[str], *, tile: int | None = None) -> Self:
        """A model in the Hugging Face layout: a folder with config.json and model.safetensors (or shards).

        CheckpointError if files are missing, damaged or of another shape; ValueError for variants that compute
        something else (an untied head, another activation); TypeError for what is no engine.
        """
        check_engine(engine)

        async def job() -> Self:
            files = engine.files(f"the load of {os.fspath(path)}")
            with ExitStack() as opened:  # entered in the thread: it is closed though the load was cancelled meanwhile
                source = await files.run(lambda: opened.enter_context(Pretrained(path, files.tick)))
                model = cls(engine, source.config, tile)
                model.companions = source.companions
                await model.set_weights(source.read, files)
            model.last_checkpoint = str(path)
            return model

        return await engine.call(job(), undo=cls.release)

    async def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and `companions` in the Hugging Face layout, beside `path`, then renamed
        into it.
        """
        final = Path(path)

        async def job() -> None:
            async with self.changing.held():
                self.check_whole("save")
                files = self.engine.files(f"the save of {final}")
                await files.run(check_place, final)
                nbytes = WEIGHT_NBYTES * self.config.parameter_count
                with told_save(self.engine, self.name, final, self.step_count, behind=False):
                    async with replaced(final, nbytes, files, partial(self.saved_to, final)) as folder:
                        await write_model(folder, self.parameters, self.companions, self.engine.read, files)

        await self.engine.call(job())

    def saved_to(self, path: Path) -> None:
        """From now on `path` is where to go back to."""
        self.last_checkpoint = str(path)

    async def set_weights(self, value: Any, files: Files | None = None) -> None:
        """On the device's loop: give every weight tile value(parameter, (i, j)), and so its copy, tile by tile.

        files: reads them, for values that come from files; else they are computed.
        """
        self.check_floor()
        await self.engine.reserve(demand_of([], self.weights()))
        made = self.engine.compute if files is None else files.run

        async def tiles() -> AsyncGenerator[tuple[Tile, NDArray[Any]]]:
            for parameter in self.parameters.values():
                for key, tile in parameter.weights.items():
                    piece = parameter.padded(await made(value, parameter, key), *key)
                    yield tile, piece
                    if key in parameter.copies:
                        yield parameter.copies[key], to_bf16(piece)

        try:
            await self.engine.store(tiles())
        except BaseException:
            await under_shield(self.release())
            raise

    async def prepare_moments(self, value: Any = None, files: Files | None = None) -> None:
        """On the device's loop: create the moments: zeros, or value(parameter, family, key), which `files` reads."""
        if self.has_moments:
            return
        await self.engine.reserve(demand_of([], self.parameters.states()))

        async def tiles() -> AsyncGenerator[tuple[Tile, NDArray[Any]]]:
            for parameter in self.parameters.values():
                for family in MOMENTS:
                    for key, tile in getattr(parameter, family).items():
                        array = np.zeros(tile.shape, np.float32)
                        if files is not None:
                            array = parameter.padded(await files.run(value, parameter, family, key), *key)
                        yield tile, array

        await self.engine.store(tiles())
        self.has_moments = True

    @property
    def companions(self) -> Companions:
        """Files for others that stand beside the weights, bytes by name: the tokenizer's, generation_config.json, README.md.

        Read by `from_pretrained` and `Trainer.load`, written by every save as they stand then. Assign a mapping to change
        them; the names that there are, and their sizes, are in companions.py, and others raise ValueError.
        """
        return self._companions

    @companions.setter
    def companions(self, files: Companions) -> None:
        self._companions = checked(files)

    def weights(self) -> Iterator[Tile]:
        """Every weight tile, and their copies."""
        return self.parameters.weights()

    def standing(self) -> Iterator[Tile]:
        """Every tile that stays between runs: weights, and moments once the model is in training."""
        return self.parameters.states() if self.in_training else self.weights()

    def train(self) -> None:
        """From now on count the moments among what stands."""
        if not self.in_training:
            self.in_training = True
            self._demands.clear()

    async def publish(self) -> None:
        """On the device's loop, inside `changing`, behind a step: let those who follow the weights have them."""
        for versions in list(self.followers):
            await versions.follow()

    def check_floor(self) -> None:
        """BudgetError if the device cap is below the model's floor."""
        engine = self.engine
        engine.check_floor(floor_demand(self.config, self.tiling.tile, engine.grain, engine.precision))

    def tear(self, why: str) -> None:
        """From now on it is torn."""
        self.torn = why
        tell_torn(self.engine, self.name, why)

    def check_whole(self, wish: str) -> None:
        """TornModelError if a step broke off after its first update."""
        if self.torn is not None:
            raise TornModelError(f"cannot {wish}: {self.torn_message()}")

    def torn_message(self) -> str:
        """Why it is torn, and the way out."""
        return f"{self.torn}; load the last checkpoint ({self.last_checkpoint or 'none was saved'})"

    async def recorded(
        self,
        kind: str,
        batch: int,
        length: int,
        micro_batches: int = 1,
        kept: int = 0,
        on_host: frozenset[Tile] = frozenset(),
        passes: int | None = None,
    ) -> Program:
        """On the device's loop: `program`, in a thread if it has to be recorded, and at once while it is kept."""
        key = (kind, batch, length, micro_batches, kept, on_host, passes)
        found = self._programs.kept(key)
        return await self.engine.compute(self.program, *key) if found is None else found

    def program(
        self,
        kind: str,
        batch: int,
        length: int,
        micro_batches: int = 1,
        kept: int = 0,
        on_host: frozenset[Tile] = frozenset(),
        passes: int | None = None,
    ) -> Program:
        """The recorded program of this kind and shape; recorded once while it is kept.

        kept: how many parts keep their activations, as in `record`. on_host: weight tiles that are updated on the host. passes:
        through each block; None for one each micro-batch.
        """
        key = (kind, batch, length, micro_batches, kept, on_host, passes)

        def recorded() -> Program:
            rows = self.tiling.rows(batch, length, micro_batches)
            rows = rows if passes is None else rows.in_passes(passes)
            return record(kind, self.parameters, rows, kept=kept, on_host=on_host)

        return self._programs.get(key, recorded)

    def demand(self, program: Program, also: Iterable[Tile] = ()) -> Demand:
        """What the program asks of an arena beside the tiles that stand, and `also`, which are its own; measured once."""
        if program not in self._demands:
            self._demands[program] = demand_of([program], chain(self.standing(), also))
        return self._demands[program]

    async def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Every tensor whole, float32, by Hugging Face name (the tied lm_head is transformer.wte.weight)."""

        async def job() -> dict[str, NDArray[np.float32]]:
            async with self.changing.held():
                return {name: await self.gather(item, item.weights) for name, item in self.parameters.items()}

        return await self.engine.call(job())

    async def gather(self, parameter: Parameter, tiles: dict[tuple[int, int], Tile]) -> NDArray[np.float32]:
        """One tensor from its tiles."""
        whole = np.empty(parameter.shape, np.float32)
        for (i, j), piece in zip(tiles, await self.engine.read_all(tiles.values()), strict=True):
            whole[parameter.index(i, j)] = parameter.cut(piece, i, j)
        return whole

    async def logits(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Logits (B, T, V), float32, of token ids (B, T)."""
        ids = check_tokens("tokens", tokens, self.config)
        flat = np.empty((ids.size, self.config.vocab_size), np.float32)

        async def job() -> None:
            rows = self.tiling.rows(*ids.shape)
            program = await self.recorded("logits", *ids.shape)
            await self.run(program, token_inputs(rows, ids), {"logits": flat})

        await self.engine.call(job())
        return flat.reshape(*ids.shape, self.config.vocab_size)

    async def loss(self, tokens: ArrayLike, targets: ArrayLike) -> float:
        """Mean cross-entropy in nats over targets (B, T) that are not -100."""
        ids = check_tokens("tokens", tokens, self.config)
        wanted = check_tokens("targets", targets, self.config, ignored=True)
        rows = self.tiling.rows(*ids.shape)
        inputs, count = loss_inputs(rows, ids, wanted)
        del inputs["scale"]  # only a gradient is scaled

        async def job() -> float:
            program = await self.recorded("loss", *ids.shape)
            numbers = await self.run(program, inputs, {})
            return sum(numbers[: len(program.numbers)].tolist()) / count

        return await self.engine.call(job())

    def generate(
        self,
        prompt_ids: Sequence[int] | NDArray[Any],
        *,
        max_new_tokens: int = 50,
        temperature: float = 0.8,
        top_k: int | None = 50,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[int]:
        """Yield new token ids one by one; the last block_size tokens are the context. Options are those of `Sampling`.

        prompt_ids (T,) may be longer: what stands before the context is neither looked at nor kept. Up to block_size tokens in
        all, keys and values are kept in a cache, and texts that are asked for at once are computed together, MOST of them;
        beyond, each token is computed from its whole context. Neither changes which tokens a seed gives. A step in between is
        allowed for: the cache is made anew. ValueError or TypeError, at once, for wrong arguments.
        """
        seen = check_context("prompt_ids", prompt_ids, self.config)
        count = check_count("max_new_tokens", max_new_tokens, 0)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                            repetition_penalty=repetition_penalty, seed=seed)  # fmt: skip
        block_size = self.config.block_size
        return Continuation(written(seen, count, Sampler(sampling), block_size, self._serving, self.logits))

    def serve(
        self,
        share: Share | None = None,
        *,
        most: int = MOST,
        cache: int | str | None = None,
        tokenizer: Tokenizer | None = None,
        weights: str = "newest",
    ) -> Server:
        """Serve texts for many at once: `async with model.serve() as server`; see `Server`, for most, cache and tokenizer.

        share: None: that of the model; texts are computed between its steps, for a part of the time of each, and each makes
        every cache that is in use anew. Another share of the same engine: it holds copies of the weights, and texts are written
        beside steps. weights: "newest": behind a step its weights are published, and texts that begin later follow from them,
        while each text follows from those that it began with; so there are two copies. "opened": those of the moment when the
        server opens, one copy.
        ValueError for a share of another engine, or for other weights.
        """
        if not isinstance(weights, str) or weights not in ("newest", "opened"):
            raise ValueError(f"weights is {shown(weights)}, expected 'newest' or 'opened'")
        source: Source = InPlace(self)
        if share is not None and share is not self.engine:
            check_kind("share", share, Share, "a share of the model's engine, or None for the model's own")
            share.check_beside(self.engine)
            source = Versions(self, share, follows=weights == "newest")
        return Server(source, most=most, cache=cache, tokenizer=tokenizer)

    @property
    def version(self) -> int:
        """Of the weights: another number after every change of them."""
        return self.step_count

    async def release(self) -> None:
        """Free every tile of the model; it cannot be used afterwards."""
        self.torn = "the model was released"
        await self.engine.release(self.parameters.states())

    async def run(self, program: Program, inputs: dict[str, Any], outputs: dict[str, Any]) -> NDArray[np.float64]:
        """On the engine's loop: a program that changes no weights."""
        async with self.engine.exclusive():
            self.check_whole("compute")
            run = await self.engine.start(program, self.demand(program), inputs, outputs)
            try:
                await run.finish()
            except BaseException as error:
                await under_shield(self.abandon(run, error))
                raise
            return run.numbers

    async def abandon(self, run: Job, why: BaseException | None = None) -> None:
        """On the engine's loop: end a run that failed or was given up; the model is torn if that lost weights."""
        own = set(self.parameters.states())
        lost = [tile for tile in await run.abandon() if tile in own]
        if isinstance(why, StalledError):
            self.tear(str(why))
            return
        if isinstance(why, Exception):
            tell_failed(self.engine, self.name, why)
        if lost:
            self.tear(f"tile {lost[0].name} was lost between two tiers" + (f" ({why})" if why else ""))
