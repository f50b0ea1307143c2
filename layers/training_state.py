"""trainer.json of a checkpoint: its content, and checks of what was read.

checkpoint.py has the rest of the folder, settings.py the state of a training in memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self, TypeGuard

from threadpoolctl import threadpool_info

from asynctile.errors import CheckpointError
from asynctile.layers.exchange import Base
from asynctile.layers.model_state import ModelState
from asynctile.layers.optimizer import AdamW
from asynctile.layers.settings import Settings, Training
from asynctile.storage.folder import encode_json
from asynctile.storage.input import parse_json, shown

TRAINER = "trainer.json"
#: Format 2: recompute may be "auto". Format 3: the optimizer records how its learning rate decays. Format 4: replicas.
#: Format 5: `freeze`, and for an adapter `base`; a training of a whole model without frozen tensors still has format 4.
FORMAT, TUNED_FORMAT = 4, 5
SETTINGS, COUNTS = tuple(item.name for item in fields(Settings)), ("step_count", "skipped_count")
#: The keys that trainer.json must have besides "format".
STATE = {*SETTINGS, *COUNTS, "optimizer", "tile", "data_state", "surroundings"}
LIBRARIES = ("numpy", "scipy", "numba")


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a trained adapter stands on.

    base: the folder of its base. stored: whether matrices are kept as that folder has them.
    """

    base: Base
    stored: bool

    @classmethod
    def of(cls, state: Mapping[str, Any], folder: Path) -> Self | None:
        """Return the entry `base` of a trainer.json; None for a checkpoint that holds a whole model."""
        found = state.get("base")
        if found is None:
            return None
        try:
            path, fingerprint, weights = found["path"], found["fingerprint"], found["weights"]
        except (TypeError, KeyError):
            path = fingerprint = weights = None
        if not (isinstance(path, str) and isinstance(fingerprint, str) and weights in ("stored", "float32")):
            raise CheckpointError(f"{folder / TRAINER} has base {shown(found)}, expected a path, a fingerprint and weights; it "
                                  "was damaged or edited")
        return cls(Base(path, fingerprint), weights == "stored")

    def told(self) -> dict[str, Any]:
        """Return the entry of trainer.json."""
        return {**asdict(self.base), "weights": "stored" if self.stored else "float32"}


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


def arithmetic_of(model: ModelState) -> dict[str, Any]:
    """Return the device's settings that bits depend on: the precision, and how many times as tall as wide row tiles are."""
    return {"precision": model.runtime.life.precision, "tall": model.tiling.grain.tall}


def state_of(model: ModelState, training: Training, foundation: Foundation | None) -> dict[str, Any]:
    """Return the content of trainer.json."""
    freeze = model.tuning.freeze
    tuned = ({"freeze": list(freeze)} if freeze else {}) | ({} if foundation is None else {"base": foundation.told()})
    return {
        "format": TUNED_FORMAT if tuned else FORMAT,
        "step_count": training.step_count,
        "skipped_count": training.skipped_count,
        "optimizer": asdict(training.optimizer),
        **asdict(training.settings),
        "tile": model.tiling.tile,
        **tuned,
        **arithmetic_of(model),
        "surroundings": surroundings(),
        "data_state": training.data_state,
    }


def encoded(state: dict[str, Any], final: Path) -> bytes:
    """Return trainer.json as bytes.

    ValueError if `load` would refuse it, because it would replace a checkpoint that can be read.
    """
    content = encode_json(state)
    try:
        found = parse_json(content, finite=False)
        check_state(found, final)
        training_in(found)
    except (CheckpointError, TypeError, ValueError) as error:
        raise ValueError(f"the training was not saved, because its checkpoint could not be read back: {error}; correct "
                         "this value; the previous checkpoint is untouched") from error
    return content


def training_in(state: dict[str, Any]) -> Training:
    """Return the training that trainer.json describes. TypeError or ValueError for settings that do not exist."""
    return Training(
        settings=Settings(**{name: state[name] for name in SETTINGS}),
        optimizer=AdamW(**state["optimizer"]),
        **{name: state[name] for name in COUNTS},
        data_state=state["data_state"],
    )


def check_format(state: Any, folder: Path) -> None:
    """Raise CheckpointError for a format that is not read here, before anything else is looked at."""
    found = state.get("format") if isinstance(state, dict) else None
    if not _is_count(found):
        raise CheckpointError(f"{folder / TRAINER} has format {shown(found)}, expected a whole number; it was damaged or "
                              "edited")
    if found > TUNED_FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {found}, but this version of asynctile reads formats up to {TUNED_FORMAT}; use "
            "the version that wrote it"
        )


def check_state(state: dict[str, Any], folder: Path) -> None:
    """Raise CheckpointError for missing entries, or for values of other types."""
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
    Foundation.of(state, folder)


def warn_of_changes(state: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
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
