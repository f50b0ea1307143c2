"""Checkpoints of a trainer: a folder with weights, moments and the state of the training.

Of a model that is trained whole, the folder is a model folder: config.json and model.safetensors make it loadable as a model.
Of an adapted model it is the folder of an adapter (adapter_files.py): its base is not copied, trainer.json says where it is.
optimizer.safetensors holds the moments by parameter name, trainer.json (training_state.py) everything else, checksums.json the
checksum of each of these files. The folder is written beside its final place, synced and renamed (storage/folder.py), either at
once or from a snapshot while training goes on (snapshot.py). Several nodes write the weights and the moments in several files,
with an index (checkpoint_parts.py); any number of nodes loads them.

Everything that makes a resumed training bitwise equal is here: weights, moments, the number of updates and skipped steps, the
settings, and the position in the data. The data is the only part with random state (Batches.state_dict).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from asynctile.errors import CheckpointError
from asynctile.layers.adapter_files import ADAPTER_CONFIG, AdapterFiles
from asynctile.layers.carriers import table
from asynctile.layers.checkpoint_parts import OPTIMIZER, Content, foundation_of, mark_of, save_together
from asynctile.layers.companions import checked
from asynctile.layers.config import Config
from asynctile.layers.exchange import CONFIG, Base, Pretrained, check_place
from asynctile.layers.model_state import ModelState
from asynctile.layers.nodes import Nodes
from asynctile.layers.parameters import MOMENTS, Parameter
from asynctile.layers.saving import Counted, Progress
from asynctile.layers.settings import Training
from asynctile.layers.snapshot import Snapshot
from asynctile.layers.telling import told_save
from asynctile.layers.training_state import (
    TRAINER,
    Foundation,
    arithmetic_of,
    check_format,
    check_state,
    encoded,
    state_of,
    surroundings,
    training_in,
    warn_of_changes,
)
from asynctile.layers.tuning import Tuning, checked_freeze
from asynctile.layers.weight_files import tensor_name
from asynctile.loop.files import Files
from asynctile.loop.thread import under_shield
from asynctile.runtime import Runtime
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import check_files
from asynctile.storage.documents import load_json
from asynctile.storage.tensors import TensorReader


async def save(
    model: ModelState, training: Training, final: Path, *, wait: bool, progress: Progress | None = None
) -> asyncio.Task[None] | None:
    """Write the checkpoint folder `final`, on the device's loop. An older one there is replaced only when the new one is whole.

    Without `wait`, if the engine lends RAM for a copy of all tiles, return the task that writes the checkpoint; otherwise write
    it now and return None. progress: as in Trainer.save. Of several nodes, each writes its part (checkpoint_parts.py).
    """
    nodes = Nodes(model.runtime)
    if nodes.count > 1:
        await save_together(model, training, final, nodes, progress)
        return None
    what = f"the save of {final}"
    files, foundation = model.runtime.files(what), foundation_of(model)
    await files.run(check_place, final, mark_of(foundation))
    state = encoded(await model.runtime.compute(state_of, model, training, foundation), final)
    content = Content(model, state, foundation, nodes)
    snapshot = None if wait else await Snapshot.take(model.runtime, content.tiles(), what)
    if snapshot is None:
        with told_save(model.runtime, model.name, final, training.step_count, behind=False):
            await content.write(final, content.counted(0, model.runtime.read, progress), files)
        return None
    counted = content.counted(0, snapshot.read, progress)
    task = model.runtime.spawn(_write_behind(content, training.step_count, final, counted, files))
    # Not in the task's own `finally`: a task that is cancelled before it begins never reaches it.
    task.add_done_callback(lambda _: snapshot.give_back())
    return task


async def _write_behind(content: Content, step: int, final: Path, tiles: Counted, files: Files) -> None:
    with told_save(content.model.runtime, content.model.name, final, step, behind=True):
        await content.write(final, tiles, files)


async def load(
    runtime: Runtime, path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None
) -> tuple[ModelState, Training]:
    """Return a model with its moments, and its training, from a checkpoint folder. Runs on the device's loop.

    base: as in Trainer.load.
    """
    files = runtime.files(f"the load of {os.fspath(path)}")
    folder = await files.run(whole_folder, path)
    if not await files.run(folder.is_dir):
        raise CheckpointError(f"{path} is not a folder; expected a checkpoint folder written by Trainer.save")
    await files.run(_check_kind, folder)
    state = await load_json(folder / TRAINER, finite=False, executor=files)  # a caller's data_state may hold any number
    check_format(state, folder)  # first: nothing else is known about a later format
    if state["format"] < 4:  # before there were replicas
        state = {"replicas": 1, **state}
    await files.run(check_files, folder, (TRAINER,), files.tick)
    check_state(state, folder)
    foundation = Foundation.of(state, folder)
    if foundation is None and base is not None:
        raise ValueError(f"{folder} holds a whole model, which has no base; leave base out")
    with ExitStack() as opened:  # entered in the thread: closes what the thread opened even if the load was cancelled meanwhile
        place = folder if foundation is None else Path(foundation.base.path if base is None else base)
        source, found = await files.run(_source, opened, folder, place, foundation, files.tick)
        adapter = None
        if foundation is not None:
            adapter = await files.run(lambda: opened.enter_context(AdapterFiles(folder, source.config, files.tick)))
        try:
            tuning = Tuning(None if adapter is None else adapter.lora, checked_freeze(state.get("freeze", ())))
            tuning.check(source.config)
            training = training_in(state)
            stored = source.stored if foundation is not None and foundation.stored else frozenset()
            model = ModelState(runtime, source.config, state["tile"], stored)
            model.companions = checked((source if adapter is None else adapter).companions)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / TRAINER} was damaged or edited: {error}") from error
        moments = await files.run(lambda: opened.enter_context(_moments(folder, source.config, tuning, files.tick)))
        table(training.settings.replicas, runtime.devices)  # refuses more devices than replicas, before any weight is read
        warn_of_changes(state, await runtime.compute(surroundings) | arithmetic_of(model), folder)
        model.base = found
        await model.set_weights(source.read, files)

        def moment(parameter: Parameter, family: str, key: tuple[int, int]) -> Any:
            return moments.read(tensor_name(parameter.name, family), parameter.index(*key))

        try:
            if adapter is not None:
                await model.adapt(adapter.lora, adapter.read, files)
            model.train(freeze=tuning.freeze)
            async with model.changing.held():
                await model.tuned()
            await model.prepare_moments(moment, files)
        except BaseException:
            await under_shield(model.release())
            raise
    model.step_count = training.step_count
    model.last_checkpoint = os.fspath(path)
    return model, training


def _check_kind(folder: Path) -> None:
    """Raise CheckpointError for the folder of a model or an adapter without the state of a training."""
    if (folder / TRAINER).exists():
        return
    marks = {CONFIG: ("a model folder", "Model.from_pretrained"), ADAPTER_CONFIG: ("an adapter", "load_adapter")}
    for mark, (what, way) in marks.items():
        if (folder / mark).exists():
            raise CheckpointError(f"{folder} is {what} without training state ({TRAINER} is missing); load it with {way}, or "
                                  "copy the checkpoint again")


def _source(
    opened: ExitStack, folder: Path, place: Path, foundation: Foundation | None, tick: Callable[[], object]
) -> tuple[Pretrained, Base]:
    """Return the open folder of the weights. CheckpointError if `place` is not the base that the checkpoint was trained on."""
    if foundation is None:
        source = opened.enter_context(Pretrained(place, tick))
        return source, source.base()
    try:
        source = opened.enter_context(Pretrained(place, tick))
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{folder} holds an adapter, and its base cannot be loaded: {error}") from error
    base = source.base()
    if base.fingerprint != foundation.base.fingerprint:
        raise CheckpointError(f"{folder} holds an adapter of another base: the weights in {place} are not those that it was "
                              "trained on; put those back, or name their folder (base= of Trainer.load, --model)")
    return source, base


def _moments(folder: Path, config: Config, tuning: Tuning, tick: Callable[[], object]) -> TensorReader:
    """Return a reader of the moments of the tensors that are trained, after checking names, shapes and the file's checksum."""
    trained = ((name, shape) for name, shape in tuning.shapes(config) if tuning.trains(config, name))
    expected = {tensor_name(name, family): shape for name, shape in trained for family in MOMENTS}
    reader = TensorReader(folder / OPTIMIZER, most=len(expected))
    try:
        found = set(reader.names())
        for name, shape in expected.items():
            if name not in found or reader.shape(name) != shape:
                raise CheckpointError(f"{folder / OPTIMIZER} has no tensor {name} of shape {shape}; copy the checkpoint again")
        check_files(folder, reader.files, tick)
    except BaseException:
        reader.close()
        raise
    return reader
