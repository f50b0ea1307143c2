"""The files of a saved model, written tile by tile: config.json, weights in one file or in shards, checksums.

exchange.py reads them again and puts a saved folder in its place, weight_dtype.py rounds weights. asynctile/storage/tensors.py
defines the format of a file of weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from asynctile.layers.architectures import config_from_hf
from asynctile.layers.companions import Companions, companions_to_write
from asynctile.layers.config import Config
from asynctile.layers.exchange import CONFIG
from asynctile.layers.parameters import Parameter, Parameters
from asynctile.layers.weight_dtype import DTYPES, FLOAT32, rounded
from asynctile.loop.files import Files
from asynctile.storage.checksums import CHECKSUMS, checksum, checksum_record
from asynctile.storage.documents import store_file, store_json
from asynctile.storage.folder import encode_json
from asynctile.storage.input import DOCUMENT_NBYTES, parse_json
from asynctile.storage.tensors import INDEX, WEIGHTS, TensorWriter
from asynctile.storage.tile import Tile

#: Reads a tile's bytes, from the engine or from a snapshot.
ReadTile = Callable[[Tile], Awaitable[NDArray[Any]]]
#: The most bytes of tensors in a shard; a larger tensor has a shard of its own. The Hub wants files of a few GB.
SHARD_NBYTES = 5 * 10**9


async def write_model(
    folder: Path,
    parameters: Parameters,
    companions: Companions,
    read: ReadTile,
    files: Files,
    *,
    dtype: str = FLOAT32,
    shard_nbytes: int | None = None,
) -> None:
    """Write config.json, the companions and the weights into `folder`.

    dtype: a key of DTYPES. shard_nbytes: the most bytes in a file, beyond which there are several and an index; None: one file.
    """
    await write_config(folder, parameters.config, companions, files, dtype)
    nbytes = {name: prod(item.shape) * DTYPES[dtype].itemsize for name, item in parameters.items()}
    shards = cut(nbytes, sum(nbytes.values()) if shard_nbytes is None else shard_nbytes)
    for file, names in shards.items():
        await write_tensors(folder / file, [parameters[name] for name in names], ("weights",), read, files, dtype)
    if len(shards) > 1:
        index = index_of(shards, sum(nbytes.values()), parameters.config.parameter_count)
        await store_json(folder / INDEX, index, executor=files)


async def write_config(folder: Path, config: Config, companions: Companions, files: Files, dtype: str = FLOAT32) -> None:
    """Write config.json and the companions of a model into `folder`. dtype: of its weights, a key of DTYPES."""
    await store_file(folder / CONFIG, encoded(config, dtype), executor=files)
    for name, content in companions_to_write(config, companions).items():
        await store_file(folder / name, content, executor=files)


def cut(nbytes: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """Return the tensors of each file by the file's name, in order. nbytes: of each tensor. most: bytes in a file.

    The names are those of transformers: model.safetensors, or model-00001-of-00003.safetensors and so on.
    """
    shards: list[list[str]] = [[]]
    room = most
    for name, size in nbytes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return dict(zip(file_names(WEIGHTS, len(shards)), shards, strict=True))


def file_names(whole: str, count: int) -> list[str]:
    """Return the names of `count` files for the tensors of the file `whole`, which is the name if there is one."""
    stem, _, ending = whole.rpartition(".")
    return [whole] if count == 1 else [f"{stem}-{n:05d}-of-{count:05d}.{ending}" for n in range(1, count + 1)]


def index_of(shards: Mapping[str, Iterable[str]], nbytes: int, parameter_count: int) -> dict[str, Any]:
    """Return the content of the index of these shards, as transformers writes it. nbytes: of all tensors."""
    where = {name: file for file, names in shards.items() for name in names}
    return {
        "metadata": {"total_parameters": parameter_count, "total_size": nbytes},
        "weight_map": dict(sorted(where.items())),
    }


async def write_checksums(
    folder: Path, files: Files, done: Callable[[int], object] = lambda nbytes: None, known: Mapping[str, str] | None = None
) -> None:
    """Write checksums.json, with the checksum of each file of `folder`.

    done: called with the size of each file in bytes, once the file has been read. known: checksums by the names of files that
    are not read here.
    """
    sums = dict(known or {})
    paths = await files.run(lambda: [path for path in sorted(folder.iterdir()) if path.name not in sums])
    sums |= await checksums_of(paths, files, done)
    await store_json(folder / CHECKSUMS, checksum_record(dict(sorted(sums.items()))), executor=files)


async def checksums_of(paths: Iterable[Path], files: Files, done: Callable[[int], object]) -> dict[str, str]:
    """Return the checksum of each file by its name. done: as for `write_checksums`."""
    sums = {}
    for path in paths:
        sums[path.name] = await files.run(checksum, path, files.tick)
        done((await files.run(path.stat)).st_size)
    return sums


def encoded(config: Config, dtype: str) -> bytes:
    """Return config.json as bytes; ValueError if it would be read back as another configuration, or not at all."""
    values = config.to_hf()
    content = encode_json({**values, "dtype": dtype})
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
    path: Path, parameters: Iterable[Parameter], families: tuple[str, ...], read: ReadTile, files: Files, dtype: str = FLOAT32,
    *, metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the tensors of `families` ("weights", "exp_avg", "exp_avg_sq"), tile by tile as `read` returns them.

    dtype: a key of DTYPES. metadata: of the file, in addition to its format. ValueError for a value that dtype does not reach.
    Tiles in bf16 keep every bit in a file in bfloat16.
    """
    chosen = list(parameters)
    tensors: dict[str, Any] = {
        tensor_name(parameter.name, family): (DTYPES[dtype], parameter.shape)
        for parameter in chosen
        for family in families
    }
    unfinished = ExitStack()

    def begin() -> TensorWriter:
        writer = TensorWriter(path, tensors, {"format": "pt", **(metadata or {})}, files.tick)
        unfinished.callback(writer.discard)  # does nothing once the writer is closed
        return writer

    def put(writer: TensorWriter, name: str, index: tuple[slice, ...], piece: NDArray[Any]) -> None:
        writer.write(name, index, rounded(piece, dtype, name))

    try:
        writer = await files.run(begin)
        for parameter in chosen:
            for family in families:
                name = tensor_name(parameter.name, family)
                for key, tile in getattr(parameter, family).items():
                    await files.run(put, writer, name, parameter.index(*key), parameter.cut(await read(tile), *key))
        await files.run(writer.close)
    finally:
        await files.run(unfinished.close)


def tensor_name(parameter: str, family: str) -> str:
    """Return a tensor's name in the file: weights keep their name, moments append the family."""
    return parameter if family == "weights" else f"{parameter}.{family}"
