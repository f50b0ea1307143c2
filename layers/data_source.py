"""The kind of data that a path names. This is the only module that decides how a path is read.

Covers `open_source`, and what differs from one kind to another: `read_source` and `reopen` give its tokens, `whole` a part with
all of them, `training_batches`, `units_of_pass`, `validation_batches`, `ids_of` and `counted_of` what is done with a part. Text
is text.py, ready-made tokens are raw_tokens.py, chats are chats.py, and the files of tokens are tokens.py and examples.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.chat_format import ChatFormat
from asynctile.layers.chats import ChatSource, is_chat
from asynctile.layers.data import Batches, ValidationBatches
from asynctile.layers.example_batches import ExampleBatches, ExampleValidation
from asynctile.layers.examples import ExampleFile, Examples, has_examples, open_examples
from asynctile.layers.raw_tokens import SUFFIX, RawTokens
from asynctile.layers.text import TEXT_FIELD, TextSource
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import Progress, TokenFile, TokenView, open_tokens

__all__ = [
    "TEXT_FIELD", "DataFile", "DataPart", "DataSource", "TrainingBatches", "Windows", "counted_of", "ids_of", "open_source",
    "read_source", "reopen", "training_batches", "units_of_pass", "validation_batches", "whole",
]  # fmt: skip

#: The data of a run, for training or for validation.
DataSource: TypeAlias = TextSource | RawTokens | ChatSource
#: The tokens of a source, and a part of them.
DataFile: TypeAlias = TokenFile | ExampleFile
DataPart: TypeAlias = TokenView | Examples
TrainingBatches: TypeAlias = Batches | ExampleBatches
Windows: TypeAlias = ValidationBatches | ExampleValidation


def open_source(path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> DataSource:
    """Return the data at `path`: tokens for a .bin, chats for lines of JSON that are chats, text for anything else.

    None is Python's standard library. Files are only looked at, never read whole. ValueError, naming the path, if it is
    missing, unreadable or has nothing to train on.
    """
    if path is not None and Path(path).suffix.lower() == SUFFIX and not Path(path).is_dir():
        return RawTokens(path)
    text = TextSource(path, text_field)
    return ChatSource(text) if is_chat(text) else text


def read_source(
    source: DataSource, tokenizer: Tokenizer, folder: Path, *, format: ChatFormat, seq_len: int, progress: Progress | None
) -> DataFile:
    """Return the tokens of a source, kept in `folder`. format, seq_len: of chats alone; see `ChatSource.examples`."""
    if isinstance(source, ChatSource):
        return source.examples(tokenizer, format, seq_len, folder, progress=progress)
    return source.tokens(tokenizer, folder, progress=progress)


def reopen(folder: Path) -> DataFile:
    """Return the tokens in a folder again. CheckpointError or ValueError, naming the file, if they are missing or damaged."""
    return open_examples(folder) if has_examples(folder) else open_tokens(folder)


def whole(file: DataFile) -> DataPart:
    """Return all of a file as a part."""
    return Examples(file, 0, len(file)) if isinstance(file, ExampleFile) else TokenView(file, 0, len(file))


def training_batches(part: DataPart, batch_size: int, seq_len: int, seed: int) -> TrainingBatches:
    """Return the batches that a part is trained in; see `Batches` and `ExampleBatches`."""
    if isinstance(part, Examples):
        return ExampleBatches(part, batch_size, seq_len, seed)
    return Batches(part, batch_size, seq_len, seed)


def units_of_pass(part: DataPart, batch_size: int, seq_len: int) -> tuple[int, int]:
    """Return how many units a pass over a part has, and how many a step takes: tokens of a text, or batches of examples."""
    if isinstance(part, Examples):
        return ExampleBatches(part, batch_size, seq_len, 0).of_pass, 1
    return len(part), batch_size * seq_len


def validation_batches(part: DataPart, batch_size: int, seq_len: int, limit: int | None) -> Windows:
    """Return the batches that a part is validated on; see `ValidationBatches` and `ExampleValidation`."""
    if isinstance(part, Examples):
        return ExampleValidation(part, batch_size, seq_len, limit)
    return ValidationBatches(part, batch_size, seq_len, limit)


def ids_of(part: DataPart) -> TokenView:
    """Return the ids of a part in order."""
    return part.ids if isinstance(part, Examples) else part


def counted_of(part: DataPart, most: int) -> NDArray[np.bool_] | None:
    """Return for each of the first `most` ids of a part whether it counts as a target; None if all do."""
    return part.answers[:most].astype(np.bool_) if isinstance(part, Examples) else None
