"""Models whose files have matrices in bf16, and what is computed with them. For tests of weights that are kept as stored."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from asynctile import Engine
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers import Model
from asynctile.layers.config import Config
from asynctile.layers.layout import shapes
from asynctile.layers.model import model_state_of
from asynctile.share import Share
from asynctile.storage.demand import align
from asynctile.storage.folder import encode_json
from asynctile.storage.tensors import WEIGHTS, TensorWriter
from tests.layers.families import FAMILIES
from tests.layers.shapes import Shape
from tests.layers.training import RAGGED

SHAPES = FAMILIES | {"gpt2": RAGGED}
#: The dtype in a file, by its name.
DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
#: Tokens of each text.
WORDS = 8


def matrices_of(config: Config) -> frozenset[str]:
    """Return the names of all matrices."""
    return frozenset(name for name, shape in shapes(config) if len(shape) == 2)


def write_folder(folder: Path, shape: Shape, others: dict[str, str] | None = None, seed: int = 1) -> Path:
    """Write a model with random weights in bf16, and return its folder. others: tensors in another dtype, F32 or F16."""
    random, dtypes = np.random.default_rng(seed), {name: (others or {}).get(name, "BF16") for name, _ in shapes(shape.config)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(encode_json(shape.config.to_hf()))
    tensors = {name: (DTYPES[dtypes[name]], size) for name, size in shapes(shape.config)}
    with TensorWriter(folder / WEIGHTS, tensors, {"format": "pt"}) as writer:
        for name, size in shapes(shape.config):
            values = (0.1 * random.standard_normal(size) + (len(size) == 1 and "bias" not in name)).astype(np.float32)
            writer.write(name, (), to_bf16(values) if dtypes[name] == "BF16" else values)
    return folder


async def loaded(engine: Share, folder: Path, shape: Shape, weights: str) -> Model:
    return await Model.from_pretrained(engine, folder, tile=shape.tile, weights=weights)


async def results_of(model: Model, shape: Shape) -> tuple[Any, ...]:
    """Return logits, loss and texts of a model, each computed three times, so that programs are played."""
    tokens, targets = shape.batch_of_tokens()
    prompt = tokens[0, :9].tolist()
    found = []
    for _ in range(3):
        text = [token async for token in model.generate(prompt, max_new_tokens=WORDS, temperature=0)]
        found.append(((await model.logits(tokens)).tobytes(), await model.loss(tokens, targets), text))
    assert found[0] == found[1] == found[2]
    return found[0]


async def results_in(folder: Path, shape: Shape, weights: str, device: str = "cpu", **options: Any) -> tuple[Any, ...]:
    async with Engine(device, **options) as engine:
        return await results_of(await loaded(engine, folder, shape, weights), shape)


def nbytes_of(model: Model, names: Collection[str] | None = None) -> int:
    """Return the bytes of the weight tiles of these tensors, or of all."""
    parameters = model_state_of(model).parameters
    chosen = parameters.values() if names is None else (parameters[name] for name in names)
    return sum(align(tile.nbytes) for parameter in chosen for tile in parameter.weights.values())
