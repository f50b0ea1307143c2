"""Adapters in PEFT's format with random values, written without asynctile, and their arithmetic in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from asynctile.layers.config import Config
from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.layout import shapes

Tensors = dict[str, NDArray[Any]]

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"


def layers_of(config: Config, *targets: str) -> list[str]:
    """Return the names of the layers whose name ends with a target."""
    names = [name.removesuffix(".weight") for name, shape in shapes(config) if len(shape) == 2]
    return [name for name in names if any(name.endswith(f".{target}") for target in targets)]


def tensors_of(config: Config, rank: int, *targets: str, seed: int = 1) -> Tensors:
    """Return random A and B of these layers by PEFT's names, with values of about the size of weights."""
    random = np.random.default_rng(seed)
    sizes = dict(shapes(config))
    found = {}
    for layer in layers_of(config, *targets):
        rows, columns = sizes[f"{layer}.weight"]
        inputs, outputs = (rows, columns) if isinstance(config, GPT2Config) else (columns, rows)
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = random.normal(0, 0.3, shape).astype(np.float32)
            found[f"base_model.model.{layer}.lora_{side}.weight"] = values
    return found


def write(
    folder: Path, tensors: Mapping[str, NDArray[Any]], rank: int, *targets: str, metadata: Any = None, **more: Any
) -> Path:
    """Write the folder of an adapter as PEFT does. more: fields of adapter_config.json."""
    folder.mkdir(exist_ok=True)
    values = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "r": rank, "lora_alpha": 2 * rank,
              "target_modules": list(targets), "lora_dropout": 0.05, "bias": "none"}  # fmt: skip
    (folder / CONFIG_FILE).write_text(json.dumps(values | more))
    save_file(dict(tensors), folder / TENSORS_FILE, metadata)
    return folder


def added(config: Config, weights: Tensors, tensors: Tensors, scaling: float) -> Tensors:
    """Return the weights with the adapter added, float64."""
    found = {name: value.astype(np.float64) for name, value in weights.items()}
    for name, a in tensors.items():
        if ".lora_A." in name:
            layer = name.removeprefix("base_model.model.").partition(".lora_A.")[0]
            delta = scaling * tensors[name.replace("lora_A", "lora_B")].astype(np.float64) @ a
            found[f"{layer}.weight"] += delta.T if isinstance(config, GPT2Config) else delta
    return found
