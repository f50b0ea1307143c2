"""The folder of an adapter, as PEFT reads and writes it: adapter_config.json and adapter_model.safetensors.

Covers `AdapterFiles`, which opens and checks a folder for a base model, and `write_adapter`. peft_config.py has the fields of
adapter_config.json, exchange.py opens the base. The metadata of adapter_model.safetensors, which PEFT ignores, name the base by
its fingerprint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.errors import CheckpointError
from asynctile.layers.companions import Companions, read_companions
from asynctile.layers.config import Config
from asynctile.layers.exchange import CONFIG, Base, OpenFolder
from asynctile.layers.lora import PREFIX, A, B, LoRA, layer_of, linear_weights, names
from asynctile.layers.parameters import Parameter, Parameters
from asynctile.layers.peft_config import ALPHA, RANK, check_fields, to_peft
from asynctile.layers.tuning import Tuning
from asynctile.layers.weight_files import ReadTile, write_tensors
from asynctile.loop.files import Files
from asynctile.storage.beside import whole_folder
from asynctile.storage.checksums import check_files
from asynctile.storage.documents import store_file, store_json
from asynctile.storage.folder import read_json
from asynctile.storage.header import FLOATS
from asynctile.storage.input import DOCUMENT_NBYTES, shown
from asynctile.storage.tensors import TensorReader

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
#: The entry of the metadata that has the fingerprint of the base.
FINGERPRINT = "base_fingerprint"
#: How many more tensors than the layers can have a file may list before it is refused unread.
SPARE = 1024
_NAME = re.compile(rf"{re.escape(PREFIX)}(?P<layer>.+)\.(?P<side>{A}|{B})\.weight")


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter and no model."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file()


def base_named_in(folder: Path) -> str | None:
    """Return the base model that an adapter's folder names, a path or a name on the Hub; None if it names none."""
    found = _read_config(folder).get("base_model_name_or_path")
    return found if isinstance(found, str) and found else None


class AdapterFiles(OpenFolder):
    """An open folder of an adapter, checked as a whole for a base of this configuration: fields, names, shapes, checksums.

    lora: the settings of the adapter. companions: the files beside it, by name. fingerprint: that of the base, None if the file
    does not have it.
    """

    def __init__(self, path: str | os.PathLike[str], config: Config, tick: Callable[[], object] = bool) -> None:
        """Open and check the folder `path`. tick: called repeatedly while files are read.

        CheckpointError if files are missing, damaged or of another base; ValueError for an adapter that computes something
        else.
        """
        self.path = whole_folder(path)
        values = _read_config(self.path, tick)
        where = self.path / ADAPTER_CONFIG
        try:
            check_fields(values)
            bare = LoRA(rank=values.get("r", RANK), alpha=values.get("lora_alpha", ALPHA))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error
        self.companions = read_companions(self.path, tick)
        if not (self.path / ADAPTER).exists():
            raise CheckpointError(f"{self.path} has no {ADAPTER}; save the adapter by a recent PEFT, or copy it again")
        layers = {PREFIX + tensor.name.removesuffix(".weight"): tensor for tensor in linear_weights(config)}
        self._reader = TensorReader(self.path / ADAPTER, most=2 * len(layers) + SPARE)
        try:
            self.fingerprint = self._reader.metadata.get(FINGERPRINT)
            found = self._layers({layer.removeprefix(PREFIX) for layer in layers})
            self.lora = LoRA(rank=bare.rank, alpha=bare.alpha, targets=_targets(values.get("target_modules"), found, config))
            self._check_shapes(config)
            check_files(self.path, (ADAPTER,), tick)  # after the names, so that another base is found without reading
        except BaseException:
            self._reader.close()
            raise

    def read(self, parameter: Parameter, key: tuple[int, int]) -> NDArray[np.float32]:
        """Return one tile of a parameter, float32."""
        return self._reader.read(parameter.name, parameter.index(*key))

    def piece(self, layer: str, side: str, index: tuple[slice, ...]) -> NDArray[np.float32]:
        """Return a rectangle of the matrix A or B of a layer, float32. layer: the name of its weight without ".weight"."""
        return self._reader.read(f"{PREFIX}{layer}.{side}.weight", index)

    def check_base(self, base: Base | None) -> None:
        """Raise CheckpointError if the adapter was trained on another base than this. None: not known."""
        if base is not None and self.fingerprint not in (None, base.fingerprint):
            raise CheckpointError(f"{self.path} is an adapter of another base: the weights in {base.path} are not those that "
                                  "it was trained on; name the folder of its own base")

    def _layers(self, known: set[str]) -> set[str]:
        """Return the layers of the file. CheckpointError for a tensor that is no A or B of a layer of the base."""
        found: dict[str, set[str]] = {A: set(), B: set()}
        for name in self._reader.names():
            match = _NAME.fullmatch(name)
            if match is None or match["layer"] not in known:
                raise CheckpointError(f"{self.path / ADAPTER} holds {shown(name)[1:-1]}, which is no {A} or {B} of a linear "
                                      "layer of the base; load the adapter onto the model that it was trained on")
            found[match["side"]].add(match["layer"])
        for layer in sorted(found[A] ^ found[B]):
            raise CheckpointError(f"{self.path / ADAPTER} has only one of {A} and {B} for {shown(layer)[1:-1]}; copy it again")
        if not found[A]:
            raise CheckpointError(f"{self.path / ADAPTER} holds no tensor; copy the adapter again")
        return found[A]

    def _check_shapes(self, config: Config) -> None:
        for name, expected in Tuning(self.lora).shapes(config):
            if not name.startswith(PREFIX):
                continue
            if (shape := self._reader.shape(name)) != expected:
                raise CheckpointError(f"{self.path / ADAPTER}: {name} has shape {shown(shape)}, and the base with rank "
                                      f"{self.lora.rank} requires {expected}; load the adapter onto its own base")
            if (dtype := self._reader.dtype(name)) not in FLOATS:
                raise CheckpointError(f"{self.path / ADAPTER}: {name} holds {dtype}, expected one of "
                                      f"{', '.join(FLOATS)}; save the adapter in one of these")


async def write_adapter(
    folder: Path, parameters: Parameters, base: Base | None, companions: Companions, read: ReadTile, files: Files
) -> None:
    """Write the adapter of a model and the companions into `folder`, float32. base: the folder of the base, if it is known."""
    assert parameters.lora is not None, "the model has no adapter"
    values = to_peft(parameters.lora, parameters.config, None if base is None else base.path)
    await store_json(folder / ADAPTER_CONFIG, values, executor=files)
    for name, content in companions.items():
        await store_file(folder / name, content, executor=files)
    metadata = {} if base is None else {FINGERPRINT: base.fingerprint}
    await write_tensors(folder / ADAPTER, parameters.adapters(), ("weights",), read, files, metadata=metadata)


def _read_config(folder: Path, tick: Callable[[], object] = bool) -> Mapping[str, Any]:
    """Return the content of adapter_config.json."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{folder} is no adapter ({ADAPTER_CONFIG} is missing); name the folder that PEFT or "
                              "save_adapter wrote")
    check_files(folder, (ADAPTER_CONFIG,), tick, limit=DOCUMENT_NBYTES)
    values = read_json(folder / ADAPTER_CONFIG)
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder / ADAPTER_CONFIG} is not a JSON object; expected the configuration of an adapter")
    return values


def _targets(told: Any, found: set[str], config: Config) -> tuple[str, ...]:
    """Return targets that name the layers `found`: those that the file tells if they do, otherwise each layer by its title.

    PEFT also chooses layers by regular expressions and by their numbers.
    """
    layers = [layer_of(config, tensor) for tensor in linear_weights(config)]
    chosen = [layer for layer in layers if config.prefix + layer in found]
    is_list = isinstance(told, list) and 0 < len(told) <= len(layers)
    if is_list and all(isinstance(target, str) and target for target in told):
        targets = sorted(told)
        named = [[layer for layer in layers if names(target, layer)] for target in targets]
        if all(named) and set(chain.from_iterable(named)) == set(chosen):
            return tuple(targets)
    return tuple(chosen)
