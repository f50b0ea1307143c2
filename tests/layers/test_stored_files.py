"""Files of models whose matrices are kept in bf16: what is kept, what is converted, and that a save brings every bit back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.kernels.bf16 import from_bf16
from asynctile.layers import Model, Trainer
from asynctile.layers.layout import weights_nbytes
from asynctile.layers.model import model_state_of
from asynctile.storage.tensors import WEIGHTS, TensorReader
from tests.layers.shapes import Shape
from tests.layers.stored import SHAPES, loaded, matrices_of, write_folder
from tests.layers.training import assert_same_tensors

#: bits of a signaling NaN, of a quiet one with a payload, infinities, zeros and the smallest numbers
ODD = np.array([0x7F81, 0xFFC5, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001, 0x8001], np.uint16)


@pytest.fixture(params=["gpt2", "qwen2"])
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


def odd(folder: Path) -> Path:
    """Put ODD into the first matrix of the file."""
    with TensorReader(folder / WEIGHTS) as reader:
        name = next(name for name in reader.names() if len(reader.shape(name)) == 2)
        bits = reader.bits(name).tobytes()
    content = (folder / WEIGHTS).read_bytes()
    assert content.count(bits[:40]) == 1
    at = content.index(bits[:40])
    (folder / WEIGHTS).write_bytes(content[:at] + ODD.tobytes() + content[at + ODD.nbytes :])
    return folder


async def test_a_save_in_bfloat16_has_every_bit_of_the_file(shape: Shape, tmp_path: Path) -> None:
    source = odd(write_folder(tmp_path / "source", shape))
    async with Engine("emulated", device_memory="1MiB") as engine:
        model = await loaded(engine, source, shape, "stored")
        await model.save_pretrained(tmp_path / "again", dtype="bfloat16")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
async def test_a_save_in_another_dtype_has_the_bytes_of_a_model_in_float32(shape: Shape, dtype: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", shape)
    async with Engine("cpu") as engine:
        for weights in ("float32", "stored"):
            model = await loaded(engine, source, shape, weights)
            await model.save_pretrained(tmp_path / weights, dtype=dtype)
    saved = [{path.name: path.read_bytes() for path in (tmp_path / weights).iterdir()} for weights in ("float32", "stored")]
    assert saved[0] == saved[1]


async def test_the_state_dict_is_float32_and_exact(shape: Shape, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", shape)
    async with Engine("cpu") as engine:
        found = await (await loaded(engine, source, shape, "stored")).state_dict()
        assert_same_tensors(found, await (await loaded(engine, source, shape, "float32")).state_dict())
    with TensorReader(source) as reader:
        assert_same_tensors(found, {name: from_bf16(reader.bits(name)) for name in found})


async def test_only_matrices_in_bf16_are_kept(tmp_path: Path) -> None:
    shape = SHAPES["qwen2"]
    names = sorted(matrices_of(shape.config))
    others = dict.fromkeys(names[::3], "F16") | dict.fromkeys(names[1::3], "F32")
    source = write_folder(tmp_path / "source", shape, others)
    async with Engine("cpu") as engine:
        model, plain = [await loaded(engine, source, shape, weights) for weights in ("stored", "float32")]
        parameters = model_state_of(model).parameters
        assert parameters.stored == set(names[2::3])
        assert {name for name, parameter in parameters.items() if parameter.stored} == parameters.stored
        assert_same_tensors(await model.state_dict(), await plain.state_dict())
        batch = shape.batch_of_tokens()
        assert await model.loss(*batch) == await plain.loss(*batch)


async def test_a_model_without_bf16_is_kept_in_float32_and_can_be_trained(tmp_path: Path) -> None:
    shape = SHAPES["gpt2"]
    source = write_folder(tmp_path / "source", shape, dict.fromkeys(matrices_of(shape.config), "F16"))
    async with Engine("cpu") as engine:
        model = await loaded(engine, source, shape, "stored")
        assert not model_state_of(model).parameters.stored
        assert (await Trainer(model).step(*shape.batch_of_tokens())).step == 1


async def test_a_load_converts_no_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, read, kept = SHAPES["gpt2"], TensorReader.read, set[str]()
    source = write_folder(tmp_path / "source", shape)

    def noted(reader: TensorReader, name: str, *rest: Any) -> Any:
        found = read(reader, name, *rest)
        if found.ndim == 1 or len(found) > 1:  # not a short read for the fingerprint
            kept.add(name)
        return found

    monkeypatch.setattr(TensorReader, "read", noted)
    async with Engine("cpu") as engine:
        await loaded(engine, source, shape, "stored")
    assert kept
    assert not kept & matrices_of(shape.config)


@pytest.mark.parametrize("weights", ["bfloat16", "", None, 16, ["stored"]])
async def test_another_way_to_keep_weights_is_refused(weights: Any, tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        with pytest.raises(ValueError, match=r"weights is .*expected one of 'float32', 'stored'"):
            await Model.from_pretrained(engine, tmp_path, weights=weights)


def test_the_bytes_of_all_weights_are_counted_before_any_tile_is_made() -> None:
    for shape in SHAPES.values():
        names = matrices_of(shape.config)
        elements = sum(tile.nbytes // tile.dtype.itemsize for parameter in shape.parameters().values()
                       if parameter.name in names for tile in parameter.weights.values())  # fmt: skip
        assert weights_nbytes(shape.config) == 4 * shape.config.parameter_count
        assert weights_nbytes(shape.config, names) == 4 * shape.config.parameter_count - 2 * elements


def test_bits_of_another_dtype_are_refused(tmp_path: Path) -> None:
    shape = SHAPES["gpt2"]
    source = write_folder(tmp_path / "source", shape, {"transformer.wpe.weight": "F16"})
    with TensorReader(source) as reader:
        with pytest.raises(ValueError, match=r"transformer\.wpe\.weight of .* holds F16, expected BF16"):
            reader.bits("transformer.wpe.weight")
        with pytest.raises(KeyError, match="has no tensor nothing"):
            reader.bits("nothing")
