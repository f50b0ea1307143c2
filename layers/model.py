"""A model as users see it: creation, logits, loss, generation, serving, exchange with Hugging Face files.

The configuration says which family a model belongs to (architectures.py). Its tiles and programs are in model_state.py,
training is in trainer.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.adapter_files import ADAPTER_CONFIG, AdapterFiles, write_adapter
from asynctile.layers.architectures import architecture_of
from asynctile.layers.batch import check_positions, check_tokens, loss_inputs, token_inputs
from asynctile.layers.companions import Companions, checked
from asynctile.layers.config import Config, check_count, check_seed
from asynctile.layers.exchange import CONFIG, Pretrained, check_place, replaced
from asynctile.layers.generation import written
from asynctile.layers.guesses import Continuation, answering
from asynctile.layers.lora import LoRA
from asynctile.layers.model_state import ModelState
from asynctile.layers.parameters import initial_piece
from asynctile.layers.requests import check_context, check_kind
from asynctile.layers.sampling import Sampler, Sampling
from asynctile.layers.server import Server
from asynctile.layers.serving import MOST, Serving
from asynctile.layers.source import InPlace, Source
from asynctile.layers.telling import told_save
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.versions import Versions
from asynctile.layers.weight_dtype import DTYPES, FLOAT32, STORED, check_dtype, check_kept
from asynctile.layers.weight_files import SHARD_NBYTES, write_checksums, write_model
from asynctile.loop.files import Files
from asynctile.share import Share, runtime_of
from asynctile.storage.input import shown


@answering
class Model:
    """A model on an open engine. Make it with `await Model.create(...)` or `await Model.from_pretrained(...)`.

    The configuration says which family it belongs to; a GPT-2 is a `GPT2`. To train it, make a `Trainer` of it. engine: the
    engine, or share of one, that it was made on. config: its configuration.
    """

    def __init__(self, engine: Share, state: ModelState) -> None:
        check_kind("state", state, ModelState, "the inside of a model; make a model with await Model.create(engine, config)")
        self.engine = engine
        self.config: Config = state.config
        self._state = state
        self._serving = Serving(InPlace(state))

    def __repr__(self) -> str:
        """Return the name, size, device and step count of the model."""
        torn = "" if self.torn is None else ", torn"
        return (f"<{type(self).__name__} {self.name}: {self.config.parameter_count:,} parameters, {self.config.summary}; on "
                f"{self.engine.device} after step {self.step_count}{torn}>")

    @classmethod
    def _of_state(cls, engine: Share, state: ModelState) -> Self:
        """Return a model with this inside: of the class of its family, unless `cls` is a narrower one."""
        known = model_class(state.config)
        return (known if issubclass(known, cls) else cls)(engine, state)

    @classmethod
    def _check_family(cls, config: Config, place: str) -> None:
        """Raise ValueError if models of this class have no such configuration. place: where it is from."""

    @classmethod
    async def create(cls, engine: Share, config: Config, *, seed: int = 0, tile: int | None = None) -> Self:
        """Make a new model: the same seed gives the same weights, whatever the budget and the tile.

        seed: a whole number of at least 0. tile: edge of the weight tiles in elements; None: a good one for the device.
        BudgetError, before any work, if the engine's caps are below the floor; TypeError for arguments of other types.
        """
        runtime = runtime_of(engine)
        check_kind("config", config, Config, "a GPT2Config, such as GPT2Config.named('gpt2')")
        cls._check_family(config, "config")
        seed = check_seed(seed)

        async def job() -> Self:
            state = ModelState(runtime, config, tile)
            await state.set_weights(lambda parameter, key: initial_piece(parameter, parameter.index(*key), seed))
            return cls._of_state(engine, state)

        return await runtime.call(job(), undo=cls.release)

    @classmethod
    async def from_pretrained(
        cls, engine: Share, path: str | os.PathLike[str], *, tile: int | None = None, weights: str = FLOAT32
    ) -> Self:
        """Load a model in the Hugging Face layout: a folder with config.json and model.safetensors (or shards).

        weights: "float32" converts every weight, exactly. "stored" keeps the matrices that the file has in bfloat16 as they
        are, in half the memory, for texts, logits and losses with the same bits; such matrices cannot be trained.

        CheckpointError if files are missing, damaged or of another shape; ValueError for variants that compute something else
        (another activation, quantised weights) or another value of weights; BudgetError as `create`; TypeError unless `engine`
        is an engine or a share.
        """
        runtime, is_stored = runtime_of(engine), check_kept(weights) == STORED

        async def job() -> Self:
            files = runtime.files(f"the load of {os.fspath(path)}")
            with ExitStack() as opened:  # entered in the thread, so that a cancelled load closes it too
                source = await files.run(lambda: opened.enter_context(Pretrained(path, files.tick)))
                cls._check_family(source.config, f"the model in {source.path}")
                state = ModelState(runtime, source.config, tile, source.stored if is_stored else frozenset())
                state.companions = checked(source.companions)
                state.base = await files.run(source.base)
                await state.set_weights(source.read, files)
            state.last_checkpoint = str(path)
            return cls._of_state(engine, state)

        return await runtime.call(job(), undo=cls.release)

    async def load_adapter(self, path: str | os.PathLike[str]) -> None:
        """Load an adapter from a folder in PEFT's format, such as `save_adapter` or PEFT writes, onto a model that has none.

        Logits, losses and texts use the adapter from then on, and a Trainer of the model trains it. Dropout that the folder
        asks for is never applied.

        CheckpointError if files are missing, damaged or of another base; ValueError for an adapter that computes something
        else, or if the model has one already; BudgetError if the adapter does not fit. The model is then as it was.
        """
        state = self._state
        runtime = state.runtime

        async def job() -> None:
            files = runtime.files(f"the load of {os.fspath(path)}")
            with ExitStack() as opened:
                source = await files.run(lambda: opened.enter_context(AdapterFiles(path, self.config, files.tick)))
                source.check_base(state.base)
                await state.adapt(source.lora, source.read, files)

        await runtime.call(job())

    async def save_adapter(self, path: str | os.PathLike[str]) -> None:
        """Write the model's adapter in PEFT's format, with `companions`, and checksums.json of all files.

        adapter_config.json names the folder that the base was loaded from. The folder is put in place whole, as by
        `save_pretrained`.

        ValueError if the model has no adapter, or if `path` is a file or holds other things than an older adapter;
        CheckpointError if the disk fails or is full; TornModelError if the model is torn.
        """
        final, state = Path(path), self._state
        runtime = state.runtime

        async def job() -> None:
            async with state.changing.held():
                state.check_whole("save")
                await state.tuned()
                if state.parameters.lora is None:
                    raise ValueError("the model has no adapter to save; give Trainer one with adapters=LoRA(...), or call "
                                     "save_pretrained")
                adapters = list(state.parameters.adapters())
                nbytes = sum(tile.nbytes for item in adapters for tile in item.weights.values())
                async with state.reading(adapters) as read, self._saved(final, ADAPTER_CONFIG, nbytes) as (folder, files):
                    await write_adapter(folder, state.parameters, state.base, self.companions, read or runtime.read, files)

        await runtime.call(job())

    async def save_pretrained(self, path: str | os.PathLike[str], *, dtype: str = FLOAT32) -> None:
        """Write config.json, model.safetensors and `companions` in the Hugging Face layout, and checksums.json of all of them.

        dtype: "float32", "float16" or "bfloat16"; the last two round each weight to the nearest, ties to even. More than 5 GB
        of weights are cut into files of at most 5 GB, with an index. The folder is written beside `path` and renamed into place
        when it is whole.

        ValueError if `path` is a file or holds other things, for another dtype, for a weight that the dtype does not reach, or
        for a model with an adapter, which `save_adapter` writes; CheckpointError if the disk fails or is full; TornModelError
        if the model is torn.
        """
        final, state, name = Path(path), self._state, check_dtype(dtype)
        runtime = state.runtime

        async def job() -> None:
            async with state.changing.held():
                state.check_whole("save")
                await state.tuned()
                if state.parameters.lora is not None:
                    raise ValueError("the model has an adapter, which is saved alone; call save_adapter, and add it to the "
                                     "weights of its base with `asynctile merge`")
                nbytes = DTYPES[name].itemsize * self.config.parameter_count
                whole = state.reading(state.parameters.values())
                async with whole as read, self._saved(final, CONFIG, nbytes) as (folder, files):
                    await write_model(folder, state.parameters, self.companions, read or runtime.read, files, dtype=name,
                                      shard_nbytes=SHARD_NBYTES)  # fmt: skip

        await runtime.call(job())

    @asynccontextmanager
    async def _saved(self, final: Path, mark: str, nbytes: int) -> AsyncGenerator[tuple[Path, Files]]:
        """Yield the folder that takes the place of `final`, with the files of the save; then add the checksums.

        mark: as for check_place. nbytes: of the tensors.
        """
        state, files = self._state, self._state.runtime.files(f"the save of {final}")
        await files.run(check_place, final, mark)
        with told_save(state.runtime, self.name, final, self.step_count, behind=False):
            async with replaced(final, nbytes, files, partial(state.saved_to, final)) as folder:
                yield folder, files
                await write_checksums(folder, files)

    @property
    def name(self) -> str:
        """The name in events and logs: "gpt2-1" for the first model of a process. Assign another to change it."""
        return self._state.name

    @name.setter
    def name(self, name: str) -> None:
        self._state.name = name

    @property
    def companions(self) -> Companions:
        """The files kept beside the weights, bytes by name: tokenizer files, generation_config.json, README.md.

        `from_pretrained` and `Trainer.load` read them, and every save writes them as they are then. Assign a mapping to change
        them. ValueError for a name or a size that companions.py does not allow.
        """
        return self._state.companions

    @companions.setter
    def companions(self, files: Companions) -> None:
        self._state.companions = checked(files)

    @property
    def adapter(self) -> LoRA | None:
        """The adapters of the model, from a file or from a Trainer; None if it has none."""
        return self._state.tuning.lora

    @property
    def step_count(self) -> int:
        """The number of updates done, by all Trainers of the model together."""
        return self._state.step_count

    @property
    def torn(self) -> str | None:
        """Why weights and moments belong to no single step, or None. A torn model refuses to step, save and compute."""
        return self._state.torn

    @property
    def last_checkpoint(self) -> str | None:
        """The path that the model was last saved to or loaded from, to go back to when it is torn; None if there is none."""
        return self._state.last_checkpoint

    async def release(self) -> None:
        """Free every tile of the model; it cannot be used afterwards."""
        await self._state.release()

    async def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Return every tensor whole, float32, by Hugging Face name (the tied lm_head is transformer.wte.weight).

        The tensors of adapters are there too, by PEFT's names.
        """
        state = self._state

        async def job() -> dict[str, NDArray[np.float32]]:
            async with state.changing.held():
                await state.tuned()
                async with state.reading(state.parameters.values()) as read:
                    return {name: await state.gather(item, item.weights, read) for name, item in state.parameters.items()}

        return await state.runtime.call(job())

    async def logits(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Return logits (B, T, V), float32, of token ids (B, T)."""
        ids, state = check_tokens("tokens", tokens, self.config), self._state
        flat = np.empty((ids.size, self.config.vocab_size), np.float32)

        async def job() -> None:
            rows = state.tiling.rows(*ids.shape)
            program = await state.forward("logits", rows)
            await state.run(program, token_inputs(rows, ids), {"logits": flat})

        await state.runtime.call(job())
        return flat.reshape(*ids.shape, self.config.vocab_size)

    async def loss(self, tokens: ArrayLike, targets: ArrayLike, positions: ArrayLike | None = None) -> float:
        """Return the mean cross-entropy in nats over the targets (B, T) that are not -100. positions: as for `Trainer.step`."""
        ids, state = check_tokens("tokens", tokens, self.config), self._state
        wanted = check_tokens("targets", targets, self.config, ignored=True)
        places = None if positions is None else check_positions(positions, ids.shape)
        rows = state.tiling.rows(len(ids), ids.shape[1], packed=places is not None)
        inputs, count = loss_inputs(rows, ids, wanted, places)
        del inputs["scale"]  # only a gradient is scaled

        async def job() -> float:
            program = await state.forward("loss", rows)
            numbers = await state.run(program, inputs, {})
            return sum(numbers[: len(program.numbers)].tolist()) / count

        return await state.runtime.call(job())

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
        """Yield new token ids one by one; the last block_size tokens are the context. The options are those of `Sampling`.

        prompt_ids (T,) may be longer than the context: the tokens before it are ignored and not kept. Up to block_size tokens
        in all, keys and values are kept in a cache, and texts that are asked for at once are computed together, 16 at most;
        beyond, each token is computed from its whole context. Neither changes which tokens a seed gives. A training step in
        between is allowed: the cache is then computed anew. ValueError or TypeError for wrong arguments, when this is called.
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
        """Serve texts for many at once: `async with model.serve() as server`. most, cache and tokenizer are those of `Server`.

        share: None serves on the model's own share: texts are computed between its steps, for a part of the time of each, and
        each step makes every cache in use be computed anew. Another share of the same engine holds copies of the weights, and
        texts are written beside steps.

        weights: "newest" publishes the weights of each step to that other share: a text follows from the weights that it began
        with, and texts that begin later from the newer ones, so there are two copies. "opened" keeps one copy, of the weights
        at the moment when the server opens.

        ValueError for a share of another engine, or for another value of weights.
        """
        if not isinstance(weights, str) or weights not in ("newest", "opened"):
            raise ValueError(f"weights is {shown(weights)}, expected 'newest' or 'opened'")
        source: Source = InPlace(self._state)
        if share is not None and share is not self.engine:
            check_kind("share", share, Share, "a share of the model's engine, or None for the model's own")
            runtime = runtime_of(share)
            if runtime.life is not self._state.runtime.life:
                raise ValueError("the share and the model belong to two engines, which have no memory in common; use a share "
                                 "of the model's own engine")
            source = Versions(self._state, runtime, follows=weights == "newest")
        return Server(source, most=most, cache=cache, tokenizer=tokenizer)


def model_class(config: Config) -> type[Any]:
    """Return the class of the models with this configuration: Model, or the one that its family has."""
    module, _, name = architecture_of(config).model.partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


def model_of(engine: Share, state: ModelState) -> Model:
    """Return a model with this inside, of the class of its family."""
    return Model._of_state(engine, state)


def model_state_of(model: Model) -> ModelState:
    """Return the state inside a model; TypeError for another object."""
    check_kind("model", model, Model, "a model, such as Model.create makes")
    return model._state
