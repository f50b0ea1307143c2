"""The text of a run as tokens: the part to train on and the held-out part.

Covers `Corpus` and how it is made or reopened from the run's folder. asynctile/layers/data.py reads text and makes tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asynctile.cli.model import model_folder
from asynctile.cli.options import Options
from asynctile.cli.run_folder import RunFolder
from asynctile.layers.data_source import open_source
from asynctile.layers.tokenizer import Tokenizer, has_tokenizer, load_tokenizer, open_tokenizer
from asynctile.layers.tokens import TokenFile, TokenView, open_tokens, split

__all__ = [
    "Corpus", "check_data", "check_sequence", "choose_tokenizer", "expected_vocab_size", "open_held_out", "prepare_tokenizer",
    "prepare_tokens",
]  # fmt: skip

#: The part held out without --validation-share: at most a twentieth of the text, and no more tokens than a good estimate needs.
_HELD_OUT_FRACTION, _HELD_OUT_TOKENS = 0.05, 1 << 17

STANDARD_LIBRARY = "Python's standard library"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Corpus:
    """The training tokens and the held-out tokens of a run."""

    tokenizer: Tokenizer
    training: TokenView
    held_out: TokenView
    notes: tuple[str, ...] = ()
    """Sentences about data that was left out, if it was read now."""


def choose_tokenizer(options: Options) -> str:
    """Return --tokenizer, or if it was not typed, the model folder's tokenizer, else bytes."""
    if options.tokenizer is not None:
        return options.tokenizer
    folder = model_folder(options)
    if folder is None:
        return "bytes"
    if not has_tokenizer(folder):
        raise ValueError(f"--model {folder} has no tokenizer.json, nor vocab.json with merges.txt; name its tokenizer with "
                         "--tokenizer")
    return str(folder)


def check_data(options: Options) -> None:
    """Check the files that --data and --validation-data name.

    ValueError if one cannot be read, or if it holds token ids and neither --tokenizer nor the model folder says which
    tokenizer made them.
    """
    named = options.tokenizer or model_folder(options)
    for path in (options.data, *([] if options.validation_data is None else [options.validation_data])):
        source = open_source(path, options.text_field)
        if not source.is_text and (named is None or str(named).startswith("bpe:")):
            raise ValueError(f"data {source.path} holds tokens without their tokenizer; name the one that made them "
                             "with --tokenizer")


def expected_vocab_size(options: Options) -> int:
    """Return the vocabulary size of the run's tokenizer; for one yet to be trained, the size that its name asks for."""
    name = choose_tokenizer(options)
    if name.startswith("bpe:"):
        load_tokenizer(name, ())  # raises for a number out of range
        return int(name.removeprefix("bpe:"))
    return load_tokenizer(name, ()).vocab_size


def prepare_tokenizer(options: Options, folder: RunFolder) -> Tokenizer:
    """Return the run's tokenizer and keep it in the run's folder. "bpe:N" may take minutes."""
    if folder.tokenizer.exists():
        return open_tokenizer(folder.path)
    tokenizer = load_tokenizer(choose_tokenizer(options), open_source(options.data, options.text_field).pieces())
    tokenizer.save(folder.path)
    return tokenizer


def prepare_tokens(
    options: Options, folder: RunFolder, tokenizer: Tokenizer, seq_len: int, progress: Progress
) -> Corpus:
    """Return the data as tokens, kept in the run's folder.

    A resumed run reads those tokens, even if the text has changed since.
    """
    notes: list[str] = []

    def tokens_of(path: str | None, kept: Path) -> TokenFile:
        if (kept / "tokens.json").exists():
            return open_tokens(kept)
        source = open_source(path, options.text_field)
        notes.extend([] if source.note is None else [f"data {source.path}: {source.note}"])
        return source.tokens(tokenizer, kept, progress=progress)

    training, held_out = _parts(options, folder, seq_len, tokens_of)
    return Corpus(tokenizer, training, held_out, tuple(notes))


def open_held_out(options: Options, folder: RunFolder, seq_len: int) -> TokenView:
    """Return the held-out part of a run's existing tokens.

    CheckpointError or ValueError, naming the tokens, if they are missing or damaged.
    """
    return _parts(options, folder, seq_len, lambda _, kept: open_tokens(kept))[1]


def _parts(
    options: Options, folder: RunFolder, seq_len: int, tokens_of: Callable[[str | None, Path], TokenFile]
) -> tuple[TokenView, TokenView]:
    """Return the training part and the held-out part; `tokens_of` gives the tokens of a path, kept in a folder."""
    tokens = tokens_of(options.data, folder.tokens)
    if options.validation_data is None:
        return _divided(options, tokens, seq_len)
    held_out = tokens_of(options.validation_data, folder.validation)
    check_sequence(f"--validation-data {options.validation_data}", held_out, seq_len)
    check_sequence(_data(options), tokens, seq_len)
    return TokenView(tokens, 0, len(tokens)), TokenView(held_out, 0, len(held_out))


def _divided(options: Options, tokens: TokenFile, seq_len: int) -> tuple[TokenView, TokenView]:
    """Return the training part and the held-out part of one token file."""
    if len(tokens) < 2 * (seq_len + 1):
        raise ValueError(f"{_data(options)} has {len(tokens)} tokens, too few for a training sequence of {seq_len} tokens and "
                         f"one to hold out: at least {2 * (seq_len + 1)} are needed; give more text or lower --seq-len")
    if options.validation_share is None:
        held_out = max(min(_HELD_OUT_FRACTION * len(tokens), _HELD_OUT_TOKENS), seq_len + 1)
        return split(tokens, held_out / len(tokens))
    parts = split(tokens, options.validation_share)
    for part, what in zip(parts, ("leaves", "holds out"), strict=True):
        if len(part) <= seq_len:
            raise ValueError(f"--validation-share {options.validation_share} of the {len(tokens)} tokens of {_data(options)} "
                             f"{what} {len(part)}, less than one sequence: at least {seq_len + 1} are needed; choose a new "
                             "share, give more text or lower --seq-len")
    return parts


def check_sequence(what: str, tokens: TokenFile, seq_len: int) -> None:
    """Raise ValueError, naming `what`, if the tokens are shorter than one sequence."""
    if len(tokens) <= seq_len:
        raise ValueError(f"{what} has {len(tokens)} tokens, less than one sequence: at least {seq_len + 1} are needed; give "
                         "more text or lower --seq-len")


def _data(options: Options) -> str:
    return f"data {options.data or STANDARD_LIBRARY}"
