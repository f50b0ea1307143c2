"""A second family of models trains, saves and loads through GPT-2's code, and only a family's own files name it.

The family has GPT-2's blocks under other names and other settings, and no layer norm after them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asynctile import CheckpointError, Engine
from asynctile.layers import GPT2, GPT2Config, Model, Trainer, architectures, head
from asynctile.layers.architecture import Architecture
from asynctile.layers.config import MODEL, TOKENS, Axis, Config, Tensor
from asynctile.layers.floor import floor_demand
from asynctile.layers.gpt2 import embedding
from asynctile.layers.gpt2.family import BLOCK
from asynctile.layers.layout import shapes
from asynctile.layers.machine import Machine, Work
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from asynctile.share import runtime_of
from asynctile.storage.checksums import CHECKSUMS
from tests.layers.training import OPTIMIZER

WIDTHS = {"ln_1.weight": (MODEL,), "attn.c_attn.weight": (MODEL, "sections"), "attn.c_proj.weight": ("heads", MODEL),
          "ln_2.weight": (MODEL,), "mlp.c_fc.weight": (MODEL, "hidden"), "mlp.c_proj.weight": ("hidden", MODEL)}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlainConfig(Config):
    model_type: ClassVar[str] = "plain"
    prefix: ClassVar[str] = "decoder."

    n_layer: int = 2
    block_size: int = 13
    vocab_size: int = 19
    width: int = 12

    head_tensor: ClassVar[str] = "wte.weight"  # type: ignore[misc]
    head_size: ClassVar[int] = 4  # type: ignore[misc]
    norm_epsilon: ClassVar[float] = 1e-5  # type: ignore[misc]
    has_dropout: ClassVar[bool] = False  # type: ignore[misc]
    summary: ClassVar[str] = "plain"  # type: ignore[misc]

    @property
    def axes(self) -> Mapping[str, Axis]:
        return {
            MODEL: Axis(self.width), "heads": Axis(self.width, 4), "key_heads": Axis(self.width, 4),
            "sections": Axis(self.width, 4, times=3), "hidden": Axis(2 * self.width),
            "vocab": Axis(self.vocab_size), "positions": Axis(self.block_size),
        }  # fmt: skip

    def first_tensors(self) -> Iterator[Tensor]:
        yield Tensor("decoder.wte.weight", ("vocab", MODEL), decay=True, std=0.3)
        yield Tensor("decoder.wpe.weight", ("positions", MODEL), decay=True, std=0.3)

    def block_tensors(self, layer: int) -> Iterator[Tensor]:
        for name, axes in WIDTHS.items():
            matrix = len(axes) == 2
            yield Tensor(f"decoder.h.{layer}.{name}", axes, decay=matrix, mean=0.0 if matrix else 1.0, std=0.3 * matrix)
            yield Tensor(f"decoder.h.{layer}.{name.removesuffix('weight')}bias", axes[-1:])

    def last_tensors(self) -> Iterator[Tensor]:
        yield from ()

    def to_hf(self) -> dict[str, Any]:
        return {"model_type": self.model_type, "width": self.width, "depth": self.n_layer, **dict.fromkeys(TOKENS)}

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> Self:
        return cls(n_layer=values["depth"], width=values["width"])


PLAIN = Architecture(
    title="plain model", config=PlainConfig, embedding=embedding, block=BLOCK, head=head,
    repeated={"output.weight": "decoder.wte.weight"},
)  # fmt: skip
CONFIG, TILE = PlainConfig(), 8
BATCHES = [tuple(np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (2, 2, 11))) for seed in range(4)]


@pytest.fixture(autouse=True)
def _plain_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(architectures.ARCHITECTURES, "plain", PLAIN)


async def bits(trainer: Trainer) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in (await trainer.model.state_dict()).items()}


async def test_the_second_family_trains_saves_and_resumes_as_if_never_stopped(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = Trainer(await Model.create(engine, CONFIG, seed=3, tile=TILE), OPTIMIZER)
        for batch in BATCHES[:2]:
            await trainer.step(*batch)
        await trainer.save(tmp_path / "half")
        reports = [await trainer.step(*batch) for batch in BATCHES[2:]]
        whole, losses = await bits(trainer), [report.loss for report in reports]
    assert not any("ln_f" in name for name in whole)
    async with Engine("emulated", device_memory=floor_demand(CONFIG, TILE).floor_nbytes) as engine:
        trainer = await Trainer.load(engine, tmp_path / "half")
        assert trainer.model.config == CONFIG
        reports = [await trainer.step(*batch) for batch in BATCHES[2:]]
        assert [report.loss for report in reports] == losses
        assert await bits(trainer) == whole
        assert engine.statistics().uploaded_bytes > 0


async def test_the_second_familys_gradient_matches_its_loss() -> None:
    async with Engine("cpu") as engine:
        model = await Model.create(engine, CONFIG, seed=3, tile=TILE)
        gradients = await Trainer(model).gradients(*BATCHES[0])
        start = await model.state_dict()
        norm = sum(float((value.astype(np.float64) ** 2).sum()) for value in gradients.values())

        async def loss_after(stride: float) -> float:
            await runtime_of(engine).call(model_state_of(model).set_weights(
                lambda parameter, key: (start[parameter.name] + np.float32(stride) * gradients[parameter.name])[
                    parameter.index(*key)]))  # fmt: skip
            return await model.loss(*BATCHES[0])

        stride = 1e-2 / norm
        rise = await loss_after(stride) - await loss_after(-stride)
    assert rise == pytest.approx(2 * stride * norm, rel=2e-2)


async def test_its_files_use_its_names_and_load_without_the_prefix_and_with_the_head(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        model = await Model.create(engine, CONFIG, seed=3, tile=TILE)
        await model.save_pretrained(tmp_path)
        wanted = await model.state_dict()
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "plain"
        tensors = {name.removeprefix("decoder."): value for name, value in load_file(tmp_path / "model.safetensors").items()}
        tensors["output.weight"] = tensors.pop("wte.weight")
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / CHECKSUMS).unlink(missing_ok=True)
        again = await (await Model.from_pretrained(engine, tmp_path, tile=5)).state_dict()
        assert {name: value.tobytes() for name, value in again.items()} == {
            name: value.tobytes() for name, value in wanted.items()
        }
        save_file({**tensors, "wte.weight": tensors["output.weight"] + 1}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"output\.weight differs from wte\.weight; only models with a tied head"):
            await Model.from_pretrained(engine, tmp_path)


async def test_an_unknown_family_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Engine("cpu") as engine:
        await (await Model.create(engine, CONFIG, tile=TILE)).save_pretrained(tmp_path)
        monkeypatch.delitem(architectures.ARCHITECTURES, "plain")
        with pytest.raises(ValueError, match=r"config\.json says model_type 'plain'; only 'gpt2', .* can be loaded"):
            await Model.from_pretrained(engine, tmp_path)


async def test_only_model_takes_every_family_and_a_gpt2_is_known_as_one(tmp_path: Path) -> None:
    gpt2 = GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=8, vocab_size=19)

    class Mine(GPT2):
        pass

    async with Engine("cpu") as engine:
        plain = await Model.create(engine, CONFIG, tile=TILE)
        assert type(plain) is Model
        await plain.save_pretrained(tmp_path / "plain")
        other = r"is of the family 'plain', and GPT2 takes GPT-2 alone; use Model instead"
        with pytest.raises(ValueError, match=f"^config {other}"):
            await GPT2.create(engine, CONFIG)
        with pytest.raises(ValueError, match=rf"^the model in {tmp_path}/plain {other}"):
            await GPT2.from_pretrained(engine, tmp_path / "plain")
        await Trainer(await Model.create(engine, gpt2)).save(tmp_path / "gpt2")
        for cls, made in ((Model, GPT2), (GPT2, GPT2), (Mine, Mine)):
            assert type(await cls.create(engine, gpt2)) is made
            assert type(await cls.from_pretrained(engine, tmp_path / "gpt2")) is made
        assert type((await Trainer.load(engine, tmp_path / "gpt2")).model) is GPT2
        assert type(await Model.from_pretrained(engine, tmp_path / "plain")) is Model


def test_the_second_family_can_be_planned() -> None:
    plan = plan_step(CONFIG, Work(batch_size=2, seq_len=11, tile=TILE), Machine(device="emulated"))
    assert plan.parameters == CONFIG.parameter_count == sum(np.prod(shape) for _, shape in shapes(CONFIG))
    assert plan.floor_bytes >= floor_demand(CONFIG, TILE).floor_nbytes


def test_only_a_familys_own_files_know_its_configuration() -> None:
    families = [architecture.config for name, architecture in architectures.ARCHITECTURES.items() if name != "plain"]
    shared = {item.name for item in fields(Config)} | set(TOKENS)
    settings = {item.name for family in families for item in fields(family)} - shared | {"inner", "rotation", "key_heads"}
    names = {family.model_type for family in families} | {family.prefix for family in families}
    folders = tuple(f"asynctile.layers.{family.model_type}" for family in families)
    assert {"n_embd", "hidden_size", "attention_bias"} <= settings
    for path in sorted(Path(architectures.__file__).parent.glob("*.py")):
        if path.name in ("architectures.py", "__init__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name} line {getattr(node, 'lineno', 0)}"
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith(folders)), where
            assert not (isinstance(node, ast.Attribute) and node.attr in settings), f"{where}: {ast.unparse(node)}"
            assert not (isinstance(node, ast.Constant) and node.value in names), where
