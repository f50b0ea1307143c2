"""Weights saved in a dtype and in shards: each value is the nearest, every file loads again, and damage is found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2
from asynctile.layers import model as model_module
from asynctile.layers.model import model_state_of
from asynctile.layers.weight_dtype import rounded
from asynctile.layers.weight_files import cut
from asynctile.storage.tensors import INDEX, TensorReader
from tests.layers.training import SMALL, lively

Tensors = dict[str, NDArray[Any]]
HALVES = ("float16", "bfloat16")
CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MOST = 4000


def nearest(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Return the nearest number of the dtype to each value, ties to even, from the definition and by float64."""
    bits, least = (8, -133) if dtype == "bfloat16" else (11, -24)
    wide = values.astype(np.float64)
    _, exponent = np.frexp(wide)
    step = np.exp2(np.maximum(exponent - bits, least))
    return (np.rint(wide / step) * step).astype(np.float32)  # rint takes the even one of two


def stored(folder: Path) -> Tensors:
    """Return the tensors of a folder's files as float32, read by the safetensors library where numpy has the dtype."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with TensorReader(file) as reader:
            found |= {name: reader.read(name) for name in reader.names()}
            if not any(reader.dtype(name) == "BF16" for name in reader.names()):
                with safe_open(file, "np") as theirs:
                    assert all(np.array_equal(theirs.get_tensor(name), found[name]) for name in theirs.keys())  # noqa: SIM118
    return found


async def saved(folder: Path, dtype: str) -> Tensors:
    """Save a model whose weights have many digits; return them."""
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        await model.save_pretrained(folder, dtype=dtype)
        return await model.state_dict()


async def loaded(folder: Path) -> Tensors:
    async with Engine("emulated", device_memory="64KiB") as engine:
        return await (await GPT2.from_pretrained(engine, folder, tile=7)).state_dict()


@pytest.mark.parametrize("dtype", CODES)
async def test_a_model_is_saved_in_the_nearest_numbers_of_a_dtype_and_loads_with_those(tmp_path: Path, dtype: str) -> None:
    weights = await saved(tmp_path / "model", dtype)
    expected = weights if dtype == "float32" else {name: nearest(value, dtype) for name, value in weights.items()}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == dtype
    with TensorReader(tmp_path / "model") as reader:
        assert {reader.dtype(name) for name in reader.names()} == {CODES[dtype]}
    for found in (stored(tmp_path / "model"), await loaded(tmp_path / "model")):
        assert found.keys() == expected.keys()
        assert {name: value.tobytes() for name, value in found.items()} == {
            name: value.tobytes() for name, value in expected.items()
        }
    if dtype != "float32":
        assert any(not np.array_equal(value, weights[name]) for name, value in expected.items())


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_takes_the_nearest_of_hard_values(dtype: str) -> None:
    random = np.random.default_rng(1)
    drawn = random.standard_normal(20_000).astype(np.float32) * np.exp2(random.integers(-30, 12, 20_000)).astype(np.float32)
    middle = nearest(drawn, dtype) + (nearest(drawn * np.float32(1.01), dtype) - nearest(drawn, dtype)) / 2  # ties among them
    values = np.concatenate([drawn, middle, np.float32([0, -0.0, 65504, -65504, 65519, 1e-40, 2**-25, 3 * 2**-25])])
    found = rounded(values, dtype, "a")
    wide = found.astype(np.float32) if dtype == "float16" else (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(wide, nearest(values, dtype))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 65520.0), ("float16", -1e30), ("bfloat16", 3.4e38)])
def test_a_weight_beyond_the_dtype_is_refused(dtype: str, value: float) -> None:
    piece = np.float32([1, np.nan, np.inf, -np.inf])
    found = rounded(piece, dtype, "wte.weight")
    wide = found.astype(np.float32) if dtype == "float16" else (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(wide, piece)
    with pytest.raises(ValueError, match=rf"tensor wte.weight holds .*, and {dtype} reaches .*; save the model in float32"):
        rounded(np.append(piece, np.float32(value)), dtype, "wte.weight")


async def test_a_refused_save_leaves_the_older_one(tmp_path: Path) -> None:
    before = await saved(tmp_path / "model", "float32")
    async with Engine("cpu") as engine:
        model = await GPT2.from_pretrained(engine, tmp_path / "model")
        for wrong in ("int8", "BF16", None, np.float16):
            with pytest.raises(ValueError, match=r"dtype is .*, expected one of 'float32', 'float16', 'bfloat16'"):
                await model.save_pretrained(tmp_path / "model", dtype=wrong)  # type: ignore[arg-type]
        state = model_state_of(model)
        large = {"transformer.ln_f.bias": np.float32(1e6)}
        await state.runtime.call(state.set_weights(
            lambda parameter, key: before[parameter.name][parameter.index(*key)] + large.get(parameter.name, np.float32(0))
        ))  # fmt: skip
        with pytest.raises(ValueError, match=r"transformer\.ln_f\.bias holds 1e\+06, and float16 reaches 65504"):
            await model.save_pretrained(tmp_path / "model", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    after = await loaded(tmp_path / "model")
    assert all(np.array_equal(after[name], value) for name, value in before.items())


@pytest.fixture
async def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Tensors]:
    monkeypatch.setattr(model_module, "SHARD_NBYTES", MOST)
    return tmp_path / "model", await saved(tmp_path / "model", "float32")


async def test_a_large_model_is_saved_in_shards_with_an_index(shards: tuple[Path, Tensors]) -> None:
    folder, weights = shards
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    count = len(files)
    assert count > 2
    assert files == [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    index = json.loads((folder / INDEX).read_text())
    sizes = {name: value.nbytes for name, value in weights.items()}
    assert index["metadata"] == {"total_parameters": SMALL.config.parameter_count, "total_size": sum(sizes.values())}
    for file in files:
        held = [name for name, where in index["weight_map"].items() if where == file]
        with TensorReader(folder / file) as reader:
            assert sorted(reader.names()) == sorted(held)
        assert len(held) == 1 or sum(sizes[name] for name in held) <= MOST
    assert index["weight_map"].keys() == weights.keys()
    found = await loaded(folder)
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in weights.items()
    }


@pytest.mark.parametrize("file", [INDEX, "model-00002"])
async def test_damage_of_a_shard_or_of_the_index_is_found(shards: tuple[Path, Tensors], file: str) -> None:
    folder, _ = shards
    path = next(folder.glob(f"{file}*"))
    content = bytearray(path.read_bytes())
    content[-20 if path.suffix == ".safetensors" else content.index(b"total_size") + 3] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged: its checksum"):
        await loaded(folder)


def test_shards_are_filled_in_order_and_a_large_tensor_stands_alone() -> None:
    sizes = {"a": 4, "b": 5, "c": 20, "d": 1, "e": 9, "f": 2}
    assert list(cut(sizes, 10).values()) == [["a", "b"], ["c"], ["d", "e"], ["f"]]
    assert cut(sizes, 41) == {"model.safetensors": [*sizes]}
    assert [*cut(sizes, 40)] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert math.prod(len(names) for names in cut(sizes, 1).values()) == 1
