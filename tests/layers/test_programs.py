"""The programs of a model that are kept, and what ends with a dropped one: its demand, and on a GPU its graphs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import Trainer, programs
from asynctile.layers.model import model_state_of
from asynctile.layers.programs import FEW, Programs
from asynctile.program.program import Program
from asynctile.share import runtime_of
from tests.layers.training import NARROW, OPTIMIZER, assert_same_tensors, batches_of, lively


def of_length(length: int) -> Program:
    program = Program("test")
    for _ in range(length):
        program.mark("a mark")
    return program


def test_the_most_recently_used_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", 6)
    kept, made = Programs(), []

    def get(key: int) -> Program:
        return kept.get(key, lambda: made.append(key) or of_length(1))

    first = get(0)
    for key in range(1, 9):
        get(key)
        assert get(0) is first
    assert len(kept) == 6
    get(1)
    assert made == [*range(9), 1]


def test_fewer_long_programs_are_kept_but_always_those_that_a_training_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ENTRIES", 100)
    kept = Programs()
    for key in range(30):
        kept.get(key, lambda: of_length(10))
    assert len(kept) == 10
    for key in range(30, 40):
        kept.get(key, lambda: of_length(1000))
    assert len(kept) == FEW


async def test_keeping_a_program_needs_no_thread_and_counts_as_use(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    ((tokens, targets),) = batches_of(NARROW, 1)
    async with Engine("cpu") as engine:
        model = await lively(engine, NARROW)
        compute = runtime_of(engine).compute

        async def counted(work: Any, *given: Any) -> Any:
            computed.append(work)
            return await compute(work, *given)

        monkeypatch.setattr(runtime_of(engine), "compute", counted)
        monkeypatch.setattr(programs, "PROGRAMS", 2)
        logits, loss = await model.logits(tokens), await model.loss(tokens, targets)
        assert len(computed) == 2
        assert (await model.logits(tokens) == logits).all()
        assert await model.loss(tokens, targets) == loss
        await model.logits(tokens)
        await model.logits(tokens[:1])  # a third program evicts the least recently used, which is that of the loss
        assert len(computed) == 3
        await model.logits(tokens)
        assert len(computed) == 3
        await model.loss(tokens, targets)
        assert len(computed) == 4


async def test_a_program_dropped_while_it_runs_ends_well_and_then_goes_completely(
    soft_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds once it runs as graphs."""
    batches = batches_of(NARROW, 4)
    async with Engine("cuda:0") as engine:
        plain = Trainer(await lively(engine, NARROW), OPTIMIZER, micro_batches=NARROW.micro_batches)
        for batch in batches:
            await plain.step(*batch)
        expected = await plain.model.state_dict()
        await plain.model.release()
    async with Engine("cuda:0") as engine:
        driver, forgotten = soft_gpu.opened[-1], []
        destroy = driver.destroy_graph
        monkeypatch.setattr(driver, "destroy_graph", lambda graph: forgotten.append(graph) or destroy(graph))
        trainer = Trainer(await lively(engine, NARROW), OPTIMIZER, micro_batches=NARROW.micro_batches)
        model, start = trainer.model, runtime_of(engine).start
        seen: list[weakref.ref[Program]] = []

        async def drop_and_start(program: Program, *args: Any) -> Any:
            run = await start(program, *args)
            if len(seen) == 3:
                model_state_of(model).programs = Programs()
                gc.collect()
                assert forgotten == [], "graphs that run are held"
            seen.append(weakref.ref(program))
            return run

        monkeypatch.setattr(runtime_of(engine), "start", drop_and_start)
        for batch in batches:
            await trainer.step(*batch)
        assert driver.graphs > 0
        assert_same_tensors(await model.state_dict(), expected)
        await model.release()
        gc.collect()
        assert seen[0]() is None and len(forgotten) == 3, "nothing holds a program whose model has gone"
