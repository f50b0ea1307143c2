"""Models in the Hugging Face layout of their family, read tile by tile; and the folder that a save replaces.

Also read: keys without the family's prefix (`transformer.`), buffers of old files (ignored), a shard index, and a tied head
stored under its own name. weight_files.py writes a model, asynctile/storage/tensors.py defines the file format.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from asynctile.errors import CheckpointError
from asynctile.layers import foreign
from asynctile.layers.architectures import architecture_of, config_from_hf
from asynctile.layers.companions import read_companions
from asynctile.layers.layout import shapes, tensor_count
from asynctile.layers.parameters import Parameter
from asynctile.loop.files import Files
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import check_files
from asynctile.storage.container import free_nbytes
from asynctile.storage.documents import finish
from asynctile.storage.folder import read_json, replace_folder
from asynctile.storage.header import FLOATS
from asynctile.storage.input import DOCUMENT_NBYTES, shown
from asynctile.storage.sizes import format_size
from asynctile.storage.tensors import TensorReader

CONFIG = "config.json"
#: How many other tensors a file may have: an untied head, other heads.
FOREIGN = 16
#: Whole matrices are read in pieces of at most this many bytes, as float32.
PIECE_NBYTES = 16 << 20
#: So many values of each tensor count in a fingerprint.
SAMPLE = 1024


@dataclass(frozen=True, slots=True)
class Base:
    """The folder that weights were read from.

    path: absolute. fingerprint: of the tensors: their names, their shapes, and SAMPLE values of each. Shards and dtypes do not
    count, so models have the same fingerprint if one is a copy of the other.
    """

    path: str
    fingerprint: str


class OpenFolder:
    """A folder with open files of tensors: a context manager, which closes them."""

    _reader: TensorReader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()


class Pretrained(OpenFolder):
    """An open model folder, checked as a whole: config, names, shapes, checksums if it has them, and a tied head.

    companions: the files beside the weights, by name. stored: the matrices that the file has in bf16.
    """

    def __init__(self, path: str | os.PathLike[str], tick: Callable[[], object] = bool) -> None:
        """Open and check the folder `path`. tick: called repeatedly while files are read."""
        self._tick = tick
        self.path = whole_folder(path)
        other = foreign.of_folder(self.path)
        if other is not None:
            raise CheckpointError(other)
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
        architecture = architecture_of(self.config)
        own = {tensor.name for tensor in (*self.config.first_tensors(), *self.config.last_tensors())}
        self._repeated = {other: tensor for other, tensor in architecture.repeated.items() if other not in own}
        self._buffers = architecture.buffers
        self.companions = read_companions(self.path, tick)
        buffers = self.config.n_layer * len(self._buffers)
        self._reader = TensorReader(self.path, most=tensor_count(self.config) + buffers + FOREIGN)
        try:
            self._names = self._match()
            # After _match, so that a file of the wrong length is found without reading it.
            check_files(self.path, self._reader.files, tick)
            self._check_tied()
            self.stored = frozenset(name for name, shape in shapes(self.config)
                                    if len(shape) == 2 and self._reader.dtype(self._names[name]) == "BF16")
        except BaseException:
            self._reader.close()
            raise

    def read(self, parameter: Parameter, key: tuple[int, int]) -> NDArray[Any]:
        """Return one tile of a parameter: float32, or the bits of the file if the parameter keeps bf16."""
        read = self._reader.bits if parameter.stored else self._reader.read
        return read(self._names[parameter.name], parameter.index(*key))

    def piece(self, name: str, index: tuple[slice, ...]) -> NDArray[np.float32]:
        """Return a rectangle of one of our tensors, float32."""
        return self._reader.read(self._names[name], index)

    def dtype(self, name: str) -> str:
        """Return the dtype of one of our tensors as the file spells it."""
        return self._reader.dtype(self._names[name])

    def base(self) -> Base:
        """Return the folder with its fingerprint, which takes one short read a tensor."""
        digest = xxhash.xxh3_128()
        for name, shape in shapes(self.config):
            middle = shape[0] // 2 if len(shape) == 2 else 0
            index = (slice(middle, middle + 1), slice(0, SAMPLE))[-len(shape) :]
            digest.update(f"{name} {shape}".encode())
            digest.update(self.piece(name, index).tobytes())
            self._tick()
        return Base(os.path.abspath(self.path), digest.hexdigest())

    def _match(self) -> dict[str, str]:
        """Return the file's name of each of our tensors. CheckpointError for missing tensors or other shapes."""
        found = set(self._reader.names())
        quantised = foreign.of_tensors(found)
        if quantised is not None:
            raise CheckpointError(f"{self.path}: {quantised}")
        names = {}
        # Lazily, up to the first missing tensor: a config that claims too many layers costs nothing.
        for name, expected in shapes(self.config):
            others = (other for other, tensor in self._repeated.items() if tensor == name)
            stored = next((key for key in (name, name.removeprefix(self.config.prefix), *others) if key in found), None)
            if stored is None:
                raise CheckpointError(f"{self.path} has no tensor {name}, which its config.json requires")
            shape = self._reader.shape(stored)
            if shape != expected:
                raise CheckpointError(f"{self.path}: {stored} has shape {shown(shape)}, its config.json requires {expected}")
            if (dtype := self._reader.dtype(stored)) not in FLOATS:
                raise CheckpointError(f"{self.path}: {stored} holds {dtype}, expected one of {', '.join(FLOATS)}; load weights "
                                      "in one of these")
            names[name] = stored
        self._check_rest(found.difference(names.values()))
        return names

    def _check_rest(self, rest: set[str]) -> None:
        """Raise CheckpointError if one of the file's other tensors belongs to a block: it would change what is computed.

        Tensors outside of all blocks, such as other heads, may be there.
        """
        blocks = next(self.config.block_tensors(0)).name.partition(".0.")[0] + "."
        begins = (blocks, blocks.removeprefix(self.config.prefix))
        for name in sorted(rest):
            if name.startswith(begins) and not name.endswith(self._buffers):
                raise CheckpointError(f"{self.path} holds {shown(name)[1:-1]}, which its config.json does not describe; load "
                                      "the config.json and the weights of one model")

    def _check_tied(self) -> None:
        found = set(self._reader.names())
        for other, tensor in self._repeated.items():
            stored = self._names[tensor]
            if other in found and stored != other and not self._same(other, stored):
                way = "only models with a tied head can be loaded, so choose another"
                if getattr(self.config, "tie_word_embeddings", False):
                    way = "its config.json ties the two; set tie_word_embeddings to false there if the weights are right"
                raise CheckpointError(f"{self.path}: {other} differs from {stored}; {way}")

    def _same(self, one: str, other: str) -> bool:
        """Return whether two matrices of the file are equal."""
        rows, columns = self._reader.shape(other)
        if self._reader.shape(one) != (rows, columns):
            return False
        step = max(1, PIECE_NBYTES // (4 * columns))
        for start in range(0, rows, step):
            self._tick()
            part = (slice(start, min(start + step, rows)), slice(0, columns))
            if not np.array_equal(self._reader.read(one, part), self._reader.read(other, part)):
                return False
        return True


def check_place(final: Path, mark: str = CONFIG) -> None:
    """Raise ValueError if saving to `final` would replace something that is not an older save.

    mark: the file that an older save has. One of an adapter has no model beside it.
    """
    if final.exists() and not final.is_dir():
        raise ValueError(f"{final} is a file; expected a folder or a path that does not exist yet")
    is_older = (final / mark).exists() and (mark == CONFIG or not (final / CONFIG).exists())
    if final.is_dir() and not is_older:
        kind = "model" if mark == CONFIG else "adapter alone"
        for foreign in final.iterdir():
            raise ValueError(
                f"{final} contains {foreign.name} and no {kind}, and a save replaces the whole folder; name a folder that is "
                "empty, does not exist yet or is an older save"
            )


@asynccontextmanager
async def replaced(final: Path, nbytes: int, files: Files, done: Callable[[], None]) -> AsyncIterator[Path]:
    """Yield a folder for about `nbytes`, which becomes `final` at the end.

    done: called once the folder is in place, even if the save is cancelled meanwhile. This is `replace_folder` with its file
    work in threads, because syncing a checkpoint takes seconds. Errors are those of `told_room`.
    """
    context = replace_folder(final)

    async def put_in_place() -> None:
        await files.run(context.__exit__, None, None, None)
        done()

    try:
        async with told_room(final, nbytes, files):  # which looks before the unfinished folder goes
            yield await files.run(context.__enter__)
            await finish(put_in_place())
    except BaseException as error:
        await files.run(context.__exit__, type(error), error, error.__traceback__)
        raise


@asynccontextmanager
async def told_room(final: Path, nbytes: int, files: Files) -> AsyncIterator[None]:
    """Raise CheckpointError, with the free space, for every failure of the disk while `nbytes` for `final` are written."""
    try:
        yield
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
