"""One model of a base and its adapter: W + scaling B A, written piece by piece. Needs no engine.

A piece of a matrix takes at most PIECE_NBYTES in float32, and no matrix is in memory as a whole. adapter_files.py and
exchange.py read the two folders, weight_files.py names the files of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.adapter_files import AdapterFiles
from asynctile.layers.companions import CARD, GENERATION, TOKENIZER, Companions, companions_to_write
from asynctile.layers.config import Tensor
from asynctile.layers.exchange import CONFIG, PIECE_NBYTES, Pretrained
from asynctile.layers.layout import shapes
from asynctile.layers.lora import A, B
from asynctile.layers.weight_dtype import DTYPES, NAMES, check_dtype, rounded
from asynctile.layers.weight_files import SHARD_NBYTES, cut, encoded, index_of
from asynctile.storage.checksums import CHECKSUMS, checksum, checksum_record
from asynctile.storage.folder import replace_folder, write_file, write_json
from asynctile.storage.tensors import INDEX, TensorWriter

#: Is told the bytes written so far, and in all.
Progress = Callable[[int, int], object]
Index = tuple[slice, ...]


def merge(
    base: Path, adapter: Path, final: Path, dtype: str | None = None, progress: Progress = lambda done, total: None,
    *, shard_nbytes: int = SHARD_NBYTES,
) -> None:
    """Write the model folder `final`, new or empty, with an adapter added to the weights of its base.

    dtype: of all weights, a key of DTYPES; None: each tensor keeps the one of the base. Sums are computed in float32 and
    rounded once. The base's companions are carried along, or the adapter's tokenizer if it has one.

    ValueError if `final` holds anything, for another dtype, or for a sum that it does not reach; errors as Pretrained and
    AdapterFiles raise them; CheckpointError or OSError if the disk fails. What could not be written whole is removed.
    """
    name = None if dtype is None else check_dtype(dtype)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise ValueError(f"{final} is a file or holds other files; name an empty or new folder")
    with Pretrained(base) as source, AdapterFiles(adapter, source.config) as added:
        added.check_base(source.base())
        dtypes = {tensor: name or NAMES[source.dtype(tensor)] for tensor, _ in shapes(source.config)}
        merged = _Merged(source, added)
        with replace_folder(final) as folder:
            _write(folder, merged, dtypes, progress, shard_nbytes)


class _Merged:
    """The tensors of the merged model, in pieces."""

    def __init__(self, source: Pretrained, added: AdapterFiles) -> None:
        self.config = source.config
        self.companions = _companions(source.companions, added.companions)
        self.shapes = dict(shapes(source.config))
        self._source, self._added, self._lora = source, added, added.lora
        self._layers: Mapping[str, Tensor] = {tensor.name: tensor for tensor in self._lora.layers(source.config)}

    def pieces(self, name: str) -> Iterator[tuple[Index, NDArray[np.float32]]]:
        """Yield a tensor in pieces, each with its place."""
        for index in _indices(self.shapes[name], self._lora.rank):
            piece = self._source.piece(name, index)
            if name in self._layers:
                piece += self._delta(self._layers[name], *index)
            yield index, piece

    def _delta(self, weight: Tensor, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Return scaling B A in a rectangle of the weight; a weight that is not transposed has the inputs as its rows."""
        layer = weight.name.removesuffix(".weight")
        outputs, inputs = (rows, columns) if weight.transposed else (columns, rows)
        a, b = self._added.piece(layer, A, (slice(None), inputs)), self._added.piece(layer, B, (outputs,))
        delta: NDArray[np.float32] = b @ a if weight.transposed else a.T @ b.T
        delta *= np.float32(self._lora.scaling)
        return delta


def _write(folder: Path, merged: _Merged, dtypes: Mapping[str, str], progress: Progress, shard_nbytes: int) -> None:
    """Write the files of the model. dtypes: by tensor."""
    nbytes = {name: prod(shape) * DTYPES[dtypes[name]].itemsize for name, shape in merged.shapes.items()}
    most = max(nbytes, key=lambda name: nbytes[name])
    write_file(folder / CONFIG, encoded(merged.config, dtypes[most]))
    for name, content in companions_to_write(merged.config, merged.companions).items():
        write_file(folder / name, content)
    done, total = 0, sum(nbytes.values())
    shards = cut(nbytes, shard_nbytes)
    for file, names in shards.items():
        tensors: dict[str, Any] = {name: (DTYPES[dtypes[name]], merged.shapes[name]) for name in names}
        with TensorWriter(folder / file, tensors, {"format": "pt"}) as writer:
            for name in names:
                for index, piece in merged.pieces(name):
                    narrow = rounded(piece, dtypes[name], name)
                    writer.write(name, index, narrow)
                    done += narrow.nbytes
                    progress(done, total)
    if len(shards) > 1:
        write_json(folder / INDEX, index_of(shards, sum(nbytes.values()), merged.config.parameter_count))
    sums = {path.name: checksum(path, lambda: progress(total, total)) for path in sorted(folder.iterdir())}
    write_json(folder / CHECKSUMS, checksum_record(sums))


def _indices(shape: tuple[int, ...], rank: int) -> Iterator[Index]:
    """Yield the places of the pieces of a tensor. The pieces of A and B for one of them are not larger than it may be."""
    most = PIECE_NBYTES // 4
    if len(shape) == 1:
        yield from ((slice(start, min(start + most, shape[0])),) for start in range(0, shape[0], most))
        return
    columns = max(1, min(shape[1], most // rank))
    rows = max(1, min(shape[0], most // max(columns, rank)))
    for row in range(0, shape[0], rows):
        for column in range(0, shape[1], columns):
            yield slice(row, min(row + rows, shape[0])), slice(column, min(column + columns, shape[1]))


def _companions(base: Companions, adapter: Companions) -> Companions:
    """Return the files beside the merged weights: those of the base, but the adapter's tokenizer if it has one."""
    own = {name: content for name, content in adapter.items() if name not in (CARD, GENERATION)}
    if not own.keys() & {TOKENIZER, "vocab.json", "tokenizer.model"}:
        return base
    return {name: base[name] for name in (CARD, GENERATION) if name in base} | own
