"""Token arrays as a program takes them: checked, cut into row tiles, with the scale of the loss.

Callers give int arrays (B, T); programs take one int32 tile for each row tile. Where batches come from is data.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.config import Config
from asynctile.layers.rows import Rows
from asynctile.ops.cross_entropy import IGNORED

#: (tokens, targets) as callers give them: int arrays (B, T), or what NumPy makes one of.
Batch: TypeAlias = tuple[ArrayLike, ArrayLike]
#: What a run goes over; an item may be something to await.
Batches: TypeAlias = Iterable[Batch | Awaitable[Batch]] | AsyncIterable[Batch | Awaitable[Batch]]


def as_ids(name: str, ids: ArrayLike, shape: str) -> NDArray[Any]:
    """An array of integers, or of nothing; TypeError or ValueError in one sentence, which says `shape`, if they are none.

    A masked array is refused: what its mask hides would count. A loss ignores targets of IGNORED.
    """
    if isinstance(ids, str | bytes):
        raise TypeError(f"{name} is a text, expected integer token ids of shape {shape}; encode it with the model's tokenizer")
    if any(isinstance(part, np.ma.MaskedArray) for part in (ids, *(ids if isinstance(ids, list | tuple) else ()))):
        raise TypeError(f"{name} is a masked array, expected plain integer token ids of shape {shape}; give its .data, or "
                        f"targets as .filled({IGNORED}), which ignores what is masked")
    try:
        array = np.asarray(ids)
    except ValueError:
        raise ValueError(f"{name} has rows of several lengths, expected integer token ids of shape {shape}; "
                         "cut or pad them to one length") from None
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected integer token ids of shape {shape}")
    return array


def check_tokens(name: str, tokens: ArrayLike, config: Config, *, ignored: bool = False) -> NDArray[np.int32]:
    """`tokens` as an int32 array (B, T); TypeError or ValueError in one sentence if it cannot be one.

    ignored: IGNORED (-100) is allowed beside token ids.
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
            + "; check that the tokenizer is the model's"
        )
    return array.astype(np.int32)


def token_inputs(rows: Rows, tokens: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Inputs of a program that takes tokens only."""
    flat = tokens.reshape(-1)
    return {f"tokens[{row.index}]": flat[rows.part(row)] for row in rows}


def loss_inputs(rows: Rows, tokens: NDArray[np.int32], targets: NDArray[np.int32]) -> tuple[dict[str, Any], int]:
    """Inputs of a program with a loss, and how many targets count. ValueError if none does or shapes differ."""
    if tokens.shape != targets.shape:
        raise ValueError(f"targets have shape {targets.shape}, expected that of tokens, {tokens.shape}")
    count = int(np.count_nonzero(targets != IGNORED))
    if count == 0:
        raise ValueError(f"every target is {IGNORED}: there is nothing to learn from; give at least one target")
    flat = targets.reshape(-1)
    inputs = token_inputs(rows, tokens)
    inputs |= {f"targets[{row.index}]": flat[rows.part(row)] for row in rows}
    inputs["scale"] = np.array([1.0 / count], np.float32)
    return inputs, count
