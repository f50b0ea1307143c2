"""A vocabulary of any size on a grain with a pitch: what products see, and that padding changes nothing and stays inside.

tests/kernels tests kernels with NaN in the padding, test_cuda.py trainings on a GPU, all of which are padded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asynctile import Engine
from asynctile.device.workers import WorkerDevice
from asynctile.kernels.bf16 import to_bf16
from asynctile.layers import GPT2, Trainer
from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.split import Split
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import COARSE, FINE, Grain
from asynctile.program.operation import Operation
from asynctile.program.precision import BF16
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.interpreter import Interpreter, Model
from tests.layers.shapes import LIGHT
from tests.layers.test_step import distance
from tests.layers.training import NARROW, OPTIMIZER, batches_of, lively, outcome

PITCHED = Grain(FINE.ladder, pitch=8)
WTE = "transformer.wte.weight"


def edges(product: Operation) -> set[int]:
    """Return the rows, columns and inner size of a product, and the distances between rows of its matrices."""
    return {edge for tile in product.operands for edge in tile.shape}


class Spoiling(Interpreter):
    """An interpreter that puts a large number into the padding of each tile whose verb is told the amount of padding."""

    def __init__(self, arrays: dict[Tile, Any], cut: Split) -> None:
        super().__init__(arrays)
        self._cut = cut

    def execute(self, operation: Operation, arrays: dict[Tile, Any], numbers: Any) -> None:
        if operation.kernel.startswith(("adamw", "sum_squares", "cross_entropy")):
            for tile in operation.operands:
                if tile in arrays:
                    self._spoil(tile.name, arrays[tile])
        super().execute(operation, arrays, numbers)

    def _spoil(self, name: str, array: Any) -> None:
        large = to_bf16(np.array(1e15, np.float32)) if array.dtype == BF16 else 1e15
        if found := re.match(r"d?wte\.weight\[(\d+),", name):
            array[len(array) - self._cut.padding(int(found[1])) :] = large
        elif found := re.match(r"logits\[\d+,(\d+)\]", name):
            array[:, array.shape[1] - self._cut.padding(int(found[1])) :] = large


@pytest.mark.parametrize("tile", [None, 1000])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl"])
def test_no_product_of_a_published_model_on_a_gpu_has_an_odd_edge(name: str, tile: int | None) -> None:
    config = GPT2Config.named(name, n_layer=1)
    parameters = Parameters(config, Tiling(config, tile, COARSE), "bf16")
    rows = parameters.tiling.rows(4, config.block_size)
    for kind in ("step", "logits"):
        products = [entry for entry in record(kind, parameters, rows).operations() if entry.kernel.startswith("gemm")]
        assert len(products) > 10 - 5 * (kind == "logits")
        assert not [product for product in products if any(edge % 8 for edge in edges(product))]
    fine = Parameters(config, Tiling(config, tile or 512), "bf16")
    assert any(part.shape[0] % 2 for part in fine[WTE].weights.values())  # where there is no pitch


def test_only_the_last_tile_of_the_vocabulary_is_padded() -> None:
    parameters = Parameters(GPT2Config(n_layer=1), Tiling(GPT2Config(n_layer=1), 1000, COARSE), "bf16")
    for name, parameter in parameters.items():
        last = max(parameter.weights)[0]
        for (i, j), tile in parameter.weights.items():
            padded = name == WTE and i == last
            assert parameter.padding(i, j) == (7 * tile.shape[1] if padded else 0)
            whole = tuple(part.stop - part.start for part in parameter.index(i, j))
            assert (tile.shape == whole) != padded
            tiles = [parameter.exp_avg[i, j], parameter.exp_avg_sq[i, j], parameter.compute.get((i, j), tile)]
            assert {one.shape for one in tiles} == {tile.shape}
        assert parameter.shape == ((50257, 768) if name == WTE else parameter.shape)


@pytest.mark.parametrize(("name", "precision"), [
    ("sequences cut, all ragged", "fp32"), ("one tile of everything", "fp32"), ("one tile of everything", "bf16"),
    ("tiles of one", "fp32"),
])  # fmt: skip
def test_programs_compute_the_same_with_padding_and_leave_it_zero(name: str, precision: str) -> None:
    """The interpreter makes a tile NaN before an overwrite, and spoils the padding for every verb that is told of it."""
    shape = LIGHT[name]
    plain, padded = (Model.create(Parameters(shape.config, Tiling(shape.config, shape.tile, grain), precision), seed=1)
                     for grain in (FINE, PITCHED))  # fmt: skip
    padded.interpreter = Spoiling(padded.interpreter.arrays, cut=padded.parameters.tiling["vocab"])
    tokens, targets = shape.batch_of_tokens()
    tolerance = {"fp32": 1e-5, "bf16": 3e-2}[precision]
    assert distance(padded.logits(tokens), plain.logits(tokens)) < tolerance
    loss, gradients = padded.gradients(tokens, targets, shape.micro_batches)
    assert loss == pytest.approx(plain.loss(tokens, targets), rel=tolerance)
    for tensor, wanted in plain.gradients(tokens, targets, shape.micro_batches)[1].items():
        if not tensor.endswith("c_attn.bias"):  # the gradient of the keys' bias is only rounding
            assert distance(gradients[tensor], wanted) < tolerance, tensor
    for step, (kind, on_host) in enumerate((("step", False), ("step_clipped", False), ("step", True)), 1):
        found, wanted = (
            model.step(tokens, targets, step, OPTIMIZER, kind=kind, micro_batches=shape.micro_batches,
                       on_host=frozenset(model.parameters[WTE].weights.values() if on_host else ()))
            for model in (padded, plain)
        )  # fmt: skip
        assert found == pytest.approx(wanted, rel=tolerance)
    wte = padded.parameters[WTE]
    assert any(wte.padding(*key) for key in wte.weights)
    for tiles in (wte.weights, wte.exp_avg, wte.exp_avg_sq, wte.compute):
        for key, tile in tiles.items():
            array = padded.interpreter.arrays[tile]
            assert not array.reshape(-1)[array.size - wte.padding(*key) :].any()


@pytest.fixture
def pitched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices of the CPU, with the pitch of a GPU."""
    monkeypatch.setattr(WorkerDevice, "grain", PITCHED)


@pytest.mark.usefixtures("pitched")
@pytest.mark.parametrize("update", ["device", "host"])
async def test_trainings_under_caps_have_equal_bits_with_padding_too(update: str) -> None:
    yardstick = await outcome(NARROW, steps=4, device="cpu")
    found = await outcome(NARROW, steps=4, engine_options={"device_memory": NARROW.config.states_nbytes // 2}, update=update)
    assert found.losses == yardstick.losses and found.norms == yardstick.norms
    for name, value in yardstick.weights.items():
        assert np.array_equal(found.weights[name], value), name


@pytest.mark.parametrize("device", ["cpu", "emulated", "cuda:0"])
async def test_padding_gets_into_no_result_and_no_file(device: str, request: Any, tmp_path: Path) -> None:
    request.getfixturevalue("soft_gpu" if device == "cuda:0" else "pitched")
    tokens, targets = batches_of(NARROW, 1)[0]
    async with Engine(device) as engine:
        trainer = Trainer(await lively(engine, NARROW), OPTIMIZER, micro_batches=NARROW.micro_batches)
        await trainer.step(tokens, targets)
        wte = model_state_of(trainer.model).parameters[WTE]
        padding = {key: wte.padding(*key) for key in wte.weights}
        assert any(padding.values())
        for tiles in (wte.weights, wte.exp_avg, wte.exp_avg_sq, wte.copies):
            for key, tile in tiles.items():
                assert not (await runtime_of(engine).read(tile)).reshape(-1)[tile.nbytes // 4 - padding[key] :].any()
        logits = [await trainer.model.logits(tokens) for _ in range(3)]  # the later ones are played
        gradients = [await trainer.gradients(tokens, targets) for _ in range(3)]
        state = await trainer.model.state_dict()
        drawn = [token async for token in trainer.model.generate([1, 2], max_new_tokens=3, seed=1)]
        await trainer.save(tmp_path / "saved")
    async with Engine(device) as engine:
        again = await Trainer.load(engine, tmp_path / "saved")
        assert np.array_equal(await again.model.logits(tokens), logits[0])
        assert all(np.array_equal(value, state[name]) for name, value in (await again.model.state_dict()).items())
        moments = await model_state_of(again.model).gather(wte, model_state_of(again.model).parameters[WTE].exp_avg)
    assert all(np.array_equal(one, logits[0]) for one in logits)
    assert all(np.array_equal(one[name], gradients[0][name]) for one in gradients for name in state)
    stored, optimizer = (load_file(tmp_path / "saved" / name) for name in ("model.safetensors", "optimizer.safetensors"))
    assert stored[WTE].shape == gradients[0][WTE].shape == (NARROW.config.vocab_size, NARROW.config.n_embd)
    assert np.array_equal(stored[WTE], state[WTE])
    assert np.array_equal(optimizer[f"{WTE}.exp_avg"], moments)
    async with Engine("cpu") as engine:  # whose tiles have no padding
        model = await GPT2.from_pretrained(engine, tmp_path / "saved", tile=NARROW.tile)
        assert distance(await model.logits(tokens), logits[0]) < 1e-5
        trainer = Trainer(model, OPTIMIZER, micro_batches=NARROW.micro_batches)
        plain = await trainer.gradients(tokens, targets)
    assert distance(gradients[0][WTE], plain[WTE]) < 1e-5
    assert max(drawn) < NARROW.config.vocab_size
