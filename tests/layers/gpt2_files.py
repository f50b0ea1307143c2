"""A small tokenizer in the files of GPT-2: vocab.json, merges.txt, and files that may lie beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from asynctile.layers.tokenizer import train_bpe

END = "<|endoftext|>"
TEXT = (
    "The tile moved from the device to the disk, and that's 1234 bytes.\n\n"
    "  \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \U0001f600\n"
) * 20


@cache
def trained(vocab_size: int) -> dict[str, Any]:
    """Return the model in the tokenizer.json of a BPE with this many tokens."""
    found: dict[str, Any] = json.loads(train_bpe([TEXT], vocab_size).to_json())["model"]
    assert len(found["vocab"]) == vocab_size
    return found


def write_gpt2_files(folder: Path, vocab_size: int, beside: Mapping[str, Any], *, end: bool = True) -> None:
    """Write a tokenizer whose vocabulary has `vocab_size` tokens, and with `end` also <|endoftext|> as the next one."""
    model = trained(vocab_size)
    vocab = model["vocab"] | ({END: vocab_size} if end else {})
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("".join(f"{line}\n" for line in ("#version: 0.2", *merges)))
    for name, content in beside.items():
        (folder / name).write_text(json.dumps(content))
