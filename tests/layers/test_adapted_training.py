"""Adapters on the engine: equal bits wherever bytes are and however steps run, texts, served copies, frozen bytes, refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, Engine
from asynctile.kernels.cpu import KERNELS
from asynctile.layers import AdamW, LoRA, Trainer
from asynctile.layers.floor import floor_demand
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from asynctile.layers.tuning import Tuning
from asynctile.share import runtime_of
from tests.interpreter import Model as Plain
from tests.laws import covering, law
from tests.layers.adapting import SHAPES, adapted, adapted_outcome, blocks, lora_of, random_adapter
from tests.layers.shapes import Shape
from tests.layers.test_replicas_trained import by_coroutines
from tests.layers.training import (
    NARROW,
    OPTIMIZER,
    TWO_BLOCKS,
    Outcome,
    assert_same_bits,
    assert_same_tensors,
    lively,
)
from tests.settle import HANG_S

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}
#: The others have no verb or tensor that these do not have.
FEW = pytest.mark.parametrize("shape", ["gpt2", "qwen3", law("llama"), law("mistral"), law("qwen2")], indirect=True)
#: For places and modes, which are the same for all families.
ONE = pytest.mark.parametrize("shape", ["qwen3", *(law(name) for name in SHAPES if name != "qwen3")], indirect=True)
_yardsticks: dict[tuple[Shape, int, float | None], Outcome] = {}


@pytest.fixture(params=["gpt2", "llama", "qwen3", law("mistral"), law("qwen2")])
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


async def yardstick(shape: Shape, replicas: int = 1, clip_norm: float | None = None) -> Outcome:
    """Return the outcome with everything resident on `cpu`."""
    key = shape, replicas, clip_norm
    if key not in _yardsticks:
        _yardsticks[key] = await adapted_outcome(shape, device="cpu", replicas=replicas, clip_norm=clip_norm)
    return _yardsticks[key]


def floor_of(shape: Shape) -> int:
    return floor_demand(shape.config, shape.tile, tuning=Tuning(lora_of(shape.config))).floor_nbytes


def standing(shape: Shape) -> int:
    """Return the bytes of the frozen weights, and of the adapters with their moments."""
    return shape.parameters().tuned(Tuning(lora_of(shape.config))).states_nbytes


@pytest.mark.parametrize(("shape", "share", "prefetch", "recompute", "prepare"), covering(
    ["gpt2", "qwen3", "llama", "mistral", "qwen2"], [None, 0.25, "floor"], [2, 8, 0], [True, False], RUNS, few=3
), indirect=["shape"])  # fmt: skip
async def test_no_budget_and_no_mode_changes_a_bit(
    shape: Shape, share: str | float | None, prefetch: int, recompute: bool, prepare: Any
) -> None:
    floor = floor_of(shape)
    cap = floor if isinstance(share, str) else share and max(floor, int(share * standing(shape)))
    options = {"device_memory": cap, "prefetch": prefetch}
    async with asyncio.timeout(HANG_S):
        found = await adapted_outcome(shape, engine_options=options, recompute=recompute, prepare=prepare)
    assert_same_bits(found, await yardstick(shape))
    if cap is not None:
        assert found.device_peak_bytes <= cap
        assert found.uploaded_bytes > standing(shape) / 3


@ONE
@pytest.mark.parametrize(("device", "caps", "update"), [
    ("emulated", {"device_memory": 0.3, "host_memory": 0.6}, "device"),
    law("emulated", {"device_memory": 0.3, "host_memory": 1.2}, "host"),
    law("cpu", {"host_memory": 0.5}, "device"),
])  # fmt: skip
async def test_no_spill_folder_and_no_place_of_updates_changes_a_bit(
    shape: Shape, device: str, caps: dict[str, float], update: str, tmp_path: Path
) -> None:
    floor = floor_of(shape)
    sizes = {name: max(2 * floor, int(share * standing(shape))) + (300 << 10) * (name == "host_memory")
             for name, share in caps.items()}  # fmt: skip
    options = {**sizes, "spill": tmp_path}
    assert_same_bits(await adapted_outcome(shape, device=device, engine_options=options, update=update), await yardstick(shape))


@ONE
async def test_clipping_is_equal_bit_for_bit_at_the_floor(shape: Shape) -> None:
    resident = await yardstick(shape, clip_norm=0.01)
    assert min(resident.norms) > 0.01
    options = {"device_memory": floor_of(shape)}
    assert_same_bits(await adapted_outcome(shape, clip_norm=0.01, engine_options=options, update="host"), resident)


@pytest.mark.parametrize(("name", "replicas", "device", "prepare"), [
    ("gpt2", 2, "emulated*2", "played"), ("qwen3", 4, "emulated*2", "by coroutines"), law("llama", 4, "cpu", "played"),
    *(law(name, replicas, device, prepare) for name in SHAPES for replicas, device in ((2, "emulated*2"), (4, "emulated*4"))
      for prepare in RUNS),
])  # fmt: skip
async def test_no_number_of_devices_changes_a_bit_of_replicas(name: str, replicas: int, device: str, prepare: str) -> None:
    shape = replace(SHAPES[name], batch=4, length=13, micro_batches=1)
    expected = await yardstick(shape, replicas)
    options = {} if device == "cpu" else {"device_memory": max(floor_of(shape), standing(shape) // 3)}
    found = await adapted_outcome(shape, device=device, replicas=replicas, engine_options=options, prepare=RUNS[prepare])
    assert_same_bits(found, expected)


@pytest.mark.usefixtures("soft_gpu")
@pytest.mark.parametrize(("name", "precision"), [
    ("gpt2", "bf16"), ("qwen3", "fp32"), law("gpt2", "fp32"), law("qwen3", "bf16"),
])  # fmt: skip
async def test_no_cap_on_a_gpu_changes_a_bit(name: str, precision: str) -> None:
    shape = replace(SHAPES[name], batch=1, length=17, micro_batches=1)
    floor = floor_demand(shape.config, shape.tile, precision=precision, tuning=Tuning(lora_of(shape.config))).floor_nbytes
    found = [
        await adapted_outcome(shape, device="cuda:0", prepare=prepare, steps=3, engine_options={"precision": precision, **caps})
        for prepare, caps in ((by_coroutines, {}), (RUNS["played"], {"device_memory": 2 * floor + (48 << 10)}))
    ]
    assert_same_bits(*found)


@ONE
@pytest.mark.parametrize("device", ["emulated", law("cpu")])
async def test_every_step_after_the_first_is_played(shape: Shape, device: str) -> None:
    cap = None if device == "cpu" else max(floor_of(shape), standing(shape) // 2)
    async with Engine(device, device_memory=cap) as engine:
        trainer = Trainer(await adapted(engine, shape, lora_of(shape.config)))
        assert [(await trainer.step(*shape.batch_of_tokens())).played for _ in range(3)] == [False, True, True]


@FEW
async def test_the_engine_computes_what_the_interpreter_computes(shape: Shape) -> None:
    tokens, targets = shape.batch_of_tokens()
    async with Engine("emulated", device_memory=max(floor_of(shape), standing(shape) // 3)) as engine:
        model = await adapted(engine, shape, lora_of(shape.config))
        plain = Plain.create(shape.parameters().tuned(Tuning(lora_of(shape.config))), kernels=KERNELS)
        plain.load(await model.state_dict())
        trainer = Trainer(model, OPTIMIZER)
        loss, gradients = plain.gradients(tokens, targets)
        assert_same_tensors(await trainer.gradients(tokens, targets), gradients)
        assert (await model.logits(tokens)).tobytes() == plain.logits(tokens).tobytes()
        assert await model.loss(tokens, targets) == loss
        report = await trainer.step(tokens, targets)
        assert (report.loss, report.grad_norm) == plain.step(tokens, targets, 1, OPTIMIZER)
        assert_same_tensors(await model.state_dict(), plain.state())


@pytest.mark.parametrize("lora", [None, LoRA(rank=2, seed=3)], ids=["frozen", "adapter"])
async def test_frozen_bytes_are_never_written_back(lora: LoRA | None) -> None:
    shape = TWO_BLOCKS
    freeze = () if lora else ("wte*", "wpe*", "h.*")
    parameters = shape.parameters().tuned(Tuning(lora, freeze))
    changed = sum(tile.nbytes for item in parameters.trained() for tile in item.weights.values())
    cap = floor_demand(shape.config, shape.tile).floor_nbytes
    async with Engine("emulated", device_memory=cap) as engine:
        model = await lively(engine, shape)
        before = await model.state_dict()
        trainer = Trainer(model, OPTIMIZER, adapters=lora, freeze=freeze, recompute=True, update="device")
        reports = [await trainer.step(*shape.batch_of_tokens(seed)) for seed in (1, 2, 3)]
        after = await model.state_dict()
        assert {name for name in before if not np.array_equal(before[name], after[name])} == {
            item.name for item in parameters.trained() if not item.adapts}
        frozen = sum(value.nbytes for name, value in before.items() if np.array_equal(value, after[name]))
        assert max(report.uploaded_bytes for report in reports) > frozen > 20 * changed
        work = replace(shape.work(recompute=True, update="device", tuning=Tuning(lora, freeze)), micro_batches=1)
        plan = plan_step(shape.config, work, Machine(device="emulated", device_memory=cap, measured=engine.rates))
        assert (plan.uploaded_bytes, plan.downloaded_bytes) == (reports[2].uploaded_bytes, reports[2].downloaded_bytes)
        assert plan.states_bytes == parameters.states_nbytes


async def test_a_new_adapter_changes_no_logit_until_a_step() -> None:
    shape = SHAPES["gpt2"]
    tokens, targets = shape.batch_of_tokens()
    async with Engine("cpu") as engine:
        model = await lively(engine, shape)
        assert model.adapter is None
        logits, names = await model.logits(tokens), {*await model.state_dict()}
        trainer = Trainer(model, OPTIMIZER, adapters=LoRA(rank=4, seed=7))
        assert model.adapter == LoRA(rank=4, seed=7)
        assert np.array_equal(await model.logits(tokens), logits)
        gradients = await trainer.gradients(tokens, targets)
        added = {tensor.name for tensor in LoRA(rank=4).tensors(shape.config)}
        assert gradients.keys() == added and (await model.state_dict()).keys() == names | added
        assert all(value.any() == ("lora_B" in name) for name, value in gradients.items())
        assert np.array_equal(await model.logits(tokens), logits)
        loss = await model.loss(tokens, targets)
        losses = [(await trainer.step(tokens, targets)).loss for _ in range(8)]
        assert losses[0] == loss and await model.loss(tokens, targets) < losses[-1] < losses[1] < loss
        assert not np.array_equal(await model.logits(tokens), logits)


async def test_another_seed_draws_another_adapter() -> None:
    shape, found = SHAPES["llama"], []
    for seed in (1, 2, 1):
        async with Engine("cpu") as engine:
            model = await lively(engine, shape)
            Trainer(model, adapters=LoRA(rank=4, seed=seed))
            trainer = Trainer(model)
            await trainer.step(*shape.batch_of_tokens())
            found.append({name: value.tobytes() for name, value in (await model.state_dict()).items() if "lora" in name})
    assert found[0] == found[2] and all(found[0][name] != found[1][name] for name in found[0] if "lora_A" in name)


@FEW
async def test_texts_are_those_of_the_adapted_logits_whoever_is_computed_beside_them(shape: Shape) -> None:
    prompts = [[1, 2, 3], list(range(5, 35)), [7]]
    async with Engine("emulated*2", device_memory=2 * floor_of(shape)) as engine:
        model = await adapted(engine, shape, lora_of(shape.config))
        async with model.serve() as server:
            texts = [server.generate(prompt, max_new_tokens=6, temperature=0) for prompt in prompts]
            written: list[list[int]] = [[] for _ in prompts]
            for _ in range(6):
                for tokens, text in zip(written, texts, strict=True):
                    tokens.append((await anext(text)).id)
        for prompt, tokens in zip(prompts, written, strict=True):
            logits = await model.logits([prompt + tokens])
            assert tokens == logits[0, len(prompt) - 1 : -1].argmax(axis=-1).tolist()


async def greedy(server: Any, count: int = 8) -> list[int]:
    return [token.id async for token in server.generate([1, 2, 3], max_new_tokens=count, temperature=0)]


@pytest.mark.parametrize("beside", [False, True], ids=["between steps", "beside steps"])
async def test_a_server_that_was_open_before_follows_the_adapter(beside: bool) -> None:
    shape = NARROW
    async with Engine("cpu") as engine, engine.share(host_memory="8MiB") as part:
        model = await lively(engine, shape)
        async with model.serve(part if beside else None) as server:
            first = await greedy(server)
            values = random_adapter(shape.config, lora_of(shape.config))
            await runtime_of(engine).call(model_state_of(model).adapt(
                lora_of(shape.config), lambda parameter, key: 3 * values[parameter.name][parameter.index(*key)]))
            if beside:
                assert await greedy(server) == first
                assert await server.publish()
            logits = await model.logits([[1, 2, 3]])
            second = await greedy(server)
            assert second[0] == logits[0, -1].argmax() and second != first
            trainer = Trainer(model, AdamW(lr=0.3))
            for _ in range(3):
                await trainer.step(*shape.batch_of_tokens())
            await server.publish()
            third = await greedy(server)
            assert third[0] == (await model.logits([[1, 2, 3]]))[0, -1].argmax() and third != second


async def test_wrong_adapters_are_refused_and_leave_the_model() -> None:
    shape = NARROW
    tokens, targets = shape.batch_of_tokens()
    async with Engine("cpu") as engine:
        model = await lively(engine, shape)
        for options, kind, sentence in (
            ({"adapters": LoRA(targets=("q_proj",))}, ValueError, "targets has 'q_proj', which names no layer of a gpt2; its"),
            ({"adapters": "q_proj"}, TypeError, "adapters is 'q_proj', expected a LoRA, or None"),
            ({"freeze": "wte*"}, ValueError, r"freeze is 'wte\*', expected names of tensors"),
            ({"freeze": ("h.7.*",)}, ValueError, r"freeze has 'h\.7\.\*', which matches no tensor"),
            ({"freeze": ("*",)}, ValueError, "which leaves nothing to train"),
            ({"adapters": LoRA(), "freeze": ("*lora*",)}, ValueError, "which leaves nothing to train"),
        ):
            with pytest.raises(kind, match=sentence) as caught:
                Trainer(model, **options)  # type: ignore[arg-type]
            assert "\n" not in str(caught.value) and model.adapter is None
        trainer = Trainer(model, adapters=LoRA(rank=2))
        again = Trainer(model, freeze=("*lora_A*",))
        assert (trainer.freeze, again.freeze) == (("*lora_A*",), ("*lora_A*",))
        with pytest.raises(ValueError, match=r"has an adapter already, LoRA\(rank=2, .*; leave out adapters to train that one"):
            Trainer(model, adapters=LoRA(rank=2))
        await trainer.step(tokens, targets)
        with pytest.raises(ValueError, match="has moments after 1 steps, so its trained tensors cannot change; call save_"):
            Trainer(model, freeze=("*lora_B*",))
        assert Trainer(model).freeze == ("*lora_A*",)
    async with Engine("cpu") as engine:
        model = await lively(engine, shape)
        await Trainer(model).step(tokens, targets)
        with pytest.raises(ValueError, match="has moments after 1 steps"):
            Trainer(model, adapters=LoRA())
        assert model.adapter is None


async def test_an_adapter_that_fits_nowhere_leaves_the_model_as_it_was() -> None:
    shape = NARROW
    tokens, targets = shape.batch_of_tokens()
    whole = sum(tile.nbytes for tile in shape.parameters().weights())
    async with Engine("emulated", device_memory="64KiB", host_memory=whole + (64 << 10)) as engine:
        model = await lively(engine, shape)
        logits = await model.logits(tokens)
        with pytest.warns(UserWarning, match="adapters of rank 200 are larger than useful"):
            trainer = Trainer(model, adapters=LoRA(rank=200))
        with pytest.raises(BudgetError):
            await trainer.step(tokens, targets)
        assert model.torn is None and np.array_equal(await model.logits(tokens), logits)
    async with Engine("cpu") as engine:
        model = await lively(engine, shape)

        def failing(parameter: Any, key: Any) -> Any:
            if "lora_B" in parameter.name:
                raise OSError("the file ends here")
            return np.zeros(parameter.shape, np.float32)[parameter.index(*key)]

        with pytest.raises(OSError, match="the file ends here"):
            await runtime_of(engine).call(model_state_of(model).adapt(LoRA(), failing))
        assert model.adapter is None and model.torn is None
        trainer = Trainer(model, adapters=LoRA(rank=3))
        assert np.isfinite((await trainer.step(tokens, targets)).loss)


@pytest.mark.filterwarnings("ignore:adapters of rank 300 are larger than useful")
async def test_a_cap_below_the_floor_of_the_adapter_is_refused_by_engine_and_plan() -> None:
    shape, lora = NARROW, lora_of(NARROW.config, rank=300)
    floor = floor_demand(shape.config, shape.tile, tuning=Tuning(lora)).floor_nbytes
    work = replace(shape.work(), tuning=Tuning(lora))
    assert plan_step(shape.config, work, Machine(device="emulated")).floor_bytes == floor
    with pytest.raises(BudgetError):
        plan_step(shape.config, work, Machine(device="emulated", device_memory=floor - 1))
    async with Engine("emulated", device_memory=floor - 1) as engine:
        trainer = Trainer(await lively(engine, shape), adapters=lora)
        with pytest.raises(BudgetError) as caught:
            await trainer.step(*shape.batch_of_tokens())
        assert caught.value.floor == floor


async def test_blocks_that_differ_train_with_equal_bits_under_a_cap() -> None:
    shape = blocks(3, NARROW)
    lora = LoRA(rank=3, targets=("h.1.attn.c_attn", "h.2.mlp.c_proj"), alpha=5.0)
    expected = await adapted_outcome(shape, lora=lora, device="cpu")
    floor = floor_demand(shape.config, shape.tile).floor_nbytes
    for cap in (floor, 2 * floor):
        assert_same_bits(await adapted_outcome(shape, lora=lora, engine_options={"device_memory": cap}), expected)
