"""The data of a run as tokens: the part to train on and the held-out part.

Covers `Corpus` and how it is made or reopened from the run's folder, and how the run's chats are written.
asynctile/layers/data_source.py reads data and makes tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asynctile.cli.model import model_folder
from asynctile.cli.options import Options
from asynctile.cli.run_folder import RunFolder
from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.chat_renderer import check_jinja
from asynctile.layers.chats import ChatSource
from asynctile.layers.data_source import DataFile, DataPart, ids_of, open_source, read_source, reopen, whole
from asynctile.layers.examples import ExampleFile, Examples
from asynctile.layers.tokenizer import Tokenizer, has_tokenizer, load_tokenizer, open_tokenizer
from asynctile.layers.tokens import TokenFile, split
from asynctile.storage.counts import counted

__all__ = [
    "Corpus", "chat_format", "check_data", "check_sequence", "check_template", "choose_tokenizer", "expected_vocab_size",
    "open_held_out", "prepare_tokenizer", "prepare_tokens",
]  # fmt: skip

#: The part held out without --validation-share: at most a twentieth of the text, and no more tokens than a good estimate needs.
_HELD_OUT_FRACTION, _HELD_OUT_TOKENS = 0.05, 1 << 17

STANDARD_LIBRARY = "Python's standard library"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Corpus:
    """The training data and the held-out data of a run."""

    tokenizer: Tokenizer
    training: DataPart
    held_out: DataPart
    notes: tuple[str, ...] = ()
    """Sentences about data that was left out or cut, if it was read now."""

    @property
    def has_chats(self) -> bool:
        """Whether the run trains on examples with answers, such as chats."""
        return isinstance(self.training, Examples)

    @property
    def size(self) -> str:
        """How much there is to train on, in words."""
        tokens = f"{len(ids_of(self.training)):,} training tokens"
        return f"{tokens} in {counted(len(self.training), 'example')}" if self.has_chats else tokens


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


def chat_format(options: Options) -> ChatFormat:
    """Return how the run's chats are written: by --chat-template, otherwise by the files in the tokenizer's folder.

    ValueError if these cannot be read. Whether there is a template is not asked here.
    """
    name = choose_tokenizer(options)
    if name == "bytes" or name.startswith("bpe:"):
        return ChatFormat.of({}, f"the tokenizer {name}", options.chat_template)
    folder = Path(name) if Path(name).is_dir() else Path(name).parent
    return ChatFormat.of(read_chat_files(folder), str(folder), options.chat_template)


def check_data(options: Options) -> None:
    """Check the files that --data and --validation-data name.

    ValueError if one cannot be read, if it holds token ids and neither --tokenizer nor the model folder says which tokenizer
    made them, or if it holds chats and there is no template.
    """
    named, has_chats = options.tokenizer or model_folder(options), False
    for path in (options.data, *([] if options.validation_data is None else [options.validation_data])):
        source = open_source(path, options.text_field)
        if not source.is_text and (named is None or str(named).startswith("bpe:")):
            raise ValueError(f"data {source.path} holds tokens without their tokenizer; name the one that made them "
                             "with --tokenizer")
        if isinstance(source, ChatSource) and source.has_messages:
            has_chats = chat_format(options).template is not None  # ValueError if there is none
            check_jinja()
    check_template(options.chat_template, has_chats)


def check_template(template: str | None, has_chats: bool) -> None:
    """Raise ValueError if --chat-template names a file that no data needs."""
    if template is not None and not has_chats:
        raise ValueError(f"--chat-template {template} is for lines of JSON with messages, and the data has none; leave it out")


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

    def tokens_of(path: str | None, kept: Path) -> DataFile:
        if (kept / "tokens.json").exists():
            return reopen(kept)
        source = open_source(path, options.text_field)
        found = read_source(source, tokenizer, kept, format=chat_format(options), seq_len=seq_len, progress=progress)
        said = (source.note, found.note if isinstance(found, ExampleFile) else None)
        notes.extend(f"data {source.path}: {note}" for note in said if note is not None)
        return found

    training, held_out = _parts(options, folder, seq_len, tokens_of)
    return Corpus(tokenizer, training, held_out, tuple(notes))


def open_held_out(options: Options, folder: RunFolder, seq_len: int) -> DataPart:
    """Return the held-out part of a run's existing tokens.

    CheckpointError or ValueError, naming the tokens, if they are missing or damaged.
    """
    return _parts(options, folder, seq_len, lambda _, kept: reopen(kept))[1]


def _parts(
    options: Options, folder: RunFolder, seq_len: int, tokens_of: Callable[[str | None, Path], DataFile]
) -> tuple[DataPart, DataPart]:
    """Return the training part and the held-out part; `tokens_of` gives the tokens of a path, kept in a folder."""
    tokens = tokens_of(options.data, folder.tokens)
    if options.validation_data is None:
        return (_divided_examples(options, tokens) if isinstance(tokens, ExampleFile)
                else _divided(options, tokens, seq_len))  # fmt: skip
    held_out = tokens_of(options.validation_data, folder.validation)
    check_sequence(f"--validation-data {options.validation_data}", held_out, seq_len)
    check_sequence(_data(options), tokens, seq_len)
    return whole(tokens), whole(held_out)


def _divided_examples(options: Options, examples: ExampleFile) -> tuple[DataPart, DataPart]:
    """Return the training part and the held-out part of one file of examples."""
    count, share = len(examples), options.validation_share
    if count < 2:
        raise ValueError(f"{_data(options)} has 1 example, and one to train on and one to hold out are needed; give more "
                         "chats, or --validation-data")
    usual = min(_HELD_OUT_FRACTION, _HELD_OUT_TOKENS / len(examples.ids))
    held_out = math.ceil(count * (usual if share is None else share))
    if held_out >= count:
        raise ValueError(f"--validation-share {share} of the {count:,} examples of {_data(options)} leaves none to train on; "
                         "choose a new share, or give more chats")
    return Examples(examples, 0, count - held_out), Examples(examples, count - held_out, count)


def _divided(options: Options, tokens: TokenFile, seq_len: int) -> tuple[DataPart, DataPart]:
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


def check_sequence(what: str, tokens: DataFile, seq_len: int) -> None:
    """Raise ValueError, naming `what`, if the tokens of a text are shorter than one sequence. Examples are padded."""
    if isinstance(tokens, TokenFile) and len(tokens) <= seq_len:
        raise ValueError(f"{what} has {len(tokens)} tokens, less than one sequence: at least {seq_len + 1} are needed; give "
                         "more text or lower --seq-len")


def _data(options: Options) -> str:
    return f"data {options.data or STANDARD_LIBRARY}"
