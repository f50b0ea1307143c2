"""The program of generation: rows of several sequences, each attending to its own pages, and the logits of the first rows.

One program both reads prompts and writes texts. A row is a token at a position of a sequence. The inputs say which rows meet,
which sequences they belong to, and which page belongs to which sequence. The program visits the weights in the order of every
forward pass, whatever the number of rows or pages. batching.py chooses the rows, serving.py uses the logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.architectures import architecture_of
from asynctile.layers.cache import KVCache
from asynctile.layers.parameters import Parameters
from asynctile.layers.recording import Cached, Recording
from asynctile.layers.rows import Rows
from asynctile.ops import gemm_rows
from asynctile.ops.attention_page import NOBODY
from asynctile.program.program import Program


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence, from position `start` on.

    pages: the sequence's pages by number, ascending. The first page number also identifies the sequence.
    """

    tokens: NDArray[np.int32]
    start: int
    pages: tuple[int, ...]


class Decoding(Recording):
    """A recording whose rows are tokens of sequences that began earlier. Logits of the first `wanted` rows are fetched."""

    product = staticmethod(gemm_rows)

    def __init__(self, parameters: Parameters, cache: KVCache, rows: int, pages: int, wanted: int) -> None:
        super().__init__("decode", parameters, _rows(parameters, rows))
        self.wanted = _rows(parameters, wanted)
        given = self.program.input
        self.cached = Cached(
            pages=cache.pages(pages),
            positions=given("positions", (rows,), np.int32),
            owners=given("pages", (2 * pages,), np.int32),
            sequences=given("rows", (2 * rows,), np.int32),
        )


def record_decode(parameters: Parameters, cache: KVCache, *, rows: int, pages: int, wanted: int) -> Program:
    """Return the decode program, a pure function of its arguments.

    parameters: of the model. rows: at most as many as a row tile has. pages: the program visits pages 0 .. pages - 1 of
    `cache`. wanted: how many rows need logits. Inputs: see `inputs_of`. outputs["logits"]: float32 (wanted, V), those of the
    first rows.
    """
    recording, architecture = Decoding(parameters, cache, rows, pages, wanted), architecture_of(parameters.config)
    recording.program.section("texts", "embedding")
    x = architecture.embedding.forward(recording)
    for layer in range(parameters.config.n_layer):
        recording.program.section("texts", f"h.{layer}")
        out = recording.residual(f"h.{layer + 1}.x")
        architecture.block.forward(recording, recording.rows.tiles, layer, x, out)
        x = out
    recording.program.section("texts", "head")
    architecture.head.logits(recording, x)
    return recording.program.finish()


def inputs_of(spans: Iterable[Span], positions: int, rows: int, pages: int) -> dict[str, NDArray[np.int32]]:
    """Return the inputs with which a program of so many rows and pages computes `spans`, one after another.

    positions: how many positions a page holds.
    """
    tokens, places = np.full((2, rows), NOBODY, np.int32)
    sequences, owners = np.full((rows, 2), NOBODY, np.int32), np.full((pages, 2), NOBODY, np.int32)
    begin = 0
    for span in spans:
        end, name = begin + len(span.tokens), span.pages[0]
        tokens[begin:end] = span.tokens
        places[begin:end] = np.arange(span.start, span.start + len(span.tokens))
        sequences[begin:end, 0] = name
        own = np.asarray(span.pages)
        owners[own, 0] = name
        owners[own, 1] = np.arange(len(own)) * positions
        begin = end
    sequences[:, 1] = places
    return {"tokens[0]": tokens, "positions": places, "rows": sequences.reshape(-1), "pages": owners.reshape(-1)}


def _rows(parameters: Parameters, count: int) -> Rows:
    """Return `count` sequences of one token, in one row tile."""
    return Rows(count, 1, 1, parameters.tiling.row_tokens)
