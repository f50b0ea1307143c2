"""`asynctile generate`: continues a prompt with the model of a run or of a model folder.

Covers reading the prompt, and printing. saved_model.py finds model and tokenizer, the model's `generate` chooses tokens.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import fields
from pathlib import Path
from typing import Any

from asynctile.cli.fitting import check_fit
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
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


def run(given: dict[str, Any]) -> int:
    """Print the prompt and its continuation, and return the exit status."""
    options = check_fit(Options(**{name: given[name] for name in PLACEMENT if name in given}))
    sampling = Sampling(**{field.name: given[field.name] for field in fields(Sampling)})
    stopping = Stopping(strings=given["stop"])
    saved, tokenizer = find_model(Path(given["folder"]), given["tokenizer"], given["adapter"])
    interrupt = Interrupt()
    interrupt.run(_generate(given, options, saved, tokenizer, sampling, stopping))
    return EXIT_STATUS if interrupt.asked else 0


async def _generate(given: dict[str, Any], options: Options, saved: Saved, tokenizer: Tokenizer, sampling: Sampling,
                    stopping: Stopping) -> None:  # fmt: skip
    prompt = prompt_ids(tokenizer, given["prompt"])
    if not prompt.size:
        raise ValueError(f"the tokenizer turns --prompt {shown(given['prompt'])} into no tokens; give another prompt, "
                         "or name the model's own tokenizer with --tokenizer")
    async with engine_of(options) as engine:
        model = await saved.open(engine)
        check_tokenizer(tokenizer, model.config.vocab_size, f"the model of {saved}")
        stopping.add_ids(_end_ids(model, saved))
        say(given["prompt"])
        try:
            async with aclosing(stream_text(model, tokenizer, prompt, max_new_tokens=given["max_new_tokens"],
                                            sampling=sampling, stopping=stopping)) as pieces:  # fmt: skip
                async for piece in pieces:
                    say(piece)
        except AsynctileError as error:  # engine and model do not know the folder of the weights
            raise AsynctileError(f"the model of {saved}: {error}") from error
        finally:
            say("\n")  # also after Ctrl-C, so that the shell's prompt starts a new line


def _end_ids(model: Model, saved: Saved) -> list[int]:
    """Return the tokens that end a text of the model in this folder."""
    try:
        return end_ids(model.companions, model.config)
    except ValueError as error:
        raise ValueError(f"the model of {saved}: {error}") from error
