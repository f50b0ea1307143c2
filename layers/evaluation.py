"""The quality of a model on text that it does not learn from: loss, perplexity and bits per byte.

Covers `Evaluation`, `evaluate`, and the mean number of bytes of a token. data.py (`ValidationBatches`) chooses the windows of a
text. asynctile/cli/validation.py decides when a run evaluates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.batch import Batches
from asynctile.layers.feed import Feed, arrays_of
from asynctile.layers.model import Model, model_state_of
from asynctile.layers.report import as_json
from asynctile.layers.tokenizer import ByteTokenizer, Tokenizer
from asynctile.ops.cross_entropy import IGNORED

__all__ = ["Evaluation", "evaluate", "mean_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation.

    loss: mean cross-entropy over the targets that count, in nats. tokens: how many targets count. perplexity: the exponential
    of the loss. seconds: how long the evaluation took.

    bits_per_byte: the loss in bits divided by the bytes that a token stands for, so that models with different tokenizers can
    be compared. None if bytes_per_token was not given.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation's fields of a line of metrics.jsonl, for JSON. Numbers that are not finite become strings."""
        return as_json({
            "validation_loss": self.loss, "validation_perplexity": self.perplexity,
            "validation_bits_per_byte": self.bits_per_byte, "validation_tokens": self.tokens, "validation_s": self.seconds,
        })  # fmt: skip


async def evaluate(
    model: Model,
    batches: Batches,
    *,
    bytes_per_token: float | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Return the loss of `model` over batches of (tokens, targets), int arrays (B, T). The model does not change.

    A batch may also be (tokens, targets, positions), as for `Model.loss`. Targets of -100 are ignored. Every other target
    counts the same, however many its batch has. A plain iterable is advanced in its own thread.

    bytes_per_token: of the text behind the targets (`mean_bytes`). progress: called with the number of finished batches; an
    exception that it raises ends the evaluation. ValueError if there is no batch, and all errors of `Model.loss`.
    """
    state = model_state_of(model)
    begun_s = time.perf_counter()
    total, tokens, done = 0.0, 0, 0
    feed = Feed(batches)
    state.runtime.life.dependents.add(feed)
    try:
        while True:
            try:
                batch = arrays_of(await feed.take())
            except StopAsyncIteration:
                break
            loss = await model.loss(*batch)
            count = int(np.count_nonzero(np.asarray(batch[1]) != IGNORED))
            total += loss * count
            tokens, done = tokens + count, done + 1
            if progress is not None:
                progress(done)
    finally:
        feed.end()
    if not tokens:
        raise ValueError("batches has no target to evaluate the model on: it is empty, or all targets are ignored; "
                         "give at least one (tokens, targets)")
    loss = total / tokens
    return Evaluation(loss=loss, perplexity=_exponential(loss), tokens=tokens, seconds=time.perf_counter() - begun_s,
                      bits_per_byte=None if bytes_per_token is None else loss / math.log(2) / bytes_per_token)  # fmt: skip


def mean_bytes(tokenizer: Tokenizer, rows: Iterable[NDArray[Any]]) -> float | None:
    """Return how many bytes of UTF-8 a token of `rows` stands for on average; None if the tokens decode to no text.

    rows: ids (n,) each, in order. ValueError for an id that the tokenizer does not have.
    """
    if isinstance(tokenizer, ByteTokenizer):  # also for invalid UTF-8, whose decoded text is longer
        return 1.0
    nbytes = tokens = 0
    for row in rows:
        nbytes, tokens = nbytes + len(tokenizer.decode(row).encode()), tokens + len(row)
    return nbytes / tokens if nbytes else None


def _exponential(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
