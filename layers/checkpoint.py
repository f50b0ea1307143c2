"""Checkpoints of a trainer: a model folder with the moments and the state of the training beside the weights.

model.safetensors and config.json make it loadable as a model, optimizer.safetensors holds the moments by parameter
name, trainer.json the rest. The folder is written beside its place, synced and renamed (storage/folder.py).
"""

from __future__ import annotations

import asyncio
import os
import warnings
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from threadpoolctl import threadpool_info

from asynctile.engine import Engine
from asynctile.errors import CheckpointError
from asynctile.layers.exchange import Pretrained, replaced, tensor_name, write_tensors, write_weights
from asynctile.layers.gpt2 import GPT2
from asynctile.layers.optimizer import AdamW
from asynctile.layers.parameters import MOMENTS, Parameter
from asynctile.storage.folder import read_json, write_json
from asynctile.storage.tensors import TensorReader

if TYPE_CHECKING:
    from asynctile.layers.trainer import Trainer

    T = TypeVar("T", bound=Trainer)

FORMAT = 1
#: What trainer.json must hold besides the format.
STATE = {
    "step_count", "skipped_count", "optimizer", "clip_norm", "micro_batches", "recompute", "tile", "data_state",
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


async def save(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Write the checkpoint folder `path`; an older one there is replaced only when the new one is whole."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    model = trainer.model
    state = {
        "format": FORMAT,
        "step_count": trainer.step_count,
        "skipped_count": trainer.skipped_count,
        "optimizer": asdict(trainer.optimizer),
        "clip_norm": trainer.clip_norm,
        "micro_batches": trainer.micro_batches,
        "recompute": trainer.recompute,
        "tile": model.tiling.tile,
        "precision": "fp32",
        "surroundings": surroundings(),
        "data_state": trainer.data_state,
    }
    async with replaced(final) as folder:
        await write_weights(model, folder)
        await write_tensors(model, folder / "optimizer.safetensors", MOMENTS)
        write_json(folder / "trainer.json", state)
    model.last_checkpoint = str(final)


async def load(cls: type[T], engine: Engine, path: str | os.PathLike[str]) -> T:
    """A trainer of class `cls` from a checkpoint folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{path} is no checkpoint folder; expected one written by Trainer.save")
    state = read_json(folder / "trainer.json")
    _check_state(state, folder)
    moments_file = folder / "optimizer.safetensors"
    with await asyncio.to_thread(Pretrained, folder) as source, TensorReader(moments_file) as moments:
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
            raise CheckpointError(f"{folder / 'trainer.json'} was damaged or edited: {error}") from error
        _check_moments(model, moments, folder)
        await model.fill(lambda parameter, key: source.read(parameter, key))

        def moment(parameter: Parameter, family: str, key: tuple[int, int]) -> Any:
            return moments.read(tensor_name(parameter.name, family), parameter.index(*key))

        await trainer.prepare_moments(moment)
    trainer.step_count = state["step_count"]
    trainer.skipped_count = state["skipped_count"]
    trainer.data_state = state["data_state"]
    model.last_checkpoint = str(folder)
    return trainer


def _check_state(state: Any, folder: Path) -> None:
    found = state.get("format") if isinstance(state, dict) else None
    if not _is_count(found) or found > FORMAT:
        raise CheckpointError(f"{folder} has checkpoint format {found}, this version reads up to {FORMAT}: update it")
    file = folder / "trainer.json"
    missing = STATE - state.keys()
    if missing:
        raise CheckpointError(f"{file} lacks {', '.join(sorted(missing))}; it was damaged or edited")
    for name in ("step_count", "skipped_count"):
        if not _is_count(state[name]):
            raise CheckpointError(f"{file} has {name} {state[name]!r}, expected a whole number; it was damaged or edited")
    if not isinstance(state["data_state"], dict):
        raise CheckpointError(f"{file} has data_state {state['data_state']!r}, expected an object; it was damaged or edited")
    now, then = surroundings(), state.get("surroundings", {})
    changed = [f"{name} {then.get(name)} -> {value}" for name, value in now.items() if then.get(name) != value]
    if changed:
        warnings.warn(
            f"{folder} was written under other libraries ({', '.join(changed)}): results will not be bitwise the same",
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
                    f"{folder / 'optimizer.safetensors'} has no tensor {name} of shape {parameter.shape}"
                )
