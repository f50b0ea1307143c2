"""Steps played over a spill folder: their bits, their moves, and the state that a failing disk leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine, StalledError, TierError, TornModelError
from asynctile.execute.transfers import Transfers
from asynctile.layers import AdamW, Trainer
from asynctile.layers.report import StepReport
from asynctile.memory.spill_link import SpillLink
from asynctile.storage.container import ALIGNMENT
from asynctile.storage.faults import SURVIVED, Faults
from asynctile.streams.event import StreamEvent
from tests.inside_engine import watch
from tests.laws import covering, law
from tests.layers.shapes import Shape
from tests.layers.training import LONE, NARROW, Tensors, assert_same_tensors, lively, moments_of
from tests.settle import HANG_S
from tests.test_failures import Deaf

OPTIMIZER = AdamW(lr=1e-2)
#: Devices over a spill folder: caps as shares of the states, and options of the trainer.
OVER_A_FILE = {
    "cpu over a file": ("cpu", {"host_memory": 1.5}, {}),
    "cpu, kept": ("cpu", {"host_memory": 1.5}, {"recompute": False}),
    "cpu, inputs in the file": ("cpu", {"host_memory": 1.2}, {}),
    "cpu over a file, clipped": ("cpu", {"host_memory": 1.6}, {"clip_norm": 0.1}),
    "emulated over a file": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {}),
    "emulated, one slot of each size in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 0.15}, {}),
    "emulated, most on the device": ("emulated", {"device_memory": 1.2, "host_memory": 0.6}, {}),
    "emulated, clipped": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {"clip_norm": 0.1}),
    "emulated, updated in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"update": "host"}),
    "emulated, clipped, updated in RAM": (
        "emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"clip_norm": 0.1, "update": "host"},
    ),
}  # fmt: skip
_undisturbed: dict[str, Tensors] = {}


def engine_of(case: str, folder: Path, shape: Shape = LONE, **more: Any) -> Engine:
    device, caps, _ = OVER_A_FILE[case]
    sizes = {name: int(share * shape.config.states_nbytes) for name, share in caps.items()}
    return Engine(device, spill=folder, **sizes, **more)


async def trainer_of(case: str, engine: Engine, shape: Shape = LONE) -> Trainer:
    options = {"update": "device", **OVER_A_FILE[case][2]}
    return Trainer(await lively(engine, shape), OPTIMIZER, micro_batches=shape.micro_batches, **options)


async def states_of(trainer: Trainer) -> Tensors:
    return {**await trainer.model.state_dict(), **await moments_of(trainer)}


async def trained(
    case: str, folder: Path, plays: bool, shape: Shape = LONE, steps: int = 4
) -> tuple[list[StepReport], Tensors]:
    async with engine_of(case, folder, shape) as engine:
        engine.plays = plays
        trainer = await trainer_of(case, engine, shape)
        reports = [await trainer.step(*shape.batch_of_tokens(seed)) for seed in range(steps)]
        return reports, await states_of(trainer)


async def undisturbed(case: str, folder: Path) -> Tensors:
    """Return weights and moments after three steps by coroutines; all tests share them."""
    if case not in _undisturbed:
        _undisturbed[case] = (await trained(case, folder, plays=False, steps=3))[1]
    return _undisturbed[case]


#: A device above RAM and a file, with every option.
FEW = ["emulated, clipped, updated in RAM"]


@pytest.mark.parametrize("case", [*FEW, *(law(case) for case in OVER_A_FILE if case not in FEW)])
async def test_played_steps_over_a_file_have_the_bits_of_coroutines(case: str, tmp_path: Path) -> None:
    by_coroutines, expected = await trained(case, tmp_path, plays=False)
    played, found = await trained(case, tmp_path, plays=True)
    assert [report.played for report in played] == [False, True, True, True]
    assert [(report.loss, report.grad_norm) for report in played] == [(r.loss, r.grad_norm) for r in by_coroutines]
    assert_same_tensors(found, expected)
    moved = [(r.spill_read_bytes, r.spill_written_bytes, r.uploaded_bytes, r.downloaded_bytes) for r in played[2:]]
    assert moved[0] == moved[1] and moved[0][0] > 0 and moved[0][1] > 0


@pytest.mark.parametrize("plays", [True, False])
async def test_transfers_go_in_the_order_of_the_schedule(
    plays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[int] = []
    orders: list[int] = []
    begin, carry = Transfers.begin, SpillLink.carry

    def begins(self: Transfers, entry: int, *more: Any) -> StreamEvent:
        entries.append(entry)
        return begin(self, entry, *more)

    def carries(self: SpillLink, *given: Any) -> StreamEvent:
        orders.append(given[-1])
        return carry(self, *given)

    async with engine_of("cpu over a file", tmp_path) as engine:
        engine.plays = plays
        trainer = await trainer_of("cpu over a file", engine)
        for seed in range(2):
            await trainer.step(*LONE.batch_of_tokens(seed))
        monkeypatch.setattr(Transfers, "begin", begins)
        monkeypatch.setattr(SpillLink, "carry", carries)
        last = 0
        for seed in range(2):
            entries.clear()
            orders.clear()
            assert (await trainer.step(*LONE.batch_of_tokens(seed))).played is plays
            in_turn = [order for _, order in sorted(zip(entries, orders, strict=True))]
            assert in_turn == list(range(in_turn[0], in_turn[0] + len(entries))) and len(entries) > 20
            assert last <= in_turn[0]
            last = in_turn[-1]


async def test_renewed_inputs_without_room_in_ram_are_written_nowhere(tmp_path: Path) -> None:
    caps: dict[str, Any] = {"device_memory": 36 << 10, "host_memory": 9 * ALIGNMENT}  # the latter is its floor
    found = []
    for plays in (True, False):
        async with Engine("emulated", spill=tmp_path, **caps) as engine:
            engine.plays = plays
            trainer = Trainer(await lively(engine, NARROW), OPTIMIZER, micro_batches=2, update="host", clip_norm=0.3)
            reports = [await trainer.step(*NARROW.batch_of_tokens(seed)) for seed in range(3)]
            found.append(([(report.loss, report.grad_norm) for report in reports], await states_of(trainer)))
            assert [report.played for report in reports] == [False, plays, plays]
    assert found[0][0] == found[1][0]
    assert_same_tensors(found[0][1], found[1][1])


ON_EACH = ["cpu over a file", "emulated over a file"]


@pytest.mark.parametrize("kind", [*sorted(SURVIVED)[:2], *map(law, sorted(SURVIVED)[2:])])
async def test_faults_that_pass_change_no_bit_of_a_played_step(kind: str, tmp_path: Path) -> None:
    expected = await undisturbed("cpu over a file", tmp_path)
    faults = Faults(seed=3)
    async with engine_of("cpu over a file", tmp_path, wrap_spill=faults.wrap) as engine:
        trainer = await trainer_of("cpu over a file", engine)
        for seed in range(3):
            if seed:
                faults.arm(kind, after=40)
            assert (await trainer.step(*LONE.batch_of_tokens(seed))).played is (seed > 0)
        assert faults.injected[kind] == 2
        assert_same_tensors(await states_of(trainer), expected)


@pytest.mark.parametrize(("case", "after"), covering(ON_EACH, [3, 120]))
async def test_bytes_lost_by_the_disk_in_a_played_step_leave_the_model_torn_or_unchanged(
    case: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.storage.spill.PAUSES_S", (0.001,))
    before = await undisturbed(case, tmp_path)
    faults = Faults(seed=3)
    async with engine_of(case, tmp_path, wrap_spill=faults.wrap) as engine:
        trainer = await trainer_of(case, engine)
        for seed in range(3):
            await trainer.step(*LONE.batch_of_tokens(seed))  # and the next one is played at once: nothing is read between
        faults.arm("eio_read", after=after, lasting=True)
        with pytest.raises((TierError, TornModelError), match=r"tile .*: cannot read .*spill.* offset \d+") as caught:
            await trainer.step(*LONE.batch_of_tokens(3))
        faults.disarm()
        assert (trainer.model.torn is not None) is isinstance(caught.value, TornModelError)
        if trainer.model.torn is None:
            assert_same_tensors(await states_of(trainer), before)
            await trainer.step(*LONE.batch_of_tokens(3))
    assert after == 120 or trainer.model.torn is None, "a read that fails before the first update loses nothing"


@pytest.mark.parametrize("case", [law(ON_EACH[0]), ON_EACH[1]])
async def test_a_disk_that_hangs_in_a_played_step_is_named_and_the_engine_closes(case: str, tmp_path: Path) -> None:
    deaf = Deaf()
    async with engine_of(case, tmp_path, wrap_spill=deaf.wrap, watchdog=None) as engine:
        trainer = await trainer_of(case, engine)
        for seed in range(3):
            await trainer.step(*LONE.batch_of_tokens(seed))
        deaf.hangs.set()
        watch(engine, 0.5)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(StalledError, match=r"the copy of tile .* has run on spill.* waits for"):
                await trainer.step(*LONE.batch_of_tokens(3))
            with pytest.raises((StalledError, TornModelError)):
                await trainer.step(*LONE.batch_of_tokens(3))
    deaf.answer.set()


@pytest.mark.parametrize("case", ["emulated, one slot of each size in RAM", *map(law, ON_EACH)])
async def test_work_between_played_steps_over_a_file_changes_no_bit_and_keeps_no_block(case: str, tmp_path: Path) -> None:
    found = []
    for plays in (False, True):
        async with engine_of(case, tmp_path) as engine:
            engine.plays = plays
            trainer = await trainer_of(case, engine)
            tokens, targets = LONE.batch_of_tokens(9)
            told: list[Any] = []
            for seed in range(6):
                told.append((await trainer.step(*LONE.batch_of_tokens(seed))).loss)
                if seed == 2:
                    told += [await trainer.model.loss(tokens, targets) for _ in range(3)]
                if seed == 3:
                    told.append((await trainer.model.logits(tokens)).tobytes())
                if seed == 4:
                    told.append((await trainer.step(tokens[:, :9], targets[:, :9])).loss)
            states = await states_of(trainer)
            await trainer.model.release()
            assert engine.statistics().spill_used_bytes == 0
            found.append((told, states))
    assert found[0][0] == found[1][0]
    assert_same_tensors(found[0][1], found[1][1])
