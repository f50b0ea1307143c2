"""How a model writes chats: its template, and the special tokens that a template may name.

Covers `ChatFormat`, `read_chat_files` and `ROLES`. Templates are text here; chat_renderer.py applies them in a process of their
own. chats.py makes examples of chats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynctile.layers.bpe_files import SPECIAL
from asynctile.layers.companions import CHAT_TEMPLATE, LIMITS, TOKENIZER_CONFIG
from asynctile.layers.special_tokens import of_tokenizer
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage.input import parse_json, read_file, shown

__all__ = ["ANSWERING", "ROLES", "ChatFormat", "read_chat_files"]

#: Who may speak in a chat. A template may know fewer.
ROLES = ("system", "developer", "user", "assistant", "tool")
#: The role whose messages a model learns and writes.
ANSWERING = "assistant"
#: The companions of a model that say how it writes chats.
_FILES = (TOKENIZER_CONFIG, SPECIAL, CHAT_TEMPLATE)
#: The special tokens that transformers gives a template by name.
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: Which template counts if a tokenizer_config.json has several.
_DEFAULT = "default"
_WAY_OUT = "name one with --chat-template"


@dataclass(frozen=True)
class ChatFormat:
    """The files that say how a model writes chats, content by name, and where they come from, for messages.

    named: the file of the template, if it was named apart from the others.
    """

    files: Mapping[str, bytes]
    place: str
    named: str | None = None

    @classmethod
    def of(cls, files: Mapping[str, bytes], place: str, template: str | os.PathLike[str] | None = None) -> ChatFormat:
        """Return the format of a model's companions. template: a file to take the template from instead.

        ValueError, naming that file, if it cannot be read.
        """
        found = {name: files[name] for name in _FILES if name in files}
        if template is None:
            return cls(found, place)
        try:
            return cls({**found, CHAT_TEMPLATE: read_file(template, LIMITS[CHAT_TEMPLATE])}, place, os.fspath(template))
        except OSError as error:
            raise ValueError(f"--chat-template {os.fspath(template)} cannot be read: {error.strerror}; name a file with a "
                             "Jinja template") from error

    @property
    def has_template(self) -> bool:
        """Whether the files hold a template, readable or not."""
        return CHAT_TEMPLATE in self.files or "chat_template" in self._values(TOKENIZER_CONFIG)

    @property
    def origin(self) -> str:
        """Where the template is from, for messages: the named file, or the file of a model."""
        return self.named or f"{self.place} ({CHAT_TEMPLATE if CHAT_TEMPLATE in self.files else TOKENIZER_CONFIG})"

    @property
    def template(self) -> str:
        """The Jinja template: chat_template.jinja, otherwise that of tokenizer_config.json. ValueError if there is none."""
        if CHAT_TEMPLATE in self.files:
            try:
                return self.files[CHAT_TEMPLATE].decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"the chat template of {self.origin} is not text: byte {error.start} is not UTF-8; "
                                 f"{_WAY_OUT}") from error
        found = self._values(TOKENIZER_CONFIG).get("chat_template")
        if isinstance(found, list):  # one for each purpose
            named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
            found = named.get(_DEFAULT)
        if found is None:
            raise ValueError(f"{self.place} has no chat template ({CHAT_TEMPLATE}, or chat_template in {TOKENIZER_CONFIG}); "
                             f"{_WAY_OUT}")
        if not isinstance(found, str):
            raise ValueError(f"{TOKENIZER_CONFIG} of {self.place} says chat_template {shown(found)}, expected a string; "
                             f"{_WAY_OUT}")
        return found

    def names(self, tokenizer: Tokenizer) -> dict[str, str]:
        """Return the special tokens that a template may name, such as eos_token.

        They are those of the files. A model without these files has what its tokenizer's tokens are named after.
        """
        values = self._values(TOKENIZER_CONFIG)
        if TOKENIZER_CONFIG not in self.files:
            values = self._parsed(TOKENIZER_CONFIG, of_tokenizer(tokenizer, 1)[TOKENIZER_CONFIG])
        if "added_tokens_decoder" not in values:
            values |= self._values(SPECIAL)
        found = {}
        for name in _NAMES:
            value = values.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                found[name] = content
        return found

    def _values(self, name: str) -> dict[str, Any]:
        return self._parsed(name, self.files[name]) if name in self.files else {}

    def _parsed(self, name: str, content: bytes) -> dict[str, Any]:
        try:
            values = parse_json(content)
        except ValueError as error:
            raise ValueError(f"{name} of {self.place} is damaged: it is not JSON ({error}); copy it again") from error
        return values if isinstance(values, dict) else {}


def read_chat_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that say how a model writes chats. ValueError, naming the file, if one is unreadable."""
    found = {}
    for name in _FILES:
        try:
            found[name] = read_file(folder / name, LIMITS[name])
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ValueError(f"{folder / name} cannot be read: {error.strerror}; copy it again, or remove it") from error
    return found
