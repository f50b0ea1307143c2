"""`asynctile train`: sets up a run, lets session.py do its steps, and ends it.

Covers new and resumed runs. When the set-up of a new run fails, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from asynctile import Engine, __version__
from asynctile.callbacks import Callbacks, Run
from asynctile.cli.callbacks import open_callbacks
from asynctile.cli.card import model_card
from asynctile.cli.corpus import (
    Corpus,
    chat_format,
    check_data,
    choose_tokenizer,
    expected_vocab_size,
    prepare_tokenizer,
    prepare_tokens,
)
from asynctile.cli.display import Display, open_display
from asynctile.cli.figures import as_sizes
from asynctile.cli.fitting import check_devices, check_fit, check_join, steps_of
from asynctile.cli.follower import begin, follow_run
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
from asynctile.cli.model import (
    check_base,
    choose_shape,
    companions_with,
    follow,
    length_of,
    new_trainer,
    open_model,
    tuning_of,
)
from asynctile.cli.options import Options
from asynctile.cli.placement import engine_of, refusal_of_step, warn_of_excess
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import RunFolder, existing_run, recorded_rates, told_rates
from asynctile.cli.search import faster_than_defaults
from asynctile.cli.session import Session, last_words
from asynctile.cli.summary import finish
from asynctile.cli.team import Team, team_of, told_if_refused
from asynctile.cli.terminal import complain, open_console, say
from asynctile.cli.tracing import Tracing, check_path
from asynctile.cli.validation import Validations
from asynctile.errors import AsynctileError, BudgetError, CheckpointError
from asynctile.layers import Trainer
from asynctile.layers.config import STATES_NBYTES, Config
from asynctile.layers.data_source import training_batches, units_of_pass
from asynctile.layers.model import model_state_of
from asynctile.layers.special_tokens import token_ids
from asynctile.schedule.rates import Rates
from asynctile.share import runtime_of
from asynctile.storage import documents
from asynctile.storage.sizes import format_size

__all__ = ["run", "train"]

_RECORDED = ("numpy", "scipy", "numba", "uvloop", "tokenizers", "safetensors")


def run(given: dict[str, Any]) -> int:
    """Run the command and return the exit status."""
    if given.get("ray") is not None:  # the floor above, which only this kind of run needs
        status_of: Callable[[dict[str, Any]], int] = import_module("asynctile.ray.command").run
        return status_of(given)
    interrupt = Interrupt()
    interrupt.last_words = "asynctile train: stopped at once; nothing was changed"
    status = interrupt.run(follow_run(given, interrupt) if given.get("node") else train(given, interrupt))
    return EXIT_STATUS if status is None else status


async def train(given: Mapping[str, Any], interrupt: Interrupt) -> int:
    """Do a run as its only node or as node 0; return the exit status."""
    async with told_if_refused(given, interrupt):
        options, folder, callbacks = open_run(given)
    warn_of_excess(options)
    interrupt.last_words = last_words(folder, folder.newest)
    try:
        return await _train_in(options, folder, callbacks, interrupt)
    finally:
        folder.unclaim()


async def _train_in(options: Options, folder: RunFolder, callbacks: Callbacks, interrupt: Interrupt) -> int:
    display = open_display(open_console(interrupt.lose))
    interrupt.announce = display.note
    interrupt.end_after(options.max_time)
    finished = False
    try:
        with display:
            async with team_of(options, display.stage, interrupt) as team:
                finished = await _run(options, folder, callbacks, display, interrupt, team)
                await team.tell("end", stopped=interrupt.asked and not finished)
    except (asyncio.CancelledError, InterruptedError):
        if not interrupt.requested:
            raise
    except BaseException:
        folder.discard_unless_begun()
        raise
    folder.close()
    if finished:
        return 0
    newest = folder.newest
    folder.discard_unless_begun()
    return _stopped(folder, newest, interrupt)


def _stopped(folder: RunFolder, newest: Path | None, interrupt: Interrupt) -> int:
    """Say how far a stopped run came and return the exit status: 0 if --max-time ended it, as the user asked."""
    lost = interrupt.lost
    if not folder.begun:
        how_far = "stopped before the first step; nothing was changed"
    elif newest is not None:
        how_far = f"stopped; {newest} is saved; --resume --out {folder.path} continues"
    else:
        how_far = f"stopped; no step has changed the model, so nothing was saved in {folder.path}"
    if not interrupt.asked:
        say(f"asynctile train: --max-time reached: {how_far}\n")
        return 0
    if lost is None:
        say(f"asynctile train: {how_far}\n")
        return EXIT_STATUS
    left = lost.errno in (errno.EPIPE, errno.EIO)  # a pipe, a terminal
    complain(f"asynctile train: {'the reader of stdout is gone' if left else f'stdout: {lost.strerror}'}: {how_far}")
    return EXIT_STATUS if left else 2


def open_run(given: Mapping[str, Any]) -> tuple[Options, RunFolder, Callbacks]:
    """Return the options, the folder and the callbacks of the run that was asked for, new or resumed."""
    typed = {name: value for name, value in given.items() if name != "resume"}
    if given.get("resume"):
        if "auto" in typed:
            raise ValueError("--auto chooses the settings of a new run, and a resumed run keeps its own; leave it out")
        folder = existing_run(typed)
        folder.claim()
        try:
            record = folder.read_record()
            options = check_join(resumed_options(typed, record["options"], folder.path))
            check_devices(options)
            folder.rates = recorded_rates(record, options.device, options.precision, folder.path)
            _check_written(options, typed, folder)
            return options, folder, open_callbacks(options.callback, options.tensorboard)
        except BaseException:
            folder.unclaim()
            raise
    options = check_join(new_options(typed))
    check_devices(options)
    _check_written(options, typed, None)
    if options.out is None:
        options = replace(options, out="runs/" + time.strftime("%Y-%m-%d-%H%M%S"))
    # Before anything is created: a mistyped path is the most likely mistake.
    check_data(options)
    check_base(options)
    tuning_of(options, choose_shape(options, expected_vocab_size(options)))  # and a tokenizer may take minutes to train
    options = replace(options, tokenizer=choose_tokenizer(options))
    callbacks = open_callbacks(options.callback, options.tensorboard)
    assert options.out is not None
    return options, RunFolder.create(Path(options.out), _record(options, None)), callbacks


def _check_written(options: Options, typed: Mapping[str, Any], run: RunFolder | None) -> None:
    """Refuse a --trace path that exists or is in a missing folder, and a --spill folder that only run.json names."""
    check_path(options.trace)
    if run is not None and options.spill is not None and "spill" not in typed:
        raise ValueError(f"the run {run.path} used --spill {options.spill}, and a place to write must be typed each time; type "
                         "it again, or --spill none to continue without")


async def _run(options: Options, folder: RunFolder, callbacks: Callbacks, display: Display, interrupt: Interrupt,
               team: Team) -> bool:
    """Return True if the run is finished, False if it was asked to stop before."""
    display.stage("reading the text")
    # Wait for the thread even when asked to stop: it must not write into a folder that is being removed.
    tokenizer = await documents.finish(asyncio.to_thread(prepare_tokenizer, options, folder))
    shape = choose_shape(options, tokenizer.vocab_size, token_ids(tokenizer))
    options = replace(options, seq_len=length_of(options.seq_len, shape))

    def progress(done: int, total: int) -> None:
        interrupt.check()
        display.progress("tokenizing the text", done, total, as_sizes)

    assert options.seq_len is not None
    tokens = asyncio.to_thread(prepare_tokens, options, folder, tokenizer, options.seq_len, progress)
    corpus = await documents.finish(tokens)
    for note in corpus.notes:
        display.note(note)
    if options.epochs is not None:
        steps = steps_of(options.epochs, *units_of_pass(corpus.training, options.sequences, options.seq_len))
        options = check_fit(replace(options, epochs=None, steps=steps, decay_steps=options.decay_steps or steps))
    if options.auto is not None and folder.is_new:
        display.stage("searching for faster settings")
        options = await documents.finish(asyncio.to_thread(_faster, options, shape, folder, display, interrupt))
    if options.nodes > 1:
        await begin(options, folder, team)
    async with AsyncExitStack() as stack:
        display.stage("opening the device")
        engine = await stack.enter_async_context(_engine(options, display, folder.rates, team))
        try:
            session = await _open_session(options, folder, shape, corpus, engine, callbacks, display, interrupt, team)
        except BudgetError as error:
            display.stage("counting what a step needs")
            raise await refusal_of_step(error, engine, options, shape) from error
        options = session.options
        told = told_rates(engine.rates, engine.device, engine.precision)
        folder.remember({**_record(options, shape), "rates": told}, session.mark)
        for line in _opening(options, folder, session):
            display.note(line)
        display.watch(engine.statistics)
        stack.callback(display.watch, None)
        if options.trace is not None:
            session.tracing = Tracing(engine, options, display.note)
            await session.tracing.begin()
            stack.push_async_callback(session.tracing.end)
        interrupt.begin_steps()
        return await _told(session)


def _faster(options: Options, shape: Config, folder: RunFolder, display: Display, interrupt: Interrupt) -> Options:
    """Return the options with the fastest settings that planning finds within the time of --auto."""
    assert options.auto is not None
    until = time.monotonic() + options.auto
    found = faster_than_defaults(options, shape, folder.rates, lambda: interrupt.requested or time.monotonic() > until)
    if interrupt.asked:
        return options
    if found is None:
        display.note("--auto found no faster settings")
        return options
    display.note(f"--auto chose {found.words()}: a step of {found.plan.step_s:.3g} s by the plan")
    return replace(options, **found.changes)


async def _told(session: Session) -> bool:
    """Run the session to its end and finish it, and report this to callbacks. Returns as `_run`."""
    options, trainer = session.options, session.trainer
    shape = trainer.model.config
    try:
        await session.callbacks.begin(Run(folder=session.folder.path, options=options.to_json(), config=shape.to_hf(),
                                          parameters=shape.parameter_count, steps=options.steps,
                                          first_step=trainer.step_count + 1))  # fmt: skip
        await session.run()
        finished = not session.interrupt.requested and await finish(session)
    except BaseException:
        with suppress(AsynctileError):  # the first error is the one to report
            await session.callbacks.end("failed")
        raise
    await session.callbacks.end("finished" if finished else "stopped")
    return finished


def _engine(options: Options, display: Display, rates: Rates | None, team: Team) -> Engine:
    def compiled(kernel: str, ready: int, total: int) -> None:
        display.progress("compiling kernels (once per machine)", ready, total, lambda *_: f"{ready} of {total} ({kernel})")

    return engine_of(options, compiled, rates, team.exchange)


async def _open_session(options: Options, folder: RunFolder, shape: Config, corpus: Corpus, engine: Engine,
                        callbacks: Callbacks, display: Display, interrupt: Interrupt, team: Team) -> Session:
    assert options.seq_len is not None
    batches = training_batches(corpus.training, options.sequences, options.seq_len, options.seed)
    newest = folder.newest
    if not folder.is_new:
        display.note(folder.start(newest))
    if newest is not None:
        display.stage(f"reading {newest}")
        try:
            trainer = await Trainer.load(
                engine, newest, update=options.update, base=None if options.lora is None else options.model)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; without {newest}, {folder.start(folder.before_newest)}") from error
        options, changes = follow(trainer, options)
        if changes:
            display.note(changes)
    else:
        display.stage("making the model")
        trainer = new_trainer(options, await open_model(engine, options, shape))
    # As in a resumed run: the schedule keeps its end if there are more steps.
    options = replace(options, warmup=options.warmup_steps, decay_steps=options.last_decay_step)
    card = partial(model_card, folder.path.absolute().name, shape, _record(options, shape))
    session = Session(options=options, folder=folder, corpus=corpus, engine=engine, trainer=trainer, batches=batches,
                      validations=Validations.of(corpus, options), card=card, display=display, interrupt=interrupt,
                      callbacks=callbacks, team=team)
    if newest is not None:
        session.go_on(newest)
    chat = chat_format(options).files if corpus.has_chats and newest is None else {}
    trainer.model.companions = await asyncio.to_thread(companions_with, corpus.tokenizer, trainer.model, chat)
    return session


def _opening(options: Options, folder: RunFolder, session: Session) -> list[str]:
    engine, shape = session.engine, session.trainer.model.config
    runtime = runtime_of(engine)
    each = " on each device" if runtime.devices > 1 else ""
    spill = [] if options.spill is None else [f"tiles that do not fit into RAM spill to {options.spill}"]
    trained, total = model_state_of(session.trainer.model).tuning.counts(shape)
    size = f"{total:,} parameters" if trained == total else f"{trained:,} of {total:,} parameters are trained"
    return [f"{size}, {format_size(STATES_NBYTES * trained)} of states, on {engine.device} in "
            f"{engine.precision} with a memory cap of {format_size(runtime.device_cap)}{each}",
            *spill,
            f"{session.corpus.size}; writing to {folder.path}",
            *_to_do(session.validations, session.trainer.step_count, options.steps)]


def _to_do(validations: Validations, done: int, steps: int) -> list[str]:
    if validations.is_over and done < steps:
        return [f"no step is left after step {done}: {validations.why_over}",
                "continue with a larger --stop-after, or none"]
    if done >= steps:
        return [f"no step is left after step {done}; continue with a larger --steps"]
    return [f"training steps {done + 1} to {steps}"]


def _record(options: Options, shape: Config | None) -> dict[str, Any]:
    found = {"asynctile": __version__, "python": sys.version.split()[0]}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"options": options.to_json(), "model": None if shape is None else shape.to_hf(), "versions": found}
