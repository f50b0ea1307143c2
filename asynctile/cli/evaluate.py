"""`asynctile evaluate`: measures a model on a text, or on the text that its run held out.

Covers finding the text, and printing. saved_model.py finds the model, asynctile/layers/evaluation.py computes the loss. Nothing
is changed: the tokens of a named text stay in a temporary folder meanwhile.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asynctile.cli.corpus import check_sequence, check_template, open_held_out
from asynctile.cli.display import bars
from asynctile.cli.figures import Shown, as_counts, as_sizes
from asynctile.cli.fitting import check_fit
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
from asynctile.cli.model import length_of
from asynctile.cli.options import PLACEMENT, Options
from asynctile.cli.placement import engine_of
from asynctile.cli.precedence import resumed_options
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.saved_model import Saved, find_model, run_of
from asynctile.cli.terminal import print_rows
from asynctile.cli.validation import tokens_of
from asynctile.errors import AsynctileError
from asynctile.layers import Evaluation, evaluate
from asynctile.layers.chats import ChatSource
from asynctile.layers.config import Config
from asynctile.layers.data_source import Windows, open_source, read_source, validation_batches, whole
from asynctile.layers.evaluation import mean_bytes
from asynctile.layers.examples import ExampleFile
from asynctile.layers.special_tokens import check_fit as check_tokenizer
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage import documents

__all__ = ["run"]


#: the `progress` method of a display
_Progress = Callable[..., None]
#: returns the windows for a model's shape
_WindowsOf = Callable[[Config, _Progress], Windows]


def run(given: dict[str, Any]) -> int:
    """Print the model's measurements and return the exit status."""
    placement = check_fit(Options(**{name: given[name] for name in PLACEMENT if name in given}))
    folder = Path(given["folder"])
    if given["data"] is None:
        check_template(given["chat_template"], False)
    saved, tokenizer = find_model(folder, given["tokenizer"], given["adapter"])
    with ExitStack() as stack:
        if given["data"] is not None:
            place = stack.enter_context(TemporaryDirectory(prefix="asynctile-"))
            what, windows = f"data {given['data']}", partial(_windows_of_data, given, tokenizer, saved, Path(place))
        elif (of := run_of(folder)) is not None:
            if given["tokenizer"] is not None:
                raise ValueError(f"--tokenizer {given['tokenizer']} does not go with the held-out text of {of.path}: the run's "
                                 "own tokenizer encoded that text; leave --tokenizer out, or name another text with --data")
            what, windows = f"the held-out part of the run {of.path}", partial(_windows_of_run, given, of)
        else:
            raise ValueError(f"{folder} does not belong to a run with held-out text; name a text with --data")
        interrupt = Interrupt()
        found = interrupt.run(_evaluate(placement, saved, tokenizer, what, windows, bars(stack), interrupt))
    if found is None:
        return EXIT_STATUS
    print_rows([("model", str(saved)), ("on", what), *_rows(found)])
    return 0


def _windows_of_run(given: dict[str, Any], run: RunFolder, shape: Config, _progress: _Progress) -> Windows:
    """Return the windows that the run validates on, unless more or fewer are asked for."""
    options = resumed_options({}, run.read_record()["options"], run.path)
    if options.seq_len is None:
        raise ValueError(f"the run {run.path} has not done its first step; let it train until its first checkpoint")
    held_out = open_held_out(options, run, options.seq_len)
    batch_size, seq_len = given["batch_size"] or options.batch_size, _seq_len(given, options.seq_len, shape)
    return validation_batches(held_out, batch_size, seq_len, given["validation_tokens"] or tokens_of(options))


def _windows_of_data(
    given: dict[str, Any], tokenizer: Tokenizer, saved: Saved, place: Path, shape: Config, progress: _Progress
) -> Windows:
    """Return windows of all tokens of --data, or of fewer if `given`, the options, asks for fewer.

    saved: where the model is. place: folder for the tokens. shape: the model's. progress: called while the text is encoded.
    """
    path, seq_len = given["data"], _seq_len(given, length_of(None, shape), shape)
    source = open_source(path, given["text_field"])
    if source.note is not None:
        warnings.warn(f"data {path}: {source.note}", stacklevel=2)
    check_template(given["chat_template"], isinstance(source, ChatSource) and source.has_messages)
    tokens = read_source(source, tokenizer, place, format=saved.chat_format(given["chat_template"]), seq_len=seq_len,
                         progress=partial(progress, "tokenizing the text", shown=as_sizes))  # fmt: skip
    if isinstance(tokens, ExampleFile) and tokens.note is not None:
        warnings.warn(f"data {path}: {tokens.note}", stacklevel=2)
    check_sequence(f"data {path}", tokens, seq_len)
    return validation_batches(whole(tokens), given["batch_size"] or Options.batch_size, seq_len, given["validation_tokens"])


def _seq_len(given: dict[str, Any], usual: int, shape: Config) -> int:
    """Return --seq-len, or `usual` without it; ValueError if the model takes fewer tokens."""
    seq_len: int = given["seq_len"] or usual
    if seq_len > shape.block_size:
        raise ValueError(f"--seq-len {seq_len} is above the {shape.block_size} tokens that the model takes; choose at most "
                         f"{shape.block_size}")
    return seq_len


async def _evaluate(
    placement: Options, saved: Saved, tokenizer: Tokenizer, what: str, windows_of: _WindowsOf, show: _Progress,
    interrupt: Interrupt,
) -> Evaluation:
    """Return the evaluation; InterruptedError after a signal.

    Threads that read a text check for the signal, because no cancellation ends them.
    """

    def progress(what: str, done: int, total: int, shown: Shown = as_counts) -> None:
        interrupt.check()
        show(what, done, total, shown)

    async with engine_of(placement) as engine:
        model = await saved.open(engine)
        check_tokenizer(tokenizer, model.config.vocab_size, f"the model of {saved}")
        windows = await documents.finish(asyncio.to_thread(windows_of, model.config, progress))
        done = partial(progress, "evaluating", total=len(windows))
        done(done=0)
        try:
            rows = interrupt.watched(windows.rows())
            nbytes = await documents.finish(asyncio.to_thread(mean_bytes, tokenizer, rows))
            return await evaluate(model, windows, bytes_per_token=nbytes, progress=lambda count: done(done=count))
        except ValueError as error:
            raise ValueError(f"the model cannot be evaluated on the tokens of {what}: {error}") from error
        except AsynctileError as error:  # engine and model do not know the folder of the weights
            raise AsynctileError(f"the model of {saved}: {error}") from error


def _rows(found: Evaluation) -> list[tuple[str, str]]:
    bits = [] if found.bits_per_byte is None else [("bits per byte", f"{found.bits_per_byte:.6f}")]
    return [("loss", f"{found.loss:.6f} nats per token"), ("perplexity", f"{found.perplexity:.6f}"), *bits,
            ("tokens", f"{found.tokens:,}"), ("seconds", f"{found.seconds:.2f}")]  # fmt: skip
