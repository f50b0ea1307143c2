"""The files beside a model's weights that other programs read: its tokenizer, generation settings, the model card.

Covers the list of these files, and reading and writing them in a model's folder. They are kept as bytes and never parsed here.
Only a model without a generation_config.json gets a new one. tokenizer.py reads the tokenizer's files, special_tokens.py makes
them for a tokenizer that has none, and exchange.py handles the rest of a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asynctile.layers.config import TOKENS, Config
from asynctile.storage.checksums import check_files
from asynctile.storage.folder import encode_json, unreadable
from asynctile.storage.input import DOCUMENT_NBYTES, read_file, shown

GENERATION = "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
#: The model card. People edit it, so changed content does not count as damage.
CARD = "README.md"
#: Every companion with its size limit in bytes. A tokenizer.json of a million tokens, the most that "bpe:N" makes, has 100 MB.
LIMITS = {
    GENERATION: DOCUMENT_NBYTES,
    TOKENIZER: 128 << 20,
    TOKENIZER_CONFIG: DOCUMENT_NBYTES,
    "special_tokens_map.json": DOCUMENT_NBYTES,
    "added_tokens.json": DOCUMENT_NBYTES,
    CHAT_TEMPLATE: DOCUMENT_NBYTES,
    "tokenizer.model": 32 << 20,
    "vocab.json": 32 << 20,
    "merges.txt": 32 << 20,
    CARD: DOCUMENT_NBYTES,
}
#: The length of a text that transformers generates by default. A short window has no room for it.
NEW_TOKENS = 256

Companions = Mapping[str, bytes]


def checked(files: Companions) -> Companions:
    """Return an immutable copy of `files`.

    ValueError for a name that is not a companion's, or for a content that is too long. TypeError for a content that is not
    bytes.
    """
    if not isinstance(files, Mapping):
        raise TypeError(f"companions is {shown(files)}, expected a mapping from file names to bytes; pass {{}} for none")
    for name, content in files.items():
        if name not in LIMITS:
            raise ValueError(f"companions contain {shown(name)}, expected file names among {', '.join(LIMITS)}")
        if not isinstance(content, bytes):
            raise TypeError(f"companion {name} has type {type(content).__name__}, expected bytes: the content of that file")
        if len(content) > LIMITS[name]:
            raise ValueError(f"companion {name} has {len(content)} bytes, expected at most {LIMITS[name]}")
    return MappingProxyType(dict(files))


def read_companions(folder: Path, tick: Callable[[], object] = bool) -> dict[str, bytes]:
    """Return the companions in a model's folder.

    CheckpointError for one that is damaged, too long or not a regular file. A checkpoint's model card may have any content.

    tick: called repeatedly while files are read.
    """
    found = {}
    for name, limit in LIMITS.items():
        try:
            found[name] = read_file(folder / name, limit)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(folder / name, error) from error
        tick()
    check_files(folder, (), tick, others=[name for name in LIMITS if name != CARD])
    return found


def companions_to_write(config: Config, files: Companions) -> dict[str, bytes]:
    """Return `files`, plus a generation_config.json if they have none."""
    return {GENERATION: encode_json(_generation(config)), **files}


def _generation(config: Config) -> dict[str, Any]:
    values = config.to_hf()
    generation = {name: values[name] for name in TOKENS}
    if config.block_size // 2 < NEW_TOKENS:
        # Otherwise a call without a length runs past the last position and fails. Half is left for the prompt.
        generation["max_new_tokens"] = max(1, config.block_size // 2)
    return generation
