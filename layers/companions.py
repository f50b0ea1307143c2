"""Files that stand beside a model's weights for others: its tokenizer, how it is to generate, what people should know of it.

Covers which there are, reading them from a model's folder and writing them into one. They are kept as bytes, and nothing
here looks into them; only a model that came without generation_config.json gets one. What is in the tokenizer's files is
tokenizer.py, which ones a tokenizer gets that has none special_tokens.py, the rest of a folder exchange.py.
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
#: The model card. People write in it, so another content than was saved is no damage.
CARD = "README.md"
#: Every companion, and the most bytes of it. A million tokens, the most that "bpe:N" makes, take 100 MB as tokenizer.json.
LIMITS = {
    GENERATION: DOCUMENT_NBYTES,
    TOKENIZER: 128 << 20,
    TOKENIZER_CONFIG: DOCUMENT_NBYTES,
    "special_tokens_map.json": DOCUMENT_NBYTES,
    "added_tokens.json": DOCUMENT_NBYTES,
    "chat_template.jinja": DOCUMENT_NBYTES,
    "vocab.json": 32 << 20,
    "merges.txt": 32 << 20,
    CARD: DOCUMENT_NBYTES,
}
#: What transformers adds to a prompt where nobody says how much; more than a short window has room for.
NEW_TOKENS = 256

Companions = Mapping[str, bytes]


def checked(files: Companions) -> Companions:
    """A copy of `files` that cannot be changed. ValueError or TypeError if one is no companion, too long, or not bytes."""
    if not isinstance(files, Mapping):
        raise TypeError(f"companions is {shown(files)}, expected a mapping of bytes by name; {{}} for none")
    for name, content in files.items():
        if name not in LIMITS:
            raise ValueError(f"companions have {shown(name)}, expected names among {', '.join(LIMITS)}")
        if not isinstance(content, bytes):
            raise TypeError(f"companion {name} is of {type(content).__name__}, expected bytes: the content of that file")
        if len(content) > LIMITS[name]:
            raise ValueError(f"companion {name} has {len(content)} bytes, expected at most {LIMITS[name]}")
    return MappingProxyType(dict(files))


def read_companions(folder: Path, tick: Callable[[], object] = bool) -> dict[str, bytes]:
    """The companions in a model's folder. CheckpointError for one that is damaged, too long, or no regular file; of a
    checkpoint's card any content is taken.

    tick: called all the time.
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
    """`files`, and a generation_config.json if there is none."""
    return {GENERATION: encode_json(_generation(config)), **files}


def _generation(config: Config) -> dict[str, Any]:
    values = config.to_hf()
    generation = {name: values[name] for name in TOKENS}
    if config.block_size // 2 < NEW_TOKENS:
        # Else a call that says nothing runs beyond the last position, and fails. Half is left to the prompt.
        generation["max_new_tokens"] = max(1, config.block_size // 2)
    return generation
