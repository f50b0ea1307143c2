"""Models in the Hugging Face GPT-2 layout, read and written tile by tile.

Read also: keys without the `transformer.` prefix, the causal masks `h.*.attn.bias` of old files (ignored), a shard
index, a tied `lm_head.weight`. The file format is asynctile/storage/tensors.py.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import CheckpointError
from asynctile.layers.config import GPT2Config
from asynctile.layers.parameters import Parameter, Parameters
from asynctile.layers.tiling import Tiling
from asynctile.storage.folder import read_json, replace_folder, write_json
from asynctile.storage.tensors import TensorReader, TensorWriter

if TYPE_CHECKING:
    from asynctile.layers.gpt2 import GPT2

PREFIX = "transformer."
HEAD = "lm_head.weight"
WTE = "transformer.wte.weight"


class Pretrained:
    """A model folder, checked whole on opening: config, names, shapes, a tied head. A context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise CheckpointError(f"{path} is no folder: expected one with config.json and model.safetensors")
        values = read_json(self.path / "config.json")
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.path / 'config.json'} holds no JSON object; it should be a model's config")
        self.config = GPT2Config.from_hf(values)
        if any(self.config.pdrops.values()):
            warnings.warn(f"dropout of {self.path / 'config.json'} is kept for saving, never applied", stacklevel=2)
        self._reader = TensorReader(self.path)
        try:
            self._names = self._match()
        except BaseException:
            self._reader.close()
            raise

    def read(self, parameter: Parameter, key: tuple[int, int]) -> NDArray[np.float32]:
        """One tile, float32."""
        return self._reader.read(self._names[parameter.name], parameter.index(*key))

    def _match(self) -> dict[str, str]:
        """Our names -> the file's. CheckpointError for missing tensors, other shapes or an untied head."""
        found = set(self._reader.names())
        names = {}
        for name, parameter in Parameters(self.config, Tiling(self.config)).items():
            stored = name if name in found else name.removeprefix(PREFIX)
            if stored not in found and name == WTE and HEAD in found:
                stored = HEAD
            if stored not in found:
                raise CheckpointError(f"{self.path} has no tensor {name}, which its config.json asks for")
            shape = self._reader.shape(stored)
            if shape != parameter.shape:
                raise CheckpointError(f"{self.path}: {stored} has shape {shape}, its config asks for {parameter.shape}")
            names[name] = stored
        self._check_tied(found, names[WTE])
        return names

    def _check_tied(self, found: set[str], wte: str) -> None:
        if HEAD not in found or wte == HEAD:
            return
        rows = self._reader.shape(wte)[0]
        same = self._reader.shape(HEAD) == self._reader.shape(wte)
        step = 1024
        for start in range(0, rows if same else 0, step):
            part = (slice(start, min(start + step, rows)), slice(0, self.config.n_embd))
            if not np.array_equal(self._reader.read(HEAD, part), self._reader.read(wte, part)):
                same = False
                break
        if not same:
            raise CheckpointError(f"{self.path}: {HEAD} differs from {wte}; only models with a tied head can be loaded")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()


async def save_pretrained(model: GPT2, path: str | os.PathLike[str]) -> None:
    """Write `model` to the folder `path`, put in place whole."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    async with replaced(final) as folder:
        await write_weights(model, folder)
    model.last_checkpoint = str(final)


@asynccontextmanager
async def replaced(final: Path) -> AsyncIterator[Path]:
    """`replace_folder` with its file work in a thread: syncing a checkpoint takes seconds."""
    context = replace_folder(final)
    folder = await asyncio.to_thread(context.__enter__)
    try:
        yield folder
    except BaseException as error:
        await asyncio.to_thread(context.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(context.__exit__, None, None, None)


async def write_weights(model: GPT2, folder: Path) -> None:
    """config.json and model.safetensors in `folder`."""
    write_json(folder / "config.json", model.config.to_hf())
    await write_tensors(model, folder / "model.safetensors", ("weights",))


async def write_tensors(model: GPT2, path: Path, families: tuple[str, ...]) -> None:
    """Tensors of `families` ("weights", "exp_avg", "exp_avg_sq"), one tile in memory at a time."""
    tensors: dict[str, Any] = {
        tensor_name(parameter.name, family): (np.float32, parameter.shape)
        for parameter in model.parameters.values()
        for family in families
    }
    writer = await asyncio.to_thread(TensorWriter, path, tensors, {"format": "pt"})
    try:
        for parameter in model.parameters.values():
            for family in families:
                for key, tile in getattr(parameter, family).items():
                    piece = await model.engine.read(tile)
                    name = tensor_name(parameter.name, family)
                    await asyncio.to_thread(writer.write, name, parameter.index(*key), piece)
        await asyncio.to_thread(writer.close)
    finally:
        writer.discard()  # does nothing once it is closed


def tensor_name(parameter: str, family: str) -> str:
    """Name in the file: weights keep theirs, moments carry the family behind it."""
    return parameter if family == "weights" else f"{parameter}.{family}"
