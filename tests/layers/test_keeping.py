"""recompute="auto" on an engine: the parts kept under each cap, equal bits, and that keeping never causes a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import Trainer, keeping
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.layers.step import parts_of, record
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.demand import Demand
from tests.laws import covering
from tests.layers.shapes import shape
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, lively, states_of

#: Three blocks, and a vocabulary that makes the head one more part to keep: 0 to 4 parts.
DEEP = shape(20, 2, 150, 24, tile=12, batch=2, length=12, micro_batches=2, n_inner=25, n_layer=3)
PARTS = parts_of(DEEP.config)
STATES = DEEP.config.states_nbytes
#: The option that limits the memory in which a device computes.
CAP = {"cpu": "host_memory", "emulated": "device_memory"}
_yardsticks: dict[float | None, Tensors] = {}


@cache
def program(kept: int, kind: str = "step") -> tuple[int, Demand]:
    """Return the operations and the demand of the program in which that many parts keep their activations."""
    parameters = DEEP.parameters()
    found = record(kind, parameters, parameters.tiling.rows(DEEP.batch, DEEP.length, DEEP.micro_batches), kept=kept)
    return sum(1 for _ in found.operations()), demand_of([found], parameters.states())


def nbytes_of(kept: int) -> int:
    """Return the bytes of a step in which that many parts keep their activations."""
    return program(kept)[1].resident_nbytes


@cache
def kept_of() -> dict[int, int]:
    """Return the number of kept parts, by the operations of a step."""
    return {program(kept, kind)[0]: kept for kept in range(PARTS + 1) for kind in ("step", "step_clipped")}


def nbytes_of_another() -> int:
    """Return the bytes of another model that is not trained."""
    return demand_of([], (tile for item in DEEP.parameters().values() for tile in item.weights.values())).resident_nbytes


async def step_on(trainer: Trainer, number: int = 1) -> int:
    """Do a step; return how many parts kept their activations, told from the number of its operations."""
    before = trainer.model.engine.statistics().operations
    await trainer.step(*DEEP.batch_of_tokens(number))
    return kept_of()[trainer.model.engine.statistics().operations - before]


async def trainer_on(engine: Any, **options: Any) -> Trainer:
    model = await lively(engine, DEEP)
    return Trainer(model, OPTIMIZER, micro_batches=DEEP.micro_batches, **{"update": "device", **options})


@asynccontextmanager
async def training(device: str, **caps: Any) -> AsyncIterator[Trainer]:
    async with Engine(device, **caps) as engine:
        yield await trainer_on(engine)


async def course(engine: Any, **options: Any) -> tuple[list[int], Tensors]:
    """Return the number of kept parts in each of two steps, and every weight and moment after them."""
    trainer = await trainer_on(engine, **options)
    kept = [await step_on(trainer, number) for number in (1, 2)]
    return kept, await states_of(trainer)


async def yardstick(clip_norm: float | None) -> Tensors:
    if clip_norm not in _yardsticks:
        async with Engine("cpu") as engine:
            _yardsticks[clip_norm] = (await course(engine, recompute=True, clip_norm=clip_norm))[1]
    return _yardsticks[clip_norm]


def test_the_number_of_operations_tells_how_many_parts_are_kept() -> None:
    assert sorted(kept_of().values()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert all(nbytes_of(kept) < nbytes_of(kept + 1) for kept in range(PARTS))


@pytest.mark.parametrize(
    ("device", "kept", "clip_norm"),
    covering(["cpu", "emulated"], [0, PARTS, *range(1, PARTS)], {"two-phase": 0.5, "fused": None}, few=2),
)
async def test_as_many_parts_are_kept_as_fit_on_the_device_and_no_bit_depends_on_it(
    device: str, kept: int, clip_norm: float | None
) -> None:
    nbytes = program(kept, "step" if clip_norm is None else "step_clipped")[1].resident_nbytes
    async with Engine(device, **{CAP[device]: nbytes}) as engine:
        found, states = await course(engine, clip_norm=clip_norm)
    assert found == [kept, kept]
    assert_same_tensors(states, await yardstick(clip_norm))


async def test_nothing_is_kept_where_tiles_have_to_move() -> None:
    for nbytes in (nbytes_of(0) - 1, STATES // 3):
        async with training("emulated", device_memory=nbytes) as trainer:
            assert await step_on(trainer) == 0


async def test_ram_below_a_device_must_hold_kept_activations_as_well() -> None:
    async with training("emulated", device_memory=2 * nbytes_of(PARTS), host_memory=nbytes_of(2)) as trainer:
        assert await step_on(trainer) == 2


@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_nothing_is_kept_that_would_go_to_the_disk(device: str, tmp_path: Path) -> None:
    """The spill folder holds a step that keeps nothing, and no more; tiles there and in RAM are whole pages."""
    none, some = (program(kept)[1].rounded(4096).resident_nbytes for kept in (0, 2))
    more = {} if device == "cpu" else {"device_memory": 2 * nbytes_of(PARTS)}
    async with training(device, host_memory=none - 1, spill=tmp_path, spill_limit=none + 4096, **more) as trainer:
        assert await step_on(trainer) == 0
        assert trainer.model.engine.statistics().spill_written_bytes > 0 or device == "emulated"
    async with training(device, host_memory=some, spill=tmp_path, **more) as trainer:
        assert await step_on(trainer) == 2
        assert trainer.model.engine.statistics().spill_written_bytes == 0


async def test_gradients_choose_separately() -> None:
    nbytes = program(2, "gradients")[1].resident_nbytes
    assert nbytes_of(1) <= nbytes < nbytes_of(2), "a step has more inputs"
    async with training("cpu", host_memory=nbytes) as trainer:
        expected = await trainer.gradients(*DEEP.batch_of_tokens())
        assert await step_on(trainer) == 1
    async with Engine("cpu") as engine:
        again = await (await trainer_on(engine, recompute=True)).gradients(*DEEP.batch_of_tokens())
    assert all(expected[name].tobytes() == value.tobytes() for name, value in again.items())


async def test_tiles_of_another_model_come_first() -> None:
    async with Engine("cpu", host_memory=nbytes_of(3) + nbytes_of_another()) as engine:
        await lively(engine, DEEP, seed=2)
        assert await step_on(await trainer_on(engine)) == 3


async def test_a_model_made_later_takes_the_room_of_activations() -> None:
    """This happens in RAM, where a step that kept as much as before would be refused; the new choice then stays."""
    async with training("cpu", host_memory=nbytes_of(2) + nbytes_of_another()) as trainer:
        assert await step_on(trainer) == PARTS
        other = await lively(trainer.model.engine, DEEP, seed=2)
        assert [await step_on(trainer, number) for number in (2, 3)] == [0, 0]
        assert (await trainer.gradients(*DEEP.batch_of_tokens()))
        await other.release()
        found = await trainer.model.state_dict()
    async with training("cpu") as trainer:
        for number in (1, 2, 3):
            await step_on(trainer, number)
        again = await trainer.model.state_dict()
    assert all(again[name].tobytes() == value.tobytes() for name, value in found.items())


async def test_a_step_that_fits_in_no_way_is_refused_with_its_least_need() -> None:
    async with training("cpu", host_memory=nbytes_of(0) - 1) as trainer:
        with pytest.raises(BudgetError) as caught:
            await trainer.step(*DEEP.batch_of_tokens())
        assert caught.value.floor == nbytes_of(0)
        assert trainer.step_count == 0


async def test_ram_that_is_lent_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save may have borrowed it. The step chooses as if the RAM were there, and waits for it."""
    async with training("cpu", host_memory=nbytes_of(PARTS)) as trainer:
        engine = trainer.model.engine
        reserve = runtime_of(engine).reserve

        async def lend() -> Any:
            async with runtime_of(engine).exclusive():
                return runtime_of(engine).tiers.caps.borrow(nbytes_of(PARTS) - nbytes_of(1), "a test")

        async def give_back_and_reserve(demand: Demand) -> None:  # by now the choice is made
            loan.give_back()
            await reserve(demand)

        loan = await runtime_of(engine).call(lend())
        assert loan is not None
        monkeypatch.setattr(runtime_of(engine), "reserve", give_back_and_reserve)
        assert [await step_on(trainer, number) for number in (1, 2)] == [PARTS, PARTS]


async def test_shares_choose_by_their_own_caps_and_the_engine_by_the_rest() -> None:
    async with Engine("cpu", host_memory=nbytes_of(1) + nbytes_of(3)) as engine:
        own = await trainer_on(engine)
        async with engine.share(host_memory=nbytes_of(3)) as part:
            assert await step_on(await trainer_on(part)) == 3
            assert await step_on(own) == 1
        assert await step_on(own, 2) == PARTS


async def test_updates_are_placed_for_the_chosen_program() -> None:
    async with Engine("emulated", device_memory=nbytes_of(2)) as engine:
        assert await step_on(await trainer_on(engine, update="auto")) == 2


@pytest.mark.parametrize(("kept", "device"), covering([0, 1, PARTS], ["cpu", "emulated"]))
def test_a_plan_keeps_what_a_run_keeps(device: str, kept: int) -> None:
    plan = plan_step(DEEP.config, DEEP.work(), Machine(device=device, **{CAP[device]: nbytes_of(kept)}))
    assert plan.kept == kept
    told = dict(plan.lines())["activations kept"]
    assert told == (f"of the head and {kept - 1} of 3 layers" if kept else "none, recomputed in backward")
    assert plan.resident_bytes == nbytes_of(kept)
    if device == "cpu":
        assert plan.floor_bytes == nbytes_of(0)
        assert plan_step(DEEP.config, DEEP.work(recompute=False), Machine(device=device)).floor_bytes == nbytes_of(PARTS)


async def test_true_and_false_ignore_the_caps() -> None:
    async with Engine("emulated", device_memory=STATES // 3) as engine:
        assert await step_on(await trainer_on(engine, recompute=False)) == PARTS
    async with Engine("cpu") as engine:
        assert await step_on(await trainer_on(engine, recompute=True)) == 0
        assert await step_on(await trainer_on(engine)) == PARTS


async def test_choices_are_forgotten_like_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, arrange = [], keeping.arrange
    monkeypatch.setattr(keeping, "PROGRAMS", 3)
    monkeypatch.setattr(keeping, "arrange", lambda *args, **more: chosen.append(args[1].length) or arrange(*args, **more))
    async with training("cpu") as trainer:
        tokens, targets = DEEP.batch_of_tokens()
        for length in (1, 2, 3, 4, 3, 1):
            await trainer.gradients(tokens[:, :length], targets[:, :length])
    assert chosen == [1, 2, 3, 4, 1]


async def test_the_arranged_step_is_not_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[tuple[int, int]] = []

    def recording(kind: str, parameters: Any, rows: Any, *, kept: int = 0, on_host: Any = (), carriers: Any = ()) -> Any:
        if not on_host:
            recorded.append((len(rows.passes), kept))
        return record(kind, parameters, rows, kept=kept, on_host=on_host, carriers=carriers)

    for module in ("arrangement", "model_state"):
        monkeypatch.setattr(f"asynctile.layers.{module}.record", recording)
    async with Engine("emulated", device_memory=STATES // 3) as engine:
        trainer = await trainer_on(engine, recompute=True)
        assert await step_on(trainer) == 0
    assert len(recorded) > 1, "several arrangements were compared"
    assert len(recorded) == len({*recorded})
