"""Checkpoints of a trainer: a model folder with the moments and the state of the training beside the weights.

model.safetensors and config.json make it loadable as a model, optimizer.safetensors holds the moments by parameter
name, trainer.json the rest, checksums.json what the bytes of all these were. The folder is written beside its place,
synced and renamed (storage/folder.py), either at once or from a snapshot while training goes on (snapshot.py).

What makes a resumed training bitwise the same is all here: weights, moments, the number of updates and skipped steps,
the settings, and where the data stands, which is the only thing with a random state (Batches.state_dict).
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from threadpoolctl import threadpool_info

from asynctile.engine import Engine
from asynctile.errors import CheckpointError
from asynctile.handle import Handle
from asynctile.layers.exchange import (
    CONFIG,
    Pretrained,
    ReadTile,
    check_place,
    replaced,
    tensor_name,
    write_tensors,
    write_weights,
)
from asynctile.layers.gpt2 import GPT2
from asynctile.layers.optimizer import AdamW
from asynctile.layers.parameters import MOMENTS, Parameter
from asynctile.layers.snapshot import Snapshot
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import CHECKSUMS, check_files, checksum, checksum_record
from asynctile.storage.documents import finish, load_json, store_file, store_json
from asynctile.storage.folder import encode_json
from asynctile.storage.tensors import TensorReader

if TYPE_CHECKING:
    from asynctile.layers.trainer import Trainer

    T = TypeVar("T", bound=Trainer)

FORMAT = 1
TRAINER, OPTIMIZER = "trainer.json", "optimizer.safetensors"
#: What trainer.json must hold besides the format.
STATE = {
    "step_count", "skipped_count", "optimizer", "clip_norm", "micro_batches", "recompute", "tile", "data_state", "surroundings",
}  # fmt: skip
LIBRARIES = ("numpy", "scipy", "numba")


def surroundings() -> dict[str, str]:
    """What bits depend on besides the program: library versions and the BLAS's core type."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    cores = {str(item.get("architecture")) for item in threadpool_info() if item.get("user_api") == "blas"}
    found["blas_core"] = ", ".join(sorted(cores))
    return found


async def save(trainer: Trainer, path: str | os.PathLike[str], *, wait: bool) -> asyncio.Task[None] | None:
    """Write the checkpoint folder `path`; an older one there is replaced only when the new one is whole.

    Without `wait`, if the engine lends RAM for a copy of all tiles, returns the task that writes it.
    """
    final = Path(path)
    check_place(final)
    model = trainer.model
    state = encode_json(_state(trainer))  # now: the caller may go on to change data_state
    snapshot = None if wait else await Snapshot.take(model.engine, _tiles(model))
    if snapshot is None:
        await _write(model, final, state, model.engine.read)
        return None
    task = model.engine.spawn(_write(model, final, state, snapshot.read))
    # Not in the task's own `finally`: one that is cancelled before it begins never comes there.
    task.add_done_callback(lambda _: snapshot.give_back())
    return task


async def _write(model: GPT2, final: Path, state: bytes, read: ReadTile) -> None:
    async with replaced(model, final, model.config.states_nbytes) as folder:
        await write_weights(model, folder, read)
        await write_tensors(model, folder / OPTIMIZER, MOMENTS, read)
        await store_file(folder / TRAINER, state)
        sums = {path.name: await finish(asyncio.to_thread(checksum, path)) for path in sorted(folder.iterdir())}
        await store_json(folder / CHECKSUMS, checksum_record(sums))


def _state(trainer: Trainer) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step_count": trainer.step_count,
        "skipped_count": trainer.skipped_count,
        "optimizer": asdict(trainer.optimizer),
        "clip_norm": trainer.clip_norm,
        "micro_batches": trainer.micro_batches,
        "recompute": trainer.recompute,
        "tile": trainer.model.tiling.tile,
        **_arithmetic(trainer.model),
        "surroundings": surroundings(),
        "data_state": trainer.data_state,
    }


def _arithmetic(model: GPT2) -> dict[str, Any]:
    """What the device adds to what bits depend on: the precision, and how many times as tall as wide row tiles are."""
    return {"precision": model.engine.precision, "tall": model.tiling.tall}


def _tiles(model: GPT2) -> Iterator[list[Handle]]:
    """What a checkpoint holds, parameter by parameter."""
    for parameter in model.parameters.values():
        for family in ("weights", *MOMENTS):
            yield list(getattr(parameter, family).values())


async def load(cls: type[T], engine: Engine, path: str | os.PathLike[str]) -> T:
    """A trainer of class `cls` from a checkpoint folder."""
    folder = await asyncio.to_thread(whole_folder, path)
    if not folder.is_dir():
        raise CheckpointError(f"{path} is no checkpoint folder; expected one written by Trainer.save")
    if (folder / CONFIG).exists() and not (folder / TRAINER).exists():
        raise CheckpointError(
            f"{folder} is a model without the state of its training, {TRAINER}; load it with GPT2.from_pretrained, or copy "
            "the checkpoint again"
        )
    state = await load_json(folder / TRAINER)
    _check_format(state, folder)  # first: of a later format nothing else may be assumed
    await asyncio.to_thread(check_files, folder, (TRAINER, OPTIMIZER))
    _check_state(state, folder)
    with await asyncio.to_thread(Pretrained, folder) as source, TensorReader(folder / OPTIMIZER) as moments:
        try:
            model = GPT2(engine, source.config, state["tile"])
            trainer = cls(
                model,
                AdamW(**state["optimizer"]),
                clip_norm=state["clip_norm"],
                micro_batches=state["micro_batches"],
                recompute=state["recompute"],
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / TRAINER} was damaged or edited: {error}") from error
        _check_moments(model, moments, folder)
        _warn_of_changes(state, surroundings() | _arithmetic(model), folder)
        await model.fill(lambda parameter, key: source.read(parameter, key))

        def moment(parameter: Parameter, family: str, key: tuple[int, int]) -> Any:
            return moments.read(tensor_name(parameter.name, family), parameter.index(*key))

        try:
            await trainer.prepare_moments(moment)
        except BaseException:
            await model.release()
            raise
    trainer.step_count = state["step_count"]
    trainer.skipped_count = state["skipped_count"]
    trainer.data_state = state["data_state"]
    model.last_checkpoint = os.fspath(path)
    return trainer


def _check_format(state: Any, folder: Path) -> None:
    found = state.get("format") if isinstance(state, dict) else None
    if not _is_count(found):
        raise CheckpointError(f"{folder / TRAINER} has format {found!r}, expected a whole number; it was damaged or edited")
    if found > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {found}, this version reads up to {FORMAT}; use the asynctile that wrote it"
        )


def _check_state(state: dict[str, Any], folder: Path) -> None:
    file = folder / TRAINER
    missing = STATE - state.keys()
    if missing:
        raise CheckpointError(f"{file} lacks {', '.join(sorted(missing))}; it was damaged or edited")
    for name in ("step_count", "skipped_count"):
        if not _is_count(state[name]):
            raise CheckpointError(f"{file} has {name} {state[name]!r}, expected a whole number; it was damaged or edited")
    for name in ("data_state", "surroundings"):
        if not isinstance(state[name], dict):
            raise CheckpointError(f"{file} has {name} {state[name]!r}, expected an object; it was damaged or edited")
    if not isinstance(state["recompute"], bool):
        raise CheckpointError(f"{file} has recompute {state['recompute']!r}, expected true or false; it was damaged or edited")


def _warn_of_changes(state: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Warn of everything that bits depend on and that is not `now` what it was."""
    # Checkpoints of before there were others are of fp32 and square row tiles.
    then = {"precision": "fp32", "tall": 1, **state, **state["surroundings"]}
    changed = [f"{name} {then.get(name)} -> {value}" for name, value in now.items() if then.get(name) != value]
    if changed:
        warnings.warn(
            f"{folder} was written under other conditions ({', '.join(changed)}): results will not be bitwise the same",
            stacklevel=4,
        )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_moments(model: GPT2, moments: TensorReader, folder: Path) -> None:
    found = set(moments.names())
    for parameter in model.parameters.values():
        for family in MOMENTS:
            name = tensor_name(parameter.name, family)
            if name not in found or moments.shape(name) != parameter.shape:
                raise CheckpointError(
                    f"{folder / OPTIMIZER} has no tensor {name} of shape {parameter.shape}"
                )
