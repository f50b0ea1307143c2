"""Checkpoints of a trainer: a model folder that also holds the moments and the state of the training.

model.safetensors and config.json make the folder loadable as a model. optimizer.safetensors holds the moments by parameter
name, trainer.json everything else, checksums.json the checksum of each of these files. The folder is written beside its final
place, synced and renamed (storage/folder.py), either at once or from a snapshot while training goes on (snapshot.py).

Everything that makes a resumed training bitwise equal is here: weights, moments, the number of updates and skipped steps, the
settings, and the position in the data. The data is the only part with random state (Batches.state_dict).
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeGuard

from threadpoolctl import threadpool_info

from asynctile.errors import CheckpointError
from asynctile.layers.carriers import table
from asynctile.layers.companions import Companions, checked
from asynctile.layers.config import Config
from asynctile.layers.exchange import CONFIG, Pretrained, check_place, replaced
from asynctile.layers.layout import tensor_count
from asynctile.layers.model_state import ModelState
from asynctile.layers.optimizer import AdamW
from asynctile.layers.parameters import MOMENTS, Parameter
from asynctile.layers.saving import Counted, Progress
from asynctile.layers.settings import Settings, Training
from asynctile.layers.snapshot import Snapshot
from asynctile.layers.telling import told_save
from asynctile.layers.weight_files import tensor_name, write_checksums, write_model, write_tensors
from asynctile.loop.files import Files
from asynctile.loop.thread import under_shield
from asynctile.runtime import Runtime
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import check_files
from asynctile.storage.documents import load_json, store_file
from asynctile.storage.folder import encode_json
from asynctile.storage.input import parse_json, shown
from asynctile.storage.tensors import TensorReader
from asynctile.storage.tile import Tile

#: Format 2: recompute may be "auto". Format 3: the optimizer records how its learning rate decays. Format 4: replicas.
FORMAT = 4
TRAINER, OPTIMIZER = "trainer.json", "optimizer.safetensors"
SETTINGS, COUNTS = tuple(item.name for item in fields(Settings)), ("step_count", "skipped_count")
#: The keys that trainer.json must have besides "format".
STATE = {*SETTINGS, *COUNTS, "optimizer", "tile", "data_state", "surroundings"}
LIBRARIES = ("numpy", "scipy", "numba")


def surroundings() -> dict[str, str]:
    """Return everything outside the program that bits depend on: library versions and the BLAS's core type."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    cores = {str(item.get("architecture")) for item in threadpool_info() if item.get("user_api") == "blas"}
    found["blas_core"] = ", ".join(sorted(cores))
    return found


async def save(
    model: ModelState, training: Training, final: Path, *, wait: bool, progress: Progress | None = None
) -> asyncio.Task[None] | None:
    """Write the checkpoint folder `final`, on the device's loop. An older one there is replaced only when the new one is whole.

    Without `wait`, if the engine lends RAM for a copy of all tiles, return the task that writes the checkpoint; otherwise write
    it now and return None. progress: as in Trainer.save.
    """
    what = f"the save of {final}"
    files = model.runtime.files(what)
    await files.run(check_place, final)
    state, companions = _encoded(await model.runtime.compute(_state, model, training), final), model.companions
    nbytes = 2 * model.config.states_nbytes  # every byte is written, then read again for its checksum
    snapshot = None if wait else await Snapshot.take(model.runtime, _tiles(model), what)
    if snapshot is None:
        with told_save(model.runtime, model.name, final, training.step_count, behind=False):
            await _write(model, final, state, companions, Counted(model.runtime.read, nbytes, progress), files)
        return None
    counted = Counted(snapshot.read, nbytes, progress)
    task = model.runtime.spawn(_write_behind(model, training.step_count, final, state, companions, counted, files))
    # Not in the task's own `finally`: a task that is cancelled before it begins never reaches it.
    task.add_done_callback(lambda _: snapshot.give_back())
    return task


async def _write_behind(model: ModelState, step: int, final: Path, state: bytes, companions: Companions, tiles: Counted,
                        files: Files) -> None:
    with told_save(model.runtime, model.name, final, step, behind=True):
        await _write(model, final, state, companions, tiles, files)


async def _write(model: ModelState, final: Path, state: bytes, companions: Companions, tiles: Counted, files: Files) -> None:
    read = tiles.read
    async with replaced(final, model.config.states_nbytes, files, partial(model.saved_to, final)) as folder:
        await write_model(folder, model.parameters, companions, read, files)
        await write_tensors(folder / OPTIMIZER, model.parameters.values(), MOMENTS, read, files)
        await store_file(folder / TRAINER, state, executor=files)
        await write_checksums(folder, files, tiles.add)
    tiles.end()


def _state(model: ModelState, training: Training) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step_count": training.step_count,
        "skipped_count": training.skipped_count,
        "optimizer": asdict(training.optimizer),
        **asdict(training.settings),
        "tile": model.tiling.tile,
        **_arithmetic(model),
        "surroundings": surroundings(),
        "data_state": training.data_state,
    }


def _encoded(state: dict[str, Any], final: Path) -> bytes:
    """Return trainer.json as bytes.

    ValueError if `load` would refuse it, because it would replace a checkpoint that can be read.
    """
    content = encode_json(state)
    try:
        found = parse_json(content, finite=False)
        _check_state(found, final)
        _training(found)
    except (CheckpointError, TypeError, ValueError) as error:
        raise ValueError(f"the training was not saved, because its checkpoint could not be read back: {error}; correct "
                         "this value; the previous checkpoint is untouched") from error
    return content


def _training(state: dict[str, Any]) -> Training:
    """Return the training that trainer.json describes. TypeError or ValueError for settings that do not exist."""
    return Training(
        settings=Settings(**{name: state[name] for name in SETTINGS}),
        optimizer=AdamW(**state["optimizer"]),
        **{name: state[name] for name in COUNTS},
        data_state=state["data_state"],
    )


def _arithmetic(model: ModelState) -> dict[str, Any]:
    """Return the device's settings that bits depend on: the precision, and how many times as tall as wide row tiles are."""
    return {"precision": model.runtime.life.precision, "tall": model.tiling.grain.tall}


def _tiles(model: ModelState) -> Iterator[Tile]:
    """Yield the tiles that a checkpoint holds, parameter by parameter."""
    for parameter in model.parameters.values():
        for family in ("weights", *MOMENTS):
            yield from getattr(parameter, family).values()


async def load(runtime: Runtime, path: str | os.PathLike[str]) -> tuple[ModelState, Training]:
    """Return a model with its moments, and its training, from a checkpoint folder. Runs on the device's loop."""
    files = runtime.files(f"the load of {os.fspath(path)}")
    folder = await files.run(whole_folder, path)
    if not await files.run(folder.is_dir):
        raise CheckpointError(f"{path} is not a folder; expected a checkpoint folder written by Trainer.save")
    if await files.run(lambda: (folder / CONFIG).exists() and not (folder / TRAINER).exists()):
        raise CheckpointError(
            f"{folder} is a model folder without training state ({TRAINER} is missing); load it with Model.from_pretrained, or "
            "copy the checkpoint again"
        )
    state = await load_json(folder / TRAINER, finite=False, executor=files)  # a caller's data_state may hold any number
    _check_format(state, folder)  # first: nothing else is known about a later format
    if state["format"] < 4:  # before there were replicas
        state = {"replicas": 1, **state}
    await files.run(check_files, folder, (TRAINER,), files.tick)
    _check_state(state, folder)
    with ExitStack() as opened:  # entered in the thread: closes what the thread opened even if the load was cancelled meanwhile
        source = await files.run(lambda: opened.enter_context(Pretrained(folder, files.tick)))
        moments = await files.run(lambda: opened.enter_context(_moments(folder, source.config, files.tick)))
        try:
            model = ModelState(runtime, source.config, state["tile"])
            training = _training(state)
            model.companions = checked(source.companions)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / TRAINER} was damaged or edited: {error}") from error
        _check_moments(model, moments, folder)
        table(training.settings.replicas, runtime.devices)  # refuses more devices than replicas, before any weight is read
        _warn_of_changes(state, await runtime.compute(surroundings) | _arithmetic(model), folder)
        await model.set_weights(source.read, files)

        def moment(parameter: Parameter, family: str, key: tuple[int, int]) -> Any:
            return moments.read(tensor_name(parameter.name, family), parameter.index(*key))

        try:
            await model.prepare_moments(moment, files)
        except BaseException:
            await under_shield(model.release())
            raise
    model.step_count = training.step_count
    model.last_checkpoint = os.fspath(path)
    return model, training


def _check_format(state: Any, folder: Path) -> None:
    found = state.get("format") if isinstance(state, dict) else None
    if not _is_count(found):
        raise CheckpointError(f"{folder / TRAINER} has format {shown(found)}, expected a whole number; it was damaged or "
                              "edited")
    if found > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {found}, but this version of asynctile reads formats up to {FORMAT}; use the "
            "version that wrote it"
        )


def _check_state(state: dict[str, Any], folder: Path) -> None:
    file = folder / TRAINER
    missing = STATE - state.keys()
    if missing:
        raise CheckpointError(f"{file} has no {', '.join(sorted(missing))}; it was damaged or edited")
    for name in COUNTS:
        if not _is_count(state[name]):
            raise CheckpointError(f"{file} has {name} {shown(state[name])}, expected a whole number; it was damaged or edited")
    for name in ("data_state", "surroundings"):
        if not isinstance(state[name], dict):
            raise CheckpointError(f"{file} has {name} {shown(state[name])}, expected an object; it was damaged or edited")


def _warn_of_changes(state: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Warn of every condition that bits depend on and that differs between the checkpoint and `now`."""
    # Checkpoints from before these settings existed used fp32 and square row tiles.
    then = {"precision": "fp32", "tall": 1, **state, **state["surroundings"]}
    changed = [f"{name} {shown(then.get(name))} -> {shown(value)}" for name, value in now.items() if then.get(name) != value]
    if changed:
        warnings.warn(
            f"{folder} was written under different conditions ({', '.join(changed)}): results will not be bitwise equal",
            stacklevel=1,  # on the device's loop the caller is not on the stack
        )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _moments(folder: Path, config: Config, tick: Callable[[], object]) -> TensorReader:
    """Return a reader of the moments of a model with this config, after checking the file's checksum."""
    reader = TensorReader(folder / OPTIMIZER, most=len(MOMENTS) * tensor_count(config))
    try:
        check_files(folder, (OPTIMIZER,), tick)
    except BaseException:
        reader.close()
        raise
    return reader


def _check_moments(model: ModelState, moments: TensorReader, folder: Path) -> None:
    found = set(moments.names())
    for parameter in model.parameters.values():
        for family in MOMENTS:
            name = tensor_name(parameter.name, family)
            if name not in found or moments.shape(name) != parameter.shape:
                raise CheckpointError(
                    f"{folder / OPTIMIZER} has no tensor {name} of shape {parameter.shape}; copy the checkpoint again"
                )
