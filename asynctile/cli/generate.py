"""`asynctile generate`: continues a prompt with the model of a run, or of a model folder.

Covers finding the model and its tokenizer, and printing. Choosing tokens is the model's `generate`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asynctile.cli.options import Options
from asynctile.cli.placement import engine_of
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.sample import stream_text
from asynctile.cli.terminal import say
from asynctile.errors import AsynctileError, CheckpointError
from asynctile.layers import GPT2
from asynctile.layers.tokenizer import Tokenizer, load_tokenizer, open_tokenizer

__all__ = ["run"]

_PLACEMENT = ("device", "device_memory", "host_memory", "spill", "spill_limit", "link_rate", "prefetch", "precision")


def run(given: dict[str, Any]) -> int:
    """Print the prompt and its continuation; returns the exit status."""
    options = Options(**{name: given[name] for name in _PLACEMENT if name in given}).check()
    weights, tokenizer = find_model(Path(given["folder"]), given["tokenizer"])
    asyncio.run(_generate(given, options, weights, tokenizer))
    return 0


def find_model(folder: Path, named_tokenizer: str | None) -> tuple[Path, Tokenizer]:
    """The folder with the weights, and the tokenizer, of a run or a model folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; name the folder of a run (with run.json) or of a model (with "
                         "config.json)")
    weights = folder
    if (folder / "run.json").is_file():
        checkpoints = RunFolder.open(folder).checkpoints()
        if not checkpoints:
            raise CheckpointError(f"run {folder} has no checkpoint yet; let it train until its first")
        weights = checkpoints[-1]
    elif not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds neither a run (run.json) nor a model (config.json); name one that does")
    if named_tokenizer is not None:
        if named_tokenizer.startswith("bpe:"):
            raise ValueError(f"--tokenizer {named_tokenizer} would be trained anew, and the model knows nothing of it; name "
                             "the file of the model's own tokenizer, or bytes")
        return weights, load_tokenizer(named_tokenizer, ())
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} has no tokenizer.json; name its tokenizer with --tokenizer, such as --tokenizer "
                         "bytes")
    return weights, open_tokenizer(folder)


async def _generate(given: dict[str, Any], options: Options, weights: Path, tokenizer: Tokenizer) -> None:
    async with engine_of(options) as engine:
        model = await GPT2.from_pretrained(engine, weights)
        say(given["prompt"])
        pieces = stream_text(model, tokenizer, tokenizer.encode(given["prompt"]).astype("int64"),
                             max_new_tokens=given["max_new_tokens"], temperature=given["temperature"],
                             top_k=given["top_k"], seed=given["seed"])
        try:
            async for piece in pieces:
                say(piece)
        except AsynctileError as error:  # the engine and the model do not know where the weights come from
            raise AsynctileError(f"the model of {weights}: {error}") from error
    say("\n")
