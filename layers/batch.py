"""Token arrays in the form that a program takes: checked, cut into row tiles, with the scale of the loss.

Callers give int arrays (B, T), and positions beside them where a sequence holds several examples. Programs take one int32 tile
for each row tile. data.py makes batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.config import Config
from asynctile.layers.rows import Rows
from asynctile.ops.cross_entropy import IGNORED

#: (tokens, targets) as callers give them, or (tokens, targets, positions): int arrays (B, T), or anything that NumPy converts
#: to one.
Batch: TypeAlias = tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]
#: The batches of a run, plain or async; an item may be an awaitable of a batch.
Batches: TypeAlias = Iterable[Batch | Awaitable[Batch]] | AsyncIterable[Batch | Awaitable[Batch]]


def as_ids(name: str, ids: ArrayLike, shape: str) -> NDArray[Any]:
    """Return `ids` as an array of integers, or an empty array.

    TypeError or ValueError, in one sentence that names the expected `shape`, for anything else. Masked arrays are refused,
    because the hidden entries would count. To hide targets, set them to IGNORED, which a loss ignores.
    """
    if isinstance(ids, str | bytes):
        raise TypeError(f"{name} is a string, expected integer token ids of shape {shape}; encode it with the tokenizer")
    if any(isinstance(part, np.ma.MaskedArray) for part in (ids, *(ids if isinstance(ids, list | tuple) else ()))):
        raise TypeError(f"{name} is a masked array, expected plain integer token ids of shape {shape}; pass its .data, or "
                        f"pass targets as .filled({IGNORED}), so that masked targets are ignored")
    try:
        array = np.asarray(ids)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths, expected integer token ids of shape {shape}; "
                         "cut or pad them to one length") from None
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected integer token ids of shape {shape}")
    return array


def check_tokens(name: str, tokens: ArrayLike, config: Config, *, ignored: bool = False) -> NDArray[np.int32]:
    """Return `tokens` as an int32 array (B, T); TypeError or ValueError in one sentence if it cannot be one.

    ignored: whether IGNORED (-100) is allowed besides token ids.
    """
    array = as_ids(name, tokens, "(B, T)")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}, expected (B, T): one row of token ids for each sequence")
    if array.shape[1] > config.block_size:
        raise ValueError(
            f"{name} has T = {array.shape[1]} tokens a sequence, but block_size is {config.block_size}; "
            "shorten the sequences or choose a larger block_size"
        )
    if array.min() >= 0 and array.max() < config.vocab_size:
        return array.astype(np.int32)
    wrong = (array < 0) | (array >= config.vocab_size)
    if ignored:
        wrong &= array != IGNORED
    if wrong.any():
        value = array[wrong][0]
        raise ValueError(
            f"{name} contains {value}, expected ids from 0 to {config.vocab_size - 1} (vocab_size {config.vocab_size})"
            + (f" or {IGNORED}" if ignored else "")
            + "; use the tokenizer that the model was trained with"
        )
    return array.astype(np.int32)


def check_positions(positions: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Return `positions` as an int32 array; TypeError or ValueError in one sentence if they are none of `shape` (B, T).

    An example begins at position 0, and each other position is one more than the one before.
    """
    array = as_ids("positions", positions, "(B, T)")
    if array.shape != shape:
        raise ValueError(f"positions have shape {array.shape}, expected the shape of tokens, {shape}")
    expected = np.zeros(shape, np.int64)
    expected[:, 1:] = array[:, :-1].astype(np.int64) + 1
    wrong = np.argwhere((array != 0) & (array != expected))
    if len(wrong):
        row, place = wrong[0].tolist()
        found = f"{array[row, place - 1]}, {array[row, place]}" if place else array[row, place]
        raise ValueError(f"positions contain {found} at place {place} of sequence {row}, expected 0 where an example begins "
                         "and one more at each further token; a sequence begins with an example")
    return array.astype(np.int32)


def token_inputs(rows: Rows, tokens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a program that takes only tokens, one int32 array for each row tile."""
    flat = tokens.reshape(-1)
    return {f"tokens[{row.index}]": flat[rows.part(row)] for row in rows}


def loss_inputs(
    rows: Rows, tokens: NDArray[np.int32], targets: NDArray[np.int32], positions: NDArray[np.int32] | None = None
) -> tuple[dict[str, Any], int]:
    """Return the inputs of a program with a loss, and how many targets count. positions: of packed rows.

    ValueError if no target counts, or if the shapes differ.
    """
    if tokens.shape != targets.shape:
        raise ValueError(f"targets have shape {targets.shape}, expected the shape of tokens, {tokens.shape}")
    count = int(np.count_nonzero(targets != IGNORED))
    if count == 0:
        raise ValueError(f"every target is {IGNORED}: there is nothing to learn from; give at least one target")
    inputs = token_inputs(rows, tokens)
    for name, given in (("targets", targets), ("positions", positions)):
        if given is not None:
            flat = given.reshape(-1)
            inputs |= {f"{name}[{row.index}]": flat[rows.part(row)] for row in rows}
    inputs["scale"] = np.array([1.0 / count], np.float32)
    return inputs, count
