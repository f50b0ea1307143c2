"""The program of generation: rows of several sequences, each attending to its own pages, and the logits of the first rows.

One program both reads prompts and writes texts. A row is a token at a position of a sequence. The inputs say which rows meet,
which sequences they belong to, and which page belongs to which sequence. The program visits the weights in the order of every
forward pass, whatever the number of rows or pages. Over several devices, each has rows and pages of its own in one program.
batching.py chooses the rows, serving.py uses the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.architectures import architecture_of
from asynctile.layers.caches import Caches
from asynctile.layers.carriers import carried_forward
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
    """A recording whose rows are tokens of sequences that began earlier, in one row tile for each device that has pages.

    Logits of the first `wanted` rows of each are fetched.
    """

    product = staticmethod(gemm_rows)

    def __init__(self, parameters: Parameters, caches: Caches, rows: int, pages: Sequence[int], wanted: int) -> None:
        self.devices = used(pages)
        super().__init__("decode", parameters, _rows(len(self.devices), rows), carriers=self.devices)
        self.wanted = _rows(len(self.devices), wanted)
        given = self.program.input
        self.cached = [
            Cached(
                pages=caches[device].tiles.pages(pages[device]),
                owners=given(f"pages[{part}]", (2 * pages[device],), np.int32),
                sequences=given(f"rows[{part}]", (2 * rows,), np.int32),
            )
            for part, device in enumerate(self.devices)
        ]


def used(pages: Sequence[int]) -> list[int]:
    """Return the devices that a program of so many pages on each device uses, ascending: those with pages."""
    return [device for device, count in enumerate(pages) if count]


def record_decode(parameters: Parameters, caches: Caches, *, rows: int, pages: Sequence[int], wanted: int) -> Program:
    """Return the decode program, a pure function of its arguments.

    parameters: of the model. rows: of each device, at most as many as a row tile has. pages: for each device, how many pages
    of its cache the program visits; a device with 0 has no rows either. wanted: how many rows of each device need logits.
    Inputs: see `inputs_of`. outputs["logits"]: float32 (devices wanted, V), those of the first rows of one used device after
    another.
    """
    recording, architecture = Decoding(parameters, caches, rows, pages, wanted), architecture_of(parameters.config)
    recording.program.section("texts", "embedding")
    x = architecture.embedding.forward(recording)
    for layer in range(parameters.config.n_layer):
        recording.program.section("texts", f"h.{layer}")
        out = recording.residual(f"h.{layer + 1}.x")
        architecture.block.forward(recording, recording.rows.tiles, layer, x, out)
        x = out
    recording.program.section("texts", "head")
    architecture.head.logits(recording, x)
    return carried_forward(recording, recording.devices)


def inputs_of(
    spans: Sequence[Iterable[Span]], positions: int, rows: int, pages: Sequence[int]
) -> dict[str, NDArray[np.int32]]:
    """Return the inputs with which a program of so many rows and pages computes `spans`, one after another on each device.

    spans, pages: by device. positions: how many positions a page holds.
    """
    found: dict[str, NDArray[np.int32]] = {}
    for part, device in enumerate(used(pages)):
        given = _inputs_of(spans[device], positions, rows, pages[device])
        found |= {f"{name}[{part}]": value for name, value in given.items()}
    return found


def _inputs_of(spans: Iterable[Span], positions: int, rows: int, pages: int) -> dict[str, NDArray[np.int32]]:
    """Return the inputs of one device."""
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
    return {"tokens": tokens, "positions": places, "rows": sequences.reshape(-1), "pages": owners.reshape(-1)}


def _rows(devices: int, count: int) -> Rows:
    """Return `count` sequences of one token for each device, in one row tile each, with positions of their own."""
    return Rows(devices * count, 1, 1, count, packed=True)
