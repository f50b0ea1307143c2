"""Chats, and prompts with their completions, as examples for training: lines of JSON in, token ids and answers out.

Covers `ChatSource`, `is_chat`, `chat_example` and `encode_answers`. A line has `messages`, or `prompt` and `completion`. The
loss of an example is that of its answers alone. chat_format.py finds the template, chat_renderer.py applies it, examples.py
keeps the result, conversations.py makes rows of chats in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.byte_tokenizer import ByteTokenizer
from asynctile.layers.chat_format import ANSWERING, ROLES, ChatFormat
from asynctile.layers.chat_renderer import Message, Renderer, Span
from asynctile.layers.examples import Example, ExampleFile, keep_examples
from asynctile.layers.jsonl import SUFFIX, names_in, read_objects, without_halves
from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import HuggingFaceTokenizer, Tokenizer
from asynctile.layers.tokens import Progress
from asynctile.storage.input import shown

__all__ = ["MESSAGES", "ChatSource", "chat_example", "checked_messages", "encode_answers", "is_chat"]

#: The fields of a line.
MESSAGES, PROMPT, COMPLETION, TOOLS = "messages", "prompt", "completion", "tools"
_CORRECT = "correct the line, or remove it"


class _Line(NamedTuple):
    """A line's object, words for the line, and how many bytes of all files have been read with it."""

    found: dict[str, Any]
    where: str
    nbytes: int


class ChatSource:
    """The chats of a .jsonl file, or of a folder of such files, that a text source has found."""

    #: messages can be given to any tokenizer
    is_text = True

    def __init__(self, text: TextSource) -> None:
        self._text = text
        self.path, self.note, self.nbytes, self.fingerprint = text.path, text.note, text.nbytes, text.fingerprint
        #: whether lines have messages, which need a template; otherwise they have a prompt and a completion
        self.has_messages = MESSAGES in _first_of(text)

    def pieces(self) -> Iterator[bytes]:
        """Yield the texts of all messages, prompts and completions, to train a tokenizer on."""
        for line in self._lines():
            if self.has_messages:
                messages = checked_messages(line.found[MESSAGES], f"data {line.where}")
                texts = [message.get("content") or "" for message in messages]
            else:
                texts = [*_completed(line)]
            yield from (without_halves(text).encode() for text in texts)

    def examples(
        self, tokenizer: Tokenizer, format: ChatFormat, seq_len: int, folder: Path, *, progress: Progress | None = None
    ) -> ExampleFile:
        """Return the examples with at most `seq_len` targets each, kept in `folder`; see `keep_examples`.

        `progress` is called with bytes done and bytes in all. ValueError, naming file and line, for a line that is no chat, has
        no answer, or cannot be rendered, and for everything that is wrong with the template.
        """
        names = format.names(tokenizer)
        template = format.template if self.has_messages else None
        digest = hashlib.sha256(json.dumps([template, names], sort_keys=True).encode())
        with closing(self._encoded(tokenizer, names, template, format.origin, progress)) as found:
            return keep_examples(self._text, tokenizer, folder, {"format": digest.hexdigest()}, seq_len, found)

    def _encoded(
        self, tokenizer: Tokenizer, names: Mapping[str, str], template: str | None, place: str, progress: Progress | None
    ) -> Generator[Example]:
        """Yield the example of each line, whole."""
        with ExitStack() as stack:
            renderer = None if template is None else stack.enter_context(Renderer(template, names, place))
            for line in self._lines():
                found = line.found
                example = (
                    _completed_example(line, tokenizer, names) if renderer is None
                    else chat_example(found[MESSAGES], found.get(TOOLS), tokenizer, renderer, f"data {line.where}")
                )  # fmt: skip
                if not example.answers[1:].any():
                    raise ValueError(f"data {line.where} has no token of an answer, so there is nothing to learn; {_CORRECT}")
                yield example
                if progress is not None:
                    progress(line.nbytes, self.nbytes)

    def _lines(self) -> Iterator[_Line]:
        """Yield the lines of all files. ValueError, naming file and line, for one without the fields of the first."""
        fields, done = (MESSAGES,) if self.has_messages else (PROMPT, COMPLETION), 0
        for path in self._text.files:
            try:
                for found, where, place in read_objects(path, fields[0]):
                    missing = [name for name in fields if name not in found]
                    if missing:
                        raise ValueError(f"data {where} has no field {shown(missing[0])} ({names_in(found)}), which the first "
                                         f"line has; {_CORRECT}")
                    yield _Line(found, where, done + place)
                done += path.stat().st_size
            except OSError as error:
                raise ValueError(f"data {error.filename} cannot be read: {error.strerror}; restore it") from error


def is_chat(text: TextSource) -> bool:
    """Return whether a text source's files are lines of JSON of which the first is a chat, or a prompt with its completion.

    A line with the field that holds texts is a text, unless that field is `messages`.
    """
    if not text.files or any(path.suffix.lower() != SUFFIX for path in text.files):
        return False
    found = _first_of(text)
    if text.text_field in found and text.text_field != MESSAGES:
        return False
    return MESSAGES in found or {PROMPT, COMPLETION} <= found.keys()


def _first_of(text: TextSource) -> dict[str, Any]:
    """Return the first object of a source's files; an empty one if the first line is none, which reading then reports."""
    try:
        return next(chain.from_iterable(read_objects(path, text.text_field) for path in text.files))[0]
    except (StopIteration, ValueError, OSError):
        return {}


def chat_example(
    messages: object, tools: object, tokenizer: Tokenizer, renderer: Renderer, where: str, way: str = _CORRECT
) -> Example:
    """Return a chat as an example, whole. where, way: words for the chat and for the way out, in messages.

    ValueError if this is no chat or has no message to learn, and for all that goes wrong in the template.
    """
    known = checked_messages(messages, where, way)
    if not isinstance(tools, list | None):
        raise ValueError(f"{where} has {shown(tools)} as {shown(TOOLS)}, expected a list of tools; {way}")
    if not any(message["role"] == ANSWERING for message in known):
        raise ValueError(f"{where} has no message of the role {ANSWERING}, so there is nothing to learn; {way}")
    try:
        text, spans = renderer.answers(known, tools)
    except ValueError as error:
        raise ValueError(f"{where} cannot be rendered: {error}, or correct the chat") from error
    return encode_answers(tokenizer, text, spans)


def _completed_example(line: _Line, tokenizer: Tokenizer, names: Mapping[str, str]) -> Example:
    prompt, completion = _completed(line)
    begin = len(prompt)
    ids, answers = encode_answers(tokenizer, prompt + completion, [(begin, begin + len(completion))], around=True)
    end = tokenizer.special.get(names.get("eos_token", ""))
    if end is None:
        return Example(ids, answers)
    if ids.size and ids[-1] == end:  # a tokenizer.json may put the end there itself
        answers[-1] = True
        return Example(ids, answers)
    return Example(np.append(ids, np.asarray(end, ids.dtype)), np.append(answers, True))


def _completed(line: _Line) -> tuple[str, str]:
    """Return the prompt and the completion of a line. ValueError if one is not a string, or if the completion is empty."""
    for name in (PROMPT, COMPLETION):
        if not isinstance(line.found[name], str):
            raise ValueError(f"data {line.where} has {shown(line.found[name])} as {shown(name)}, expected a string; give chats "
                             f"as {MESSAGES}, or correct the line")
    if not line.found[COMPLETION]:
        raise ValueError(f"data {line.where} has an empty {COMPLETION}, so there is nothing to learn; {_CORRECT}")
    return line.found[PROMPT], line.found[COMPLETION]


def checked_messages(messages: object, where: str, way: str = _CORRECT) -> Sequence[Message]:
    """Return the messages of a chat. ValueError, naming the message, for anything else. where, way: as for `chat_example`."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{where} has {shown(messages)} as {shown(MESSAGES)}, expected a list of messages, each with role and "
                         f"content; {way}")
    for number, message in enumerate(messages, 1):
        what = f"{where} message {number},"
        if not isinstance(message, dict):
            raise ValueError(f"{what} is {shown(message)}, expected an object with role and content; {way}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in ROLES:
            expected = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
            raise ValueError(f"{what} has the role {shown(role)}, expected {expected}; {way}")
        if not isinstance(content, str) and not (content is None and isinstance(message.get("tool_calls"), list)):
            raise ValueError(f"{what} has {shown(content)} as content, expected a string (pictures and other parts are not "
                             f"read); {way}")
    return messages


def encode_answers(tokenizer: Tokenizer, text: str, spans: Sequence[Span], *, around: bool = False) -> Example:
    """Return a text as an example.

    A token belongs to an answer if it covers a character of one, as for `return_assistant_tokens_mask` in transformers.

    spans: the characters of the answers, in order. around: with the tokens that a tokenizer.json puts around a text.
    """
    text = without_halves(text)
    ids, places = _encoded(tokenizer, text, around)
    begins, ends = np.asarray(spans, np.int64).reshape(-1, 2).T
    first = np.searchsorted(ends, places[:, 0], side="right")  # the first answer that ends behind the token's first character
    is_before = first < len(ends)
    answers = np.zeros(len(ids), np.bool_)
    answers[is_before] = places[is_before, 1] > begins[first[is_before]]
    return Example(ids, answers)


def _encoded(tokenizer: Tokenizer, text: str, around: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the ids (n,) of a text, and the first character of each and the one behind its last (n, 2)."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.encode_places(text, around=around)
    if not isinstance(tokenizer, ByteTokenizer):
        raise TypeError(f"tokenizer is {shown(tokenizer)}, which does not tell which characters a token covers; use one of "
                        "load_tokenizer")
    ids = tokenizer.encode(text)
    characters = np.cumsum((ids & 0xC0) != 0x80, dtype=np.int64)  # other bytes continue a character
    return ids, np.stack([characters - 1, characters], axis=1)
