"""The law of equal bits: the place of bytes changes no result. And budgets: the floor, and every budget above it.

The yardstick is one training with everything resident on `cpu`. Each test repeats it under other circumstances and compares
losses, norms, weights and moments bit for bit. tests/reference tests the values themselves.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.floor import floor_demand
from asynctile.layers.machine import Machine, Work
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling, default_tile
from asynctile.loop.thread import new_loop
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from tests.inside_engine import device_of
from tests.laws import covering, law
from tests.layers.shapes import LIGHT, Shape
from tests.layers.training import (
    NARROW,
    RAGGED,
    TWO_BLOCKS,
    Outcome,
    assert_same_bits,
    batches_of,
    floor_of,
    lively,
    outcome,
    yardstick,
)
from tests.settle import HANG_S

#: None of these runs takes more than a second or two; a hanging run must not take the whole suite with it.
STEPS = 2


async def check(shape: Shape, cap: int | None, prefetch: int = 2, **more: Any) -> Outcome:
    """Assert that a run under `cap` ends, stays below it, and gives the yardstick's bits."""
    options = {"device_memory": cap, "prefetch": prefetch}
    async with asyncio.timeout(HANG_S):
        found = await outcome(shape, steps=STEPS, engine_options=options, **more)
    assert_same_bits(found, await yardstick(shape))
    assert cap is None or found.device_peak_bytes <= cap
    return found


#: The shapes that are not the most ragged of their kind are laws.
FEW = ["heads in uneven groups, narrow MLP", "a head wider than the tile"]
EACH = [pytest.param(LIGHT[name], id=name) if name in FEW else law(LIGHT[name], id=name) for name in LIGHT]


@pytest.fixture(params=EACH)
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param


@pytest.mark.parametrize(("share", "prefetch"), [
    ("floor", 0), (0.25, 2),
    *(law(share, prefetch) for share, prefetches in (
        ("floor", (1, 2, 8)), (0.10, (0, 1, 2, 8)), (0.25, (0, 1, 8)), (0.50, (0, 1, 2, 8)),
    ) for prefetch in prefetches),
])  # fmt: skip
async def test_no_budget_and_no_prefetch_changes_a_bit(share: str | float, prefetch: int) -> None:
    floor = await floor_of()
    cap = floor if isinstance(share, str) else int(share * RAGGED.config.states_nbytes)
    assert cap >= floor
    found = await check(RAGGED, cap, prefetch)
    assert found.uploaded_bytes > STEPS * RAGGED.config.states_nbytes / 3, "hardly anything was streamed"


@pytest.mark.parametrize(("share", "recompute", "clip_norm"), [
    ("floor", True, 1e30), law("floor", False, 1e30), law(0.25, True, 1e30), (0.25, False, None), law(None, True, 1e30),
    law("floor", True, None), law("floor", False, None), law(0.25, True, None), law(0.25, False, 1e30), law(None, True, None),
    law(None, False, None), law(None, False, 1e30),
])  # fmt: skip
async def test_no_mode_changes_a_bit(share: str | float | None, recompute: bool, clip_norm: float | None) -> None:
    cap = await floor_of() if share == "floor" else share and int(share * RAGGED.config.states_nbytes)
    await check(RAGGED, cap, recompute=recompute, clip_norm=clip_norm)


@pytest.mark.parametrize(("recompute", "clip_norm"), [(False, None), (True, 1e30), law(True, None), law(False, 1e30)])
async def test_no_mode_changes_a_bit_on_the_cpu(recompute: bool, clip_norm: float | None) -> None:
    found = await outcome(RAGGED, steps=STEPS, device="cpu", recompute=recompute, clip_norm=clip_norm)
    assert_same_bits(found, await yardstick(RAGGED))


async def test_clipping_itself_is_equal_bit_for_bit_under_every_budget() -> None:
    resident = await outcome(RAGGED, steps=STEPS, device="cpu", clip_norm=0.1)
    assert min(resident.norms) > 0.1
    assert resident.losses[-1] != (await yardstick(RAGGED)).losses[-1]
    for cap in (await floor_of(), RAGGED.config.states_nbytes // 4):
        assert_same_bits(await outcome(steps=STEPS, clip_norm=0.1, engine_options={"device_memory": cap}), resident)


@pytest.mark.parametrize(
    ("loop", "device"), covering({"asyncio": asyncio.new_event_loop, "uvloop": new_loop}, ["cpu", "emulated"])
)
async def test_no_event_loop_changes_a_bit(loop: Any, device: str) -> None:
    if loop is new_loop:
        pytest.importorskip("uvloop")
    options = {} if device == "cpu" else {"device_memory": RAGGED.config.states_nbytes // 8}
    found = await outcome(RAGGED, steps=STEPS, device=device, make_loop=loop, engine_options=options)
    assert_same_bits(found, await yardstick(RAGGED))


async def test_no_link_rate_changes_a_bit() -> None:
    options = {"device_memory": RAGGED.config.states_nbytes // 3, "link_rate": "200MB"}
    assert_same_bits(await outcome(steps=STEPS, engine_options=options), await yardstick(RAGGED))


@pytest.mark.parametrize(("late", "share"), [("_up", "floor"), ("_down", 0.125), law("_up", 0.125), law("_down", "floor")])
async def test_a_link_that_is_late_in_one_direction_changes_no_bit(late: str, share: str | float) -> None:
    """Write-backs lag behind loads, or loads behind write-backs."""

    def slow(engine: Engine) -> None:
        getattr(device_of(engine), late).rate = 20_000_000

    cap = 2 * await floor_of() if isinstance(share, str) else int(share * RAGGED.config.states_nbytes)
    options = {"device_memory": cap, "prefetch": 8}
    assert_same_bits(await outcome(steps=STEPS, engine_options=options, prepare=slow), await yardstick(RAGGED))


@pytest.mark.parametrize(("lanes", "share"), [(3, 0.25), law(1, "floor"), law(1, 0.25), law(3, "floor")])
async def test_no_number_of_workers_changes_a_bit(lanes: int, share: str | float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(lanes)))
    await check(RAGGED, await floor_of() if isinstance(share, str) else int(share * RAGGED.config.states_nbytes))


async def test_the_exact_floor_is_enough_for_every_shape(shape: Shape) -> None:
    await check(shape, await floor_of(shape))


@pytest.mark.parametrize(
    ("trained", "count"), [(NARROW, 4), law(NARROW, 7), law(TWO_BLOCKS, 20)], ids=["four", "seven", "two blocks"]
)
async def test_every_budget_between_the_floor_and_the_whole_model_ends_and_agrees(trained: Shape, count: int) -> None:
    floor, whole = await floor_of(trained), 2 * trained.config.states_nbytes
    caps = [floor + (whole - floor) * index // (count - 1) for index in range(count)]
    for index, cap in enumerate(caps):
        await check(trained, cap, prefetch=(2, 0, 8, 1)[index % 4], recompute=index % 3 != 0)


async def test_logits_loss_and_gradients_have_equal_bits_at_the_floor_too() -> None:
    """Each has a program of its own, in the arena that was divided for the step and in a fresh one."""
    tokens, targets = RAGGED.batch_of_tokens()
    found = []
    for options in ({"device": "cpu"}, {"device": "emulated", "device_memory": await floor_of()}):
        async with Engine(**options) as engine:
            model = await lively(engine, RAGGED)
            trainer = Trainer(model, micro_batches=2)
            first = (await model.logits(tokens)).tobytes()
            await trainer.step(tokens, targets)
            gradients = await trainer.gradients(tokens, targets)
            found.append([
                first, await model.loss(tokens, targets), (await model.logits(tokens[:1, :7])).tobytes(),
                {name: value.tobytes() for name, value in gradients.items()},
                [token async for token in model.generate([1, 2, 3], max_new_tokens=3, seed=1)],
            ])  # fmt: skip
    assert found[0] == found[1]


async def test_a_cap_below_the_floor_is_refused_before_any_work(shape: Shape) -> None:
    floor = await floor_of(shape)
    async with Engine("emulated", device_memory=floor - 1) as engine:
        with pytest.raises(BudgetError, match="device_memory") as caught:
            await GPT2.create(engine, shape.config, tile=shape.tile)
        statistics = engine.statistics()
    assert caught.value.floor == floor
    assert str(floor) in str(caught.value)
    assert (statistics.operations, statistics.uploaded_bytes, statistics.host_peak_bytes) == (0, 0, 0)
    assert plan_step(shape.config, shape.work(), Machine(device="emulated")).floor_bytes == floor, "plan and engine disagree"
    with pytest.raises(BudgetError) as planned:
        plan_step(shape.config, shape.work(), Machine(device="emulated", device_memory=floor - 1))
    assert planned.value.floor == floor


@pytest.mark.parametrize("seed", [*range(4), *map(law, range(4, 40))])
def test_no_program_needs_more_than_the_floor(seed: int) -> None:
    """Every kind of step and batch fits into what `create` accepts, so nothing is refused after work began."""
    draw = random.Random(seed)
    n_head = draw.randint(1, 5)
    config = GPT2Config(
        n_layer=draw.randint(1, 2), n_head=n_head, n_embd=n_head * draw.randint(1, 12), block_size=draw.randint(1, 60),
        vocab_size=draw.randint(2, 60), n_inner=draw.choice([None, draw.randint(1, 60)]))  # fmt: skip
    tile, grain, precision = draw.randint(4, 40), Grain(FINE.ladder, draw.randint(1, 4)), draw.choice(["fp32", "bf16"])
    length, micro_batches = draw.randint(1, config.block_size), draw.randint(1, 2)
    parameters = Parameters(config, Tiling(config, tile, grain), precision)
    rows = parameters.tiling.rows(micro_batches * draw.randint(1, 4), length, micro_batches)
    floor = floor_demand(config, tile, grain, precision).floor_nbytes
    for kind in KINDS:
        kept = draw.randint(0, parts_of(config))
        needed = demand_of([record(kind, parameters, rows, kept=kept)], parameters.states())
        assert needed.floor_nbytes <= floor, (kind, config, tile, grain.tall, rows.batch, length, needed.what)


async def test_a_step_above_the_caps_is_refused_before_any_work() -> None:
    """The caps are RAM on cpu, and RAM for evictions below a device; the recorded step tells the need."""
    tokens, targets = RAGGED.batch_of_tokens()
    weights_nbytes = RAGGED.config.states_nbytes // 3
    for options in (
        {"device": "cpu", "host_memory": 2 * weights_nbytes},
        {"device": "emulated", "device_memory": await floor_of(), "host_memory": 2 * weights_nbytes},
    ):
        async with Engine(**options) as engine:
            trainer = Trainer(await lively(engine, RAGGED), micro_batches=2)
            with pytest.raises(BudgetError) as caught:
                await trainer.step(tokens, targets)
            assert engine.statistics().operations == 0
            assert "host_memory" in str(caught.value)
        options["host_memory"] = caught.value.floor
        async with Engine(**options) as engine:
            trainer = Trainer(await lively(engine, RAGGED), micro_batches=2)
            for batch in batches_of(RAGGED, 2):
                await trainer.step(*batch)
            assert engine.statistics().host_peak_bytes <= caught.value.floor


CONFIGS = {
    "tiny": GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=32, vocab_size=64),
    "the first run": GPT2Config(n_layer=4, n_head=4, n_embd=256, block_size=256, vocab_size=256),
    "odd": GPT2Config(n_layer=3, n_head=7, n_embd=7 * 45, block_size=100, vocab_size=1009),
    "wide and shallow": GPT2Config(n_layer=1, n_head=8, n_embd=1024, block_size=64, vocab_size=300),
    "one wide head": GPT2Config(n_layer=2, n_head=1, n_embd=320, block_size=64, vocab_size=500),
    "gpt2": GPT2Config.named("gpt2"),
}


def floor_bytes(config: GPT2Config, *, batch_size: int = 2, seq_len: int | None = None, **more: Any) -> int:
    work = Work(batch_size=batch_size, seq_len=seq_len or config.block_size, **more)
    return plan_step(config, work, Machine(device="emulated")).floor_bytes


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_floor_of_the_default_tile_is_within_its_bound(config: GPT2Config) -> None:
    assert floor_bytes(config, batch_size=1) <= max(config.states_nbytes // 10, FINE.floor_nbytes)


@pytest.mark.laws
def test_the_floor_does_not_depend_on_depth_vocabulary_batch_or_length_beyond_the_tile() -> None:
    base: dict[str, Any] = {"n_layer": 2, "n_head": 4, "n_embd": 128, "block_size": 128, "vocab_size": 190}
    tile = 64
    one = floor_bytes(GPT2Config(**base), tile=tile)
    for change in ({"n_layer": 4}, {"vocab_size": 701}, {"block_size": 1024}):
        assert floor_bytes(GPT2Config(**base | change), seq_len=128, tile=tile) == one, change
    for batch in ({"batch_size": 8}, {"seq_len": 32}, {"seq_len": 65}, {"batch_size": 6, "micro_batches": 3}):
        assert floor_bytes(GPT2Config(**base), tile=tile, **batch) <= one, batch


def test_a_wider_model_has_the_floor_of_its_tile() -> None:
    assert default_tile(CONFIGS["gpt2"]) >= 256
    floors = {floor_bytes(GPT2Config(n_layer=1, n_head=width // 64, n_embd=width, block_size=128, vocab_size=300), tile=128)
              for width in (256, 384, 512)}  # fmt: skip
    assert len(floors) == 1
