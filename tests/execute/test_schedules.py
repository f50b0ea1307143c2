"""Which runs are played and which are left to coroutines, what playing needs, and how long its data is kept.

test_interleaved.py tests other work between played steps.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from asynctile import AsynctileError, Engine, TierError
from asynctile.cli.stress.refusals import refused_threads
from asynctile.execute.bound import Bound
from asynctile.execute.schedules import MOST_FETCHED
from asynctile.execute.workers.calls import Calls
from asynctile.layers import Trainer
from asynctile.layers.batch import loss_inputs
from asynctile.layers.model import model_state_of
from asynctile.ops import fill
from asynctile.share import Share, runtime_of
from asynctile.storage.tile import Tile
from tests.execute.interleaving import BATCHES, PLACES, SHORT, a_weight, breaks, launch_as, played, training
from tests.inside_engine import device_of, schedule_of
from tests.laws import law
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively, states_of
from tests.settle import HANG_S, settle


async def test_weights_lost_between_steps_are_not_trained_on(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1, 2)
        await launch_as(engine, fill(a_weight(trainer), 0.5), breaks)
        with pytest.raises(RuntimeError, match="the launch broke"):
            await runtime_of(engine).synchronize()
        with pytest.raises(TierError, match=r"c_fc\.bias.* cannot be read"):
            await runtime_of(engine).read(a_weight(trainer))  # from now on no tier has their bytes
        with pytest.raises(AsynctileError, match=r"c_fc\.bias.* was never written"):
            await trainer.step(*BATCHES[3])


@pytest.mark.parametrize("refused", [law("asynctile-player-0"), "asynctile-player-1"])
async def test_steps_run_as_coroutines_while_a_player_thread_is_refused_and_are_played_later(
    place: dict[str, Any], refused: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    async with training(place) as (_, trainer):
        with refused_threads(lambda _, name: name == refused) as found:
            flags = await played(trainer, 0, 1, 2)
        assert (flags, found) == ([False] * 3, [refused] * 2)
        assert sum("the system refused the thread" in record.getMessage() for record in caplog.records) == 1
        assert await played(trainer, 3, 4) == [True] * 2
        states = await states_of(trainer)
    async with training(place) as (_, trainer):
        await played(trainer, 0, 1, 2, 3, 4)
        assert_same_tensors(states, await states_of(trainer))


async def test_a_run_without_one_of_its_inputs_is_refused_even_if_earlier_runs_were_played(place: dict[str, Any]) -> None:
    async def run(trainer: Trainer, *left_out: str) -> bool:
        engine, model = trainer.model.engine, trainer.model
        program = await model_state_of(model).recorded("loss", model_state_of(model).tiling.rows(2, 8))
        rng = np.random.default_rng(0)
        inputs = {name: rng.integers(0, 4, tile.shape).astype(tile.dtype) for name, tile in program.inputs.items()}
        async with runtime_of(engine).exclusive():
            run = await runtime_of(engine).start(
                program, model_state_of(model).demand(program), {name: x for name, x in inputs.items() if name not in left_out}
            )
            await run.finish()
            return run.played

    async with training(place) as (engine, trainer):
        for before in (1, 1, 3):
            flags = [await runtime_of(engine).call(run(trainer)) for _ in range(before)]
            with pytest.raises(AsynctileError, match=r"targets\[1\].* was never written"):
                await runtime_of(engine).call(run(trainer, "targets[1]"))
        assert flags[-1], "the last time it would have been played again"


def runs_of(engine: Engine) -> list[Any]:
    """Return a list that gets every run from now on."""
    runs, start = [], runtime_of(engine).start

    async def seen(*args: Any) -> Any:
        runs.append(await start(*args))
        return runs[-1]

    runtime_of(engine).start = seen  # type: ignore[method-assign]
    return runs


def memory_for_results(engine: Engine, nbytes: int) -> list[np.ndarray]:
    """Return a list that gets the memory of this size that played programs fetch to."""
    made, device = [], device_of(engine)
    numbers = device.numbers

    def noted(count: int) -> np.ndarray:
        found = numbers(count)
        if count == nbytes // 8:
            made.append(found)
        return found

    device.numbers = noted
    return made


async def test_a_program_with_large_results_is_not_played_and_needs_no_memory_beyond_the_caps(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with training(place) as (_, trainer):
        expected = [(await trainer.model.logits(tokens)).tobytes() for tokens, _ in BATCHES[:3]]
    monkeypatch.setattr("asynctile.execute.schedules.MOST_FETCHED", 100)
    async with training(place) as (engine, trainer):
        runs, memory = runs_of(engine), memory_for_results(engine, 100)
        assert [(await trainer.model.logits(tokens)).tobytes() for tokens, _ in BATCHES[:3]] == expected
        assert [run.played for run in runs] == [False] * 3
        assert not memory


async def test_fetched_results_are_those_of_coroutines(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        runs = runs_of(engine)
        found = [(await trainer.model.logits(tokens)).tobytes() for tokens, _ in BATCHES[:4]]
        before = engine.statistics()
        assert (await trainer.model.logits(BATCHES[3][0])).tobytes() == found[3]
        fetched = sum(fetch.tile.nbytes for fetch in runs[-1].program.fetches)
        assert engine.statistics().downloaded_bytes - before.downloaded_bytes >= fetched > 0
        assert [run.played for run in runs] == [False, True, True, True, True]
        engine.plays = False
        assert [(await trainer.model.logits(tokens)).tobytes() for tokens, _ in BATCHES[:4]] == found


async def test_results_of_all_played_programs_take_no_more_memory_than_those_of_one() -> None:
    async with training({"device": "cpu"}) as (engine, trainer):
        model, tokens = trainer.model, BATCHES[0][0]
        runs, memory = runs_of(engine), memory_for_results(engine, MOST_FETCHED)
        for length in (2, 3, 4):
            first = (await model.logits(tokens[:, :length])).tobytes()
            for _ in range(2):
                assert (await model.logits(tokens[:, :length])).tobytes() == first
        assert [run.played for run in runs] == [False, True, True] * 3
        assert len(memory) == 1


async def test_alternating_programs_are_all_played_if_everything_stays(place: dict[str, Any]) -> None:
    found = []
    for plays in (True, False):
        async with training(place, plays=plays) as (_, trainer):
            model, (tokens, targets) = trainer.model, BATCHES[0]
            flags, seen = await played(trainer, 0, 1), []
            for _ in range(2):
                seen += [(await model.logits(tokens)).tobytes(), await model.loss(tokens, targets)]
                seen += [(await model.logits(tokens[:, :3])).tobytes(), await model.loss(tokens, targets)]
                flags += await played(trainer, 2)
            assert flags == [False, plays, plays, plays]
            found.append((seen, await states_of(trainer)))
    assert found[0][0] == found[1][0]
    assert_same_tensors(found[0][1], found[1][1])


async def test_as_many_bindings_as_schedules_are_kept_and_the_most_recently_played_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asynctile.execute.templates.ENTRIES", 0)
    monkeypatch.setattr("asynctile.execute.templates.FEW", 2)
    made: list[weakref.ref[Bound]] = []

    def noted(*args: Any) -> Bound:
        bound = Bound(*args)
        made.append(weakref.ref(bound))
        return bound

    monkeypatch.setattr("asynctile.execute.schedules.Bound", noted)
    async with training({"device": "cpu"}) as (_, trainer):
        assert await played(trainer, 0, 1) == [False, True]
        gone = []
        for length in (2, 3, 4):
            for _ in range(2):
                await trainer.model.logits(BATCHES[0][0][:, :length])
            gone.append(made[-1])
            gc.collect()
            assert len([bound for bound in made if bound()]) == 2, "that of the steps and the newest"
            assert await played(trainer, 2) == [True], "it is used between them"
        gc.collect()
        assert [bound() is None for bound in gone] == [True, True, False]


async def test_a_tile_that_takes_the_place_of_another_programs_work_is_not_overwritten(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1)
        program = schedule_of(engine).program
        tile = max(program.temporaries, key=lambda tile: tile.nbytes)
        stranger = Tile("a stranger", tile.shape, persistent=True)
        await runtime_of(engine).store([(stranger, np.full(tile.shape, 7, np.float32))])
        await played(trainer, 2, 3)
        assert (await runtime_of(engine).read(stranger) == 7).all()


async def test_a_step_abandoned_while_its_calls_are_laid_out_leaves_no_tile(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def held(*args: Any) -> Calls:
        reached.set()
        assert go_on.wait(HANG_S)
        return Calls(*args)

    monkeypatch.setattr("asynctile.execute.templates.Calls", held)
    async with training(place) as (engine, trainer):
        await played(trainer, 0)
        step = asyncio.create_task(trainer.step(*BATCHES[1]))
        assert await asyncio.to_thread(reached.wait, HANG_S)
        step.cancel()
        await settle(engine)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await step
        await trainer.model.release()
        now = engine.statistics()
        assert (now.device_used_bytes, now.host_used_bytes) == (0, 0)


async def test_validations_are_played_after_steps_and_steps_after_validations(place: dict[str, Any]) -> None:
    async def validated(trainer: Trainer, number: int) -> tuple[bool, bytes]:
        engine, model = trainer.model.engine, trainer.model
        tokens, targets = (np.asarray(part, np.int32) for part in BATCHES[number])
        rows = model_state_of(model).tiling.rows(*tokens.shape)
        inputs, _ = loss_inputs(rows, tokens, targets)
        del inputs["scale"]
        program = await model_state_of(model).recorded("loss", rows)
        async with runtime_of(engine).exclusive():
            run = await runtime_of(engine).start(program, model_state_of(model).demand(program), inputs)
            await run.finish()
            return run.played, run.numbers.tobytes()

    found, numbers = [], []
    for plays in (True, False):
        async with training(place, plays=plays) as (engine, trainer):
            await played(trainer, 0, 1, 2)
            call = runtime_of(engine).call
            flags, seen = zip(*[await call(validated(trainer, number)) for number in (3, 4, 5)], strict=True)
            assert flags == (False, plays, plays)
            assert await played(trainer, 3, 4) == [plays, plays]
            numbers.append(seen)
            found.append(await states_of(trainer))
    assert numbers[0] == numbers[1]
    assert_same_tensors(*found)


async def test_steps_that_update_in_ram_are_played_after_a_validation_if_everything_stays() -> None:
    """A validation leaves weights on the device that the next step would load only once it needs them."""
    async with training(PLACES["resident"], update="host") as (_, trainer):
        await played(trainer, 0, 1)
        for number in (2, 3):
            await trainer.model.loss(*BATCHES[number])
            assert await played(trainer, number) == [True]


async def test_a_closed_engine_keeps_no_memory_of_tiles_while_somebody_holds_it(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        small: dict[str, Any] = {"device_memory": SHORT.config.states_nbytes // 8} if engine.device != "cpu" else {}
        async with engine.share(host_memory="4MiB", **small) as part:
            other = Trainer(await lively(part, SHORT), OPTIMIZER, update="device")
            assert (await played(other, 0, 1))[1]
            seen = _memory_of(part)
        await settle(engine)
        gc.collect()
        assert not any(memory() for memory in seen), "of a share that has ended"
        assert (await played(trainer, 0, 1))[1]
        seen = _memory_of(engine)
    gc.collect()
    assert not any(memory() for memory in seen)
    assert (trainer.step_count, other.step_count) == (2, 2), "both are still there"


def _memory_of(share: Share) -> list[weakref.ref[Any]]:
    """Return weak references to the memory that the tiles of a share are views of."""
    resident = [residency for tier in runtime_of(share).tiers.from_the_top() for residency in tier.ledger.resident]
    assert resident
    return [weakref.ref(residency.array.base) for residency in resident]
