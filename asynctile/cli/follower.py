"""`asynctile train --node N` for all nodes but node 0: a session that does its part of what node 0 tells.

It takes the options of the run from node 0, and those of device and memory unless they are typed here. A folder to spill to
must be typed. It reads tokens and checkpoints in the run's folder, which it must see as node 0 does, and writes its part of
each checkpoint there.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asynctile.cli.corpus import prepare_tokenizer, prepare_tokens
from asynctile.cli.display import Display, open_display
from asynctile.cli.fitting import check_join
from asynctile.cli.interrupt import EXIT_STATUS, Interrupt
from asynctile.cli.model import choose_shape, follow, new_trainer, open_model
from asynctile.cli.option import flag
from asynctile.cli.options import PLACEMENT, Options
from asynctile.cli.placement import engine_of
from asynctile.cli.precedence import new_options, resumed_options
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.team import Team, team_of, told_if_refused
from asynctile.cli.terminal import open_console, say
from asynctile.layers import Trainer
from asynctile.layers.data_source import TrainingBatches, training_batches
from asynctile.layers.model import model_state_of
from asynctile.layers.special_tokens import token_ids
from asynctile.storage.input import read_file

__all__ = ["begin", "follow_run", "own_options"]

#: What each node may choose by itself. Precision changes bits, so node 0 chooses it.
_OWN = frozenset({*PLACEMENT, "update", "nodes", "node", "join", "secret_file", "network", "out"}) - {"precision"}
#: What a node never takes from node 0: places to write are typed.
_TYPED = ("spill", "spill_limit")


async def begin(options: Options, folder: RunFolder, team: Team) -> None:
    """Tell a run to the other nodes, as node 0 before it opens the engine, and wait until all have found its folder.

    The run's tokens must be there. A file that is there meanwhile tells the folder from a copy of it.
    """
    newest, tokens = folder.newest, await asyncio.to_thread(_digest, folder)
    mark = await asyncio.to_thread(tempfile.NamedTemporaryFile, dir=folder.path, prefix=".begins-")
    try:
        await team.tell("begin", folder=str(folder.path.absolute()), mark=Path(mark.name).name, tokens=tokens,
                        options=options.to_json(), checkpoint=None if newest is None else newest.name)
        await team.tell("found")
    finally:
        await asyncio.to_thread(mark.close)  # and remove it


def own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the typed options that a node other than node 0 may have."""
    return {name: value for name, value in given.items() if name in _OWN}


async def follow_run(given: Mapping[str, Any], interrupt: Interrupt, saved: Callable[[], object] = bool) -> int:
    """Take part in the run of node 0 until its end; return the exit status.

    saved: called after each checkpoint of the run; must not block.
    """
    typed = dict(given)
    async with told_if_refused(given, interrupt):
        others = [name for name in given if name not in _OWN]
        if others:
            raise ValueError(f"{flag(others[0])} is for node 0, from which node {given['node']} takes it; leave it out")
        options = check_join(new_options({name: value for name, value in typed.items() if name != "out"}))
    display = open_display(open_console(interrupt.lose))
    interrupt.announce = display.note
    with display:
        async with team_of(options, display.stage, interrupt) as team:
            stopped = await _follow(typed, options, team, display, interrupt, saved)
    if stopped:
        say(f"asynctile train: node {options.node} stopped with the others\n")
        return EXIT_STATUS
    return 0


async def _follow(typed: dict[str, Any], options: Options, team: Team, display: Display, interrupt: Interrupt,
                  saved: Callable[[], object]) -> bool:
    """Do what node 0 tells, from the beginning of the run to its end; return whether the run was asked to stop."""
    word = await team.hear(stops=False)
    folder = _folder(word, typed.get("out"), options.node)
    await team.hear(stops=False)
    told = {name: value for name, value in word["options"].items() if name not in _TYPED}
    options = resumed_options({name: value for name, value in typed.items() if name != "out"}, told, folder.path)
    async with engine_of(options, exchange=team.exchange) as engine:
        display.stage("making the model")
        assert options.seq_len is not None
        tokenizer = await asyncio.to_thread(prepare_tokenizer, options, folder)
        corpus = await asyncio.to_thread(prepare_tokens, options, folder, tokenizer, options.seq_len, lambda *_: None)
        batches = training_batches(corpus.training, options.sequences, options.seq_len, options.seed)
        if word["checkpoint"] is None:
            shape = choose_shape(options, tokenizer.vocab_size, token_ids(tokenizer))
            trainer = new_trainer(options, await open_model(engine, options, shape))
        else:
            base = None if options.lora is None else options.model
            checkpoint = folder.path / "checkpoints" / word["checkpoint"]
            trainer = await Trainer.load(engine, checkpoint, update=options.update, base=base)
            follow(trainer, options)
            batches.load_state_dict(trainer.data_state)
        display.note(f"node {options.node} of {options.nodes} trains on {engine.device}, for the run in {folder.path}")
        interrupt.begin_steps()
        return await _take_part(team, trainer, batches, folder, interrupt, saved)


async def _take_part(
    team: Team, trainer: Trainer, batches: TrainingBatches, folder: RunFolder, interrupt: Interrupt,
    saved: Callable[[], object],
) -> bool:  # fmt: skip
    """Step, measure, lend weights and save whenever node 0 does, until it ends the run; return whether it was asked to stop."""
    while (word := await team.hear(stops=interrupt.requested))["do"] != "end":
        if word["do"] == "step":
            await trainer.step(*next(batches))
        elif word["do"] == "measure":
            await trainer.gemm_rate(batches.batch_size, batches.seq_len)
        elif word["do"] == "lend":
            state = model_state_of(trainer.model)
            await state.runtime.call(state.lend())
        else:
            await trainer.save(folder.path / "checkpoints" / word["checkpoint"])
            saved()
    return bool(word["stopped"])


def _folder(word: Mapping[str, Any], typed: str | None, node: int) -> RunFolder:
    """Return the run's folder. ValueError if this node does not see it as node 0 does, or may not write there."""
    path = Path(word["folder"] if typed is None else typed)
    try:
        folder = RunFolder.open(path)
        is_same = _digest(folder) == word["tokens"] and (path / word["mark"]).exists()
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        raise ValueError(f"node {node} does not see the run's folder in {path}, where it reads tokens and checkpoints; "
                         "share the folder between the machines instead of copying it, and name it here with --out if it "
                         "has another path")
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ValueError(f"node {node} cannot write to the run's folder {path}, where it writes its part of each checkpoint: "
                         f"{error.strerror}; run all nodes as users who may write there") from error
    return folder


def _digest(folder: RunFolder) -> str:
    """Return a digest of what identifies the tokens of a run."""
    return hashlib.sha256(read_file(folder.tokens / "tokens.json")).hexdigest()
