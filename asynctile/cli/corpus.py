"""The text of a run as tokens: the part to train on, and the part held out.

Covers `Corpus` and how it is made, or found again in the run's folder. Reading text and making tokens is
asynctile/layers/data.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asynctile.cli.model import model_folder
from asynctile.cli.options import Options
from asynctile.cli.run_folder import RunFolder
from asynctile.layers.data import TokenView, open_source, open_tokens, split
from asynctile.layers.tokenizer import Tokenizer, load_tokenizer, open_tokenizer

__all__ = ["Corpus", "choose_tokenizer", "prepare_tokenizer", "prepare_tokens"]

#: At most a twentieth of the text is held out, and no more than is measured in seconds: all of it is, at the end.
_HELD_OUT_FRACTION, _HELD_OUT_TOKENS = 0.05, 1 << 17

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Corpus:
    """What a run learns from, and what it is measured on."""

    tokenizer: Tokenizer
    training: TokenView
    held_out: TokenView


def choose_tokenizer(options: Options) -> str:
    """The --tokenizer that counts when none was typed: that of the model folder, else bytes."""
    if options.tokenizer is not None:
        return options.tokenizer
    folder = model_folder(options)
    if folder is None:
        return "bytes"
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"--model {folder} has no tokenizer.json; name its tokenizer with --tokenizer")
    return str(folder / "tokenizer.json")


def prepare_tokenizer(options: Options, folder: RunFolder) -> Tokenizer:
    """The run's tokenizer, kept in its folder. May take long ("bpe:N")."""
    if folder.tokenizer.exists():
        return open_tokenizer(folder.path)
    tokenizer = load_tokenizer(choose_tokenizer(options), open_source(options.data).pieces())
    tokenizer.save(folder.path)
    return tokenizer


def prepare_tokens(
    options: Options, folder: RunFolder, tokenizer: Tokenizer, seq_len: int, progress: Progress
) -> Corpus:
    """The data as tokens, kept in the run's folder: a resumed run reads those, whatever became of the text since."""
    if (folder.tokens / "tokens.json").exists():
        tokens = open_tokens(folder.tokens)
    else:
        tokens = open_source(options.data).tokens(tokenizer, folder.tokens, progress=progress)
    if len(tokens) < 2 * (seq_len + 1):
        name = options.data or "Python's standard library"
        raise ValueError(f"data {name} has {len(tokens)} tokens, too few for a sequence of {seq_len} to train on and "
                         f"one to hold out; expected at least {2 * (seq_len + 1)}; give more text or lower --seq-len")
    held_out = max(min(_HELD_OUT_FRACTION * len(tokens), _HELD_OUT_TOKENS), seq_len + 1)
    return Corpus(tokenizer, *split(tokens, held_out / len(tokens)))
