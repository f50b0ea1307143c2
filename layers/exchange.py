"""Models in the Hugging Face layout of their family, read and written tile by tile.

Also read: keys without the family's prefix (`transformer.`), buffers of old files (ignored), a shard index, and a tied head
stored under its own name. asynctile/storage/tensors.py defines the file format.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import CheckpointError
from asynctile.layers.architectures import architecture_of, config_from_hf
from asynctile.layers.companions import Companions, companions_to_write, read_companions
from asynctile.layers.config import Config
from asynctile.layers.layout import shapes, tensor_count
from asynctile.layers.parameters import Parameter, Parameters
from asynctile.loop.files import Files
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import CHECKSUMS, check_files, checksum, checksum_record
from asynctile.storage.container import free_nbytes
from asynctile.storage.documents import finish, store_file, store_json
from asynctile.storage.folder import encode_json, read_json, replace_folder
from asynctile.storage.input import DOCUMENT_NBYTES, parse_json, shown
from asynctile.storage.sizes import format_size
from asynctile.storage.tensors import TensorReader, TensorWriter
from asynctile.storage.tile import Tile

#: Reads a tile's bytes, from the engine or from a snapshot.
ReadTile = Callable[[Tile], Awaitable[NDArray[Any]]]
CONFIG, WEIGHTS = "config.json", "model.safetensors"
#: How many other tensors a file may have: an untied head, other heads.
FOREIGN = 16


class Pretrained:
    """An open model folder, checked as a whole: config, names, shapes, checksums if it has them, and a tied head.

    A context manager. companions: the files beside the weights, by name.
    """

    def __init__(self, path: str | os.PathLike[str], tick: Callable[[], object] = bool) -> None:
        """Open and check the folder `path`. tick: called repeatedly while files are read."""
        self._tick = tick
        self.path = whole_folder(path)
        if not self.path.is_dir():
            raise CheckpointError(f"{path} is not a folder: expected a folder with config.json and model.safetensors")
        check_files(self.path, (CONFIG,), tick, limit=DOCUMENT_NBYTES)
        values = read_json(self.path / CONFIG)
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.path / CONFIG} is not a JSON object; expected a model's configuration")
        try:
            self.config = config_from_hf(values)
        except ValueError as error:
            raise ValueError(f"{self.path / CONFIG}: {error}") from error
        self._architecture = architecture_of(self.config)
        self.companions = read_companions(self.path, tick)
        buffers = self.config.n_layer * self._architecture.block_buffers
        self._reader = TensorReader(self.path, most=tensor_count(self.config) + buffers + FOREIGN)
        try:
            self._names = self._match()
            check_files(self.path, (WEIGHTS,), tick)  # after _match: a file of the wrong length is found without reading it
            self._check_tied()
        except BaseException:
            self._reader.close()
            raise

    def read(self, parameter: Parameter, key: tuple[int, int]) -> NDArray[np.float32]:
        """Return one tile of a parameter, float32."""
        return self._reader.read(self._names[parameter.name], parameter.index(*key))

    def _match(self) -> dict[str, str]:
        """Return the file's name of each of our tensors. CheckpointError for missing tensors or other shapes."""
        found = set(self._reader.names())
        names = {}
        # Lazily, up to the first missing tensor: a config that claims too many layers costs nothing.
        for name, expected in shapes(self.config):
            others = (other for other, tensor in self._architecture.repeated.items() if tensor == name)
            stored = next((key for key in (name, name.removeprefix(self.config.prefix), *others) if key in found), None)
            if stored is None:
                raise CheckpointError(f"{self.path} has no tensor {name}, which its config.json requires")
            shape = self._reader.shape(stored)
            if shape != expected:
                raise CheckpointError(f"{self.path}: {stored} has shape {shown(shape)}, its config.json requires {expected}")
            names[name] = stored
        return names

    def _check_tied(self) -> None:
        found = set(self._reader.names())
        for other, tensor in self._architecture.repeated.items():
            stored = self._names[tensor]
            if other in found and stored != other and not self._same(other, stored):
                raise CheckpointError(f"{self.path}: {other} differs from {stored}; only models with a tied head "
                                      "can be loaded, so choose another")

    def _same(self, one: str, other: str) -> bool:
        """Return whether two matrices of the file are equal."""
        rows, columns = self._reader.shape(other)
        if self._reader.shape(one) != (rows, columns):
            return False
        step = 1024
        for start in range(0, rows, step):
            self._tick()
            part = (slice(start, min(start + step, rows)), slice(0, columns))
            if not np.array_equal(self._reader.read(one, part), self._reader.read(other, part)):
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()


def check_place(final: Path) -> None:
    """Raise ValueError if saving to `final` would replace something that is not an older save."""
    if final.exists() and not final.is_dir():
        raise ValueError(f"{final} is a file; expected a folder or a path that does not exist yet")
    if final.is_dir() and not (final / CONFIG).exists():
        for foreign in final.iterdir():
            raise ValueError(
                f"{final} contains {foreign.name} and no model, and a save replaces the whole folder; name a folder that is "
                "empty, does not exist yet or is an older save"
            )


@asynccontextmanager
async def replaced(final: Path, nbytes: int, files: Files, done: Callable[[], None]) -> AsyncIterator[Path]:
    """Yield a folder for about `nbytes`, which becomes `final` at the end.

    done: called once the folder is in place, even if the save is cancelled meanwhile. This is `replace_folder` with its file
    work in threads, because syncing a checkpoint takes seconds. CheckpointError, with the free space, for every failure of the
    disk.
    """
    context = replace_folder(final)

    async def put_in_place() -> None:
        await files.run(context.__exit__, None, None, None)
        done()

    try:
        try:
            yield await files.run(context.__enter__)
            await finish(put_in_place())
        except BaseException as error:
            await files.run(context.__exit__, type(error), error, error.__traceback__)
            raise
    except (CheckpointError, OSError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        free = await files.run(_room, final)
        way = "Make room if the disk is full, or save to another folder"
        if reason.errno == errno.EFBIG:
            way = "Raise the limit of this process on the size of a file (ulimit -f)"
        raise CheckpointError(
            f"cannot save {final}: {reason.strerror or reason} (the save needs {format_size(nbytes)}, and "
            f"{format_size(free)} are free there). The previous save is untouched. {way}"
        ) from error


def _room(path: Path) -> int:
    """Return the free bytes on the disk of `path`, which need not exist itself."""
    return free_nbytes(str(next(folder for folder in path.absolute().parents if folder.exists())))


async def write_model(folder: Path, parameters: Parameters, companions: Companions, read: ReadTile, files: Files) -> None:
    """Write config.json, the companions and model.safetensors into `folder`."""
    await store_file(folder / CONFIG, _encoded(parameters.config), executor=files)
    for name, content in companions_to_write(parameters.config, companions).items():
        await store_file(folder / name, content, executor=files)
    await write_tensors(folder / WEIGHTS, parameters, ("weights",), read, files)


async def write_checksums(folder: Path, files: Files, done: Callable[[int], object] = lambda nbytes: None) -> None:
    """Write checksums.json, with the checksum of each file of `folder`.

    done: called with the size of each file in bytes, once the file has been read.
    """
    sums = {}
    for path in await files.run(lambda: sorted(folder.iterdir())):
        sums[path.name] = await files.run(checksum, path, files.tick)
        done((await files.run(path.stat)).st_size)
    await store_json(folder / CHECKSUMS, checksum_record(sums), executor=files)


def _encoded(config: Config) -> bytes:
    """Return config.json as bytes; ValueError if it would be read back as another configuration, or not at all."""
    values = config.to_hf()
    content = encode_json(values)
    try:
        if len(content) > DOCUMENT_NBYTES:
            raise ValueError(f"{len(content)} bytes of JSON, expected at most {DOCUMENT_NBYTES}")
        found = config_from_hf(parse_json(content)).to_hf()
        changed = [name for name, value in values.items() if found.get(name) != value]
        if changed:
            raise ValueError(f"{', '.join(changed)} would be read back with another value")
    except ValueError as error:
        raise ValueError(f"the model was not saved, because its config.json could not be read back: {error}; "
                         "correct this value; the previous save is untouched") from error
    return content


async def write_tensors(
    path: Path, parameters: Parameters, families: tuple[str, ...], read: ReadTile, files: Files
) -> None:
    """Write the tensors of `families` ("weights", "exp_avg", "exp_avg_sq"), tile by tile as `read` returns them."""
    tensors: dict[str, Any] = {
        tensor_name(parameter.name, family): (np.float32, parameter.shape)
        for parameter in parameters.values()
        for family in families
    }
    unfinished = ExitStack()

    def begin() -> TensorWriter:
        writer = TensorWriter(path, tensors, {"format": "pt"}, files.tick)
        unfinished.callback(writer.discard)  # does nothing once the writer is closed
        return writer

    try:
        writer = await files.run(begin)
        for parameter in parameters.values():
            for family in families:
                name = tensor_name(parameter.name, family)
                for key, tile in getattr(parameter, family).items():
                    piece = parameter.cut(await read(tile), *key)
                    await files.run(writer.write, name, parameter.index(*key), piece)
        await files.run(writer.close)
    finally:
        await files.run(unfinished.close)


def tensor_name(parameter: str, family: str) -> str:
    """Return a tensor's name in the file: weights keep their name, moments append the family."""
    return parameter if family == "weights" else f"{parameter}.{family}"
