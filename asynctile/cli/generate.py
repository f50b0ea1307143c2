"""`asynctile generate`: continues a prompt with the model of a run or of a model folder, or talks with the model.

Covers what to write and printing a continuation. chat.py answers messages, saved_model.py finds model and tokenizer, and the
model's `generate` chooses tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.cli.chat import Chat, open_renderer
from asynctile.cli.fitting import check_fit
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
from asynctile.cli.option import flag
from asynctile.cli.options import PLACEMENT, Options
from asynctile.cli.placement import engine_of
from asynctile.cli.sample import stream_text
from asynctile.cli.saved_model import Saved, find_model
from asynctile.cli.terminal import say
from asynctile.errors import AsynctileError
from asynctile.layers import Model, Sampling
from asynctile.layers.special_tokens import check_fit as check_tokenizer
from asynctile.layers.special_tokens import end_ids, prompt_ids
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage.input import shown

__all__ = ["run"]


#: Writes with a model that ends texts at these tokens.
_Write = Callable[[Model, Collection[int]], Awaitable[None]]


def run(given: dict[str, Any]) -> int:
    """Print the prompt and its continuation, or the answers to messages, and return the exit status."""
    options = check_fit(Options(**{name: given[name] for name in PLACEMENT if name in given}))
    sampling = Sampling(**{field.name: given[field.name] for field in fields(Sampling)})
    Stopping(strings=given["stop"])  # raises for strings that cannot end a text
    _check_words(given)
    saved, tokenizer = find_model(Path(given["folder"]), given["tokenizer"], given["adapter"])
    interrupt = Interrupt()
    with nullcontext() if given["prompt"] is not None else open_renderer(given, saved, tokenizer) as renderer:
        if renderer is None:
            write: _Write = partial(_continue, given, tokenizer, sampling, _prompt_ids(given, tokenizer))
        else:
            write = Chat(given, tokenizer, sampling, renderer).run
        interrupt.run(_generate(options, saved, tokenizer, write))
    return EXIT_STATUS if interrupt.asked else 0


def _check_words(given: dict[str, Any]) -> None:
    """Raise ValueError unless the options name one thing to write."""
    talks = given["chat"] or given["message"] is not None
    if given["prompt"] is None and not talks:
        raise ValueError("there is nothing to write: give --prompt TEXT to continue a text, or --chat for a conversation")
    if given["prompt"] is not None and talks:
        raise ValueError("--prompt continues a text, and --chat and --message answer messages; leave one of them out")
    if given["chat"] and given["message"] is not None:
        raise ValueError("--message answers a single message, and --chat reads messages from the input; leave one of them out")
    for name in ("system", "chat_template"):
        if given[name] is not None and not talks:
            raise ValueError(f"{flag(name)} is for a conversation; add --chat or --message, or leave it out")


def _prompt_ids(given: dict[str, Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    prompt = prompt_ids(tokenizer, given["prompt"])
    if not prompt.size:
        raise ValueError(f"the tokenizer turns --prompt {shown(given['prompt'])} into no tokens; give another prompt, "
                         "or name the model's own tokenizer with --tokenizer")
    return prompt


async def _generate(options: Options, saved: Saved, tokenizer: Tokenizer, write: _Write) -> None:
    """Open the model and write with it."""
    async with engine_of(options) as engine:
        model = await saved.open(engine)
        check_tokenizer(tokenizer, model.config.vocab_size, f"the model of {saved}")
        ends = _end_ids(model, saved)
        try:
            await write(model, ends)
        except AsynctileError as error:  # engine and model do not know the folder of the weights
            raise AsynctileError(f"the model of {saved}: {error}") from error
        finally:
            say("\n")  # also after Ctrl-C, so that the shell's prompt starts a new line


async def _continue(given: dict[str, Any], tokenizer: Tokenizer, sampling: Sampling, prompt: NDArray[np.int64], model: Model,
                    ends: Collection[int]) -> None:  # fmt: skip
    """Print a prompt and its continuation."""
    say(given["prompt"])
    async with aclosing(stream_text(model, tokenizer, prompt, max_new_tokens=given["max_new_tokens"], sampling=sampling,
                                    stopping=Stopping(ends, given["stop"]))) as pieces:  # fmt: skip
        async for piece in pieces:
            say(piece)


def _end_ids(model: Model, saved: Saved) -> list[int]:
    """Return the tokens that end a text of the model in this folder."""
    try:
        return end_ids(model.companions, model.config)
    except ValueError as error:
        raise ValueError(f"the model of {saved}: {error}") from error
