"""Trainings with a disk below RAM: equal bits at every budget, the tiles that are written, and refusals.

test_equal_bits.py tests the device over RAM alone; tests/memory/test_tiers.py and test_failures.py test the engine without a
model.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from asynctile import BudgetError, Engine, TierError, TornModelError
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.storage.faults import Faults
from tests.laws import law
from tests.layers.training import (
    OPTIMIZER,
    RAGGED,
    SMALL,
    assert_same_bits,
    assert_same_tensors,
    batches_of,
    lively,
    outcome,
    yardstick,
)
from tests.settle import HANG_S

STATES = RAGGED.config.states_nbytes


async def check(folder: Path, device: str, prefetch: int = 2, **caps: Any) -> None:
    async with asyncio.timeout(HANG_S):
        found = await outcome(
            RAGGED, steps=2, device=device, engine_options={"spill": folder, "prefetch": prefetch, "watchdog": 60, **caps}
        )
    assert_same_bits(found, await yardstick())
    assert not os.listdir(folder)


async def floor_of(**options: Any) -> int:
    """Return the floor that the refusal of a far too small cap names."""
    async with Engine(**options) as engine:
        with pytest.raises(BudgetError) as caught:
            await GPT2.create(engine, RAGGED.config, tile=RAGGED.tile)
    return caught.value.floor


@pytest.mark.parametrize(("share", "prefetch"), [
    ("floor", 0), (0.6, 8),
    *(law(share, prefetch) for share, prefetches in (("floor", (2, 8)), (0.6, (0, 2)), (1.0, (0, 2, 8)), (1.5, (0, 2, 8)))
      for prefetch in prefetches),
])  # fmt: skip
async def test_no_budget_on_cpu_changes_a_bit(share: str | float, prefetch: int, tmp_path: Path) -> None:
    cap = int(share * STATES) if isinstance(share, float) else await floor_of(device="cpu", spill=tmp_path, host_memory=1)
    await check(tmp_path, "cpu", prefetch, host_memory=cap)


@pytest.mark.parametrize(("device_share", "host_share", "prefetch"), [
    (0.2, 0.0, 2), (0.2, 0.3, 8),
    *(law(device, host, prefetch) for device, host, prefetches in (
        (0.2, 0.0, (0, 8)), (0.2, 0.3, (0, 2)), (0.5, 0.2, (0, 2, 8)), (0.2, 1.0, (0, 2, 8)), (3.0, 0.0, (0, 2, 8)),
    ) for prefetch in prefetches),
])  # fmt: skip
async def test_no_budget_of_three_tiers_changes_a_bit(
    device_share: float, host_share: float, prefetch: int, tmp_path: Path
) -> None:
    """With host_share 0, RAM has its floor: one slot of each size of tiles that pass through."""
    device_memory = int(device_share * STATES)
    cap = int(host_share * STATES) or await floor_of(
        device="emulated", device_memory=device_memory, spill=tmp_path, host_memory=1
    )
    await check(tmp_path, "emulated", prefetch, device_memory=device_memory, host_memory=cap)


@pytest.mark.laws
async def test_every_budget_of_three_tiers_ends_and_agrees(tmp_path: Path) -> None:
    for index in range(12):
        device_memory, host_memory = int((0.15 + 0.11 * index) * STATES), int((0.05 + 0.17 * (index * 5 % 12)) * STATES)
        await check(tmp_path, "emulated", (2, 0, 8)[index % 3], device_memory=device_memory, host_memory=host_memory)


@pytest.mark.parametrize(("clip_norm", "recompute"), [(1e30, False), law(1e30, True), law(None, False), law(None, True)])
async def test_no_mode_changes_a_bit(clip_norm: float | None, recompute: bool, tmp_path: Path) -> None:
    three = {"device_memory": STATES // 4, "host_memory": STATES // 3}
    for device, caps in (("cpu", {"host_memory": STATES}), ("emulated", three)):
        found = await outcome(RAGGED, steps=2, device=device, engine_options={"spill": tmp_path, **caps},
                              clip_norm=clip_norm, recompute=recompute)  # fmt: skip
        assert_same_bits(found, await yardstick())


async def test_with_enough_ram_nothing_is_written_to_the_disk(tmp_path: Path) -> None:
    plan = plan_step(SMALL.config, SMALL.work(), Machine(device="cpu", spill=True))
    for options in ({"device": "cpu"}, {"device": "emulated", "device_memory": "64KiB"}):
        options["host_memory"] = plan.resident_bytes
        async with Engine(**options, spill=tmp_path) as engine:
            trainer = Trainer(await lively(engine, SMALL), micro_batches=2)
            for batch in batches_of(SMALL, 2):
                report = await trainer.step(*batch)
            assert report.spill_written_bytes == report.spill_read_bytes == report.spill_peak_bytes == 0


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": "emulated", "device_memory": "64KiB"}], ids=str)
async def test_unchanged_tiles_are_not_written_again(options: dict[str, Any], tmp_path: Path) -> None:
    tokens, targets = RAGGED.batch_of_tokens()
    async with Engine(**options, host_memory="130KiB", spill=tmp_path) as engine:
        model = await lively(engine, RAGGED)
        written = []
        for _ in range(4):
            await model.loss(tokens, targets)
            written.append(engine.statistics().spill_written_bytes)
        read = engine.statistics().spill_read_bytes
    again = [after - before for before, after in itertools.pairwise(written)]
    assert again[-1] == again[-2] < 300_000, "only activations leave RAM"
    assert read > 2 * STATES // 3, "weights come from the disk"


async def test_a_spill_limit_too_small_is_refused_with_a_limit_that_suffices(tmp_path: Path) -> None:
    async with Engine("cpu", host_memory=STATES, spill=tmp_path, spill_limit="64KiB") as engine:
        with pytest.raises(BudgetError, match=r"spill_limit of 64.00 KiB is below .* raise spill_limit") as caught:
            await GPT2.create(engine, RAGGED.config, tile=RAGGED.tile)
    async with Engine("cpu", host_memory=STATES, spill=tmp_path, spill_limit=caught.value.floor) as engine:
        trainer = Trainer(await lively(engine, RAGGED), micro_batches=2)
        with pytest.raises(BudgetError, match=r"spill_limit .* raise spill_limit") as caught:
            await trainer.step(*RAGGED.batch_of_tokens())
        assert engine.statistics().operations == 0
    await check(tmp_path, "cpu", host_memory=STATES, spill_limit=caught.value.floor)


@pytest.mark.parametrize(("make", "says"), [(lambda path: path / "none", "none"), (lambda path: _file(path), "folder")])
async def test_an_unusable_folder_is_refused_in_one_line_and_leaves_no_thread(make: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(TierError, match=says) as caught:
        async with Engine("emulated", spill=make(tmp_path)):
            pass
    assert "\n" not in str(caught.value)
    assert not any(thread.name.startswith("asynctile") for thread in threading.enumerate())


def _file(path: Path) -> Path:
    (path / "file").write_text("mine")
    return path / "file"


async def test_foreign_files_in_the_folder_stay_unchanged(tmp_path: Path) -> None:
    (tmp_path / "spill-0001.tiles").write_bytes(b"of another program")
    async with Engine("cpu", host_memory=STATES, spill=tmp_path) as engine:
        trainer = Trainer(await lively(engine, RAGGED), micro_batches=2)
        await trainer.step(*RAGGED.batch_of_tokens())
        assert engine.statistics().spill_peak_bytes > 0
    assert os.listdir(tmp_path) == ["spill-0001.tiles"]
    assert (tmp_path / "spill-0001.tiles").read_bytes() == b"of another program"


@pytest.mark.parametrize("update", ["device", "host"])
async def test_the_plan_of_three_tiers_moves_the_bytes_of_a_real_step(update: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device_memory": STATES // 4, "host_memory": STATES // 3}
    plan = plan_step(RAGGED.config, RAGGED.work(update=update), Machine(device="emulated", spill=True, **options))
    async with Engine("emulated", spill=tmp_path, **options) as engine:
        model = await GPT2.create(engine, RAGGED.config, tile=RAGGED.tile)
        trainer = Trainer(model, micro_batches=RAGGED.micro_batches, update=update)
        for batch in batches_of(RAGGED, 4):
            report = await trainer.step(*batch)
    assert report.uploaded_bytes == plan.uploaded_bytes
    assert report.downloaded_bytes == plan.downloaded_bytes
    assert report.spill_read_bytes == plan.spill_read_bytes
    assert report.spill_written_bytes == plan.spill_written_bytes
    assert report.spill_peak_bytes <= plan.spill_bytes


START_UP = """
import asyncio, json, sys
import numpy as np
from asynctile import Engine
from asynctile.layers import GPT2, AdamW, GPT2Config, Trainer
from asynctile.layers.model import model_state_of

CONFIG = GPT2Config(n_layer=6, n_head=8, n_embd=512, block_size=64, vocab_size=4000)


def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


async def main(folder):
    options = {"host_memory": "48MiB", "spill": folder + "/spill"}
    if sys.argv[2] == "emulated":
        options |= {"device": "emulated", "device_memory": "32MiB"}
    async with Engine(options.pop("device", "cpu"), **options) as engine:
        tiny = await GPT2.create(engine, GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=8, vocab_size=8))
        await Trainer(tiny).step(np.zeros((1, 8), np.int32), np.zeros((1, 8), np.int32))
        before = peak()
        trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1), AdamW())
        await model_state_of(trainer.model).prepare_moments()
        await trainer.save(folder + "/checkpoint")
        await trainer.model.release()
        trainer = await Trainer.load(engine, folder + "/checkpoint")
        await trainer.model.save_pretrained(folder + "/exported")
        print(json.dumps({"grown": peak() - before, "states": CONFIG.states_nbytes}))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.laws
@pytest.mark.parametrize("device", ["emulated", "cpu"])
def test_creating_saving_loading_and_exporting_stay_within_the_budget(device: str, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    script = tmp_path / "start_up.py"
    script.write_text(START_UP)
    command = [sys.executable, script, tmp_path, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    caps = (48 << 20) + (32 << 20 if device == "emulated" else 0)
    assert found["states"] > 4 * (48 << 20), "the model is far larger than the budget"
    assert found["grown"] < caps + (48 << 20), found


async def test_a_spilled_model_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=24, vocab_size=70)
    (tmp_path / "spill").mkdir()
    async with Engine("cpu") as engine:
        expected = await (await GPT2.create(engine, config, seed=3, tile=16)).state_dict()
    async with Engine("cpu", host_memory="96KiB", spill=tmp_path / "spill") as engine:
        model = await GPT2.create(engine, config, seed=3, tile=16)
        assert engine.statistics().spill_used_bytes > 0
        await model.save_pretrained(tmp_path / "model")
        again = await GPT2.from_pretrained(engine, tmp_path / "model", tile=16)
        for found in (await model.state_dict(), await again.state_dict()):
            assert all(np.array_equal(found[name], value) for name, value in expected.items())


async def test_a_failed_read_before_the_first_update_leaves_the_model_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that takes over a slot from failed work has not failed: no other tile may be lost with the first."""
    monkeypatch.setattr("asynctile.storage.spill.PAUSES_S", (0.001,))
    batches = batches_of(SMALL, 3)
    whole = 0
    for nth in (0, 11, 33):
        faults = Faults(seed=1)
        options: dict[str, Any] = {"device_memory": "60KiB", "host_memory": "100KiB", "spill": tmp_path}
        async with Engine("emulated", **options, wrap_spill=faults.wrap) as engine:
            trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, micro_batches=2)
            await trainer.step(*batches[0])
            before = await trainer.model.state_dict()
            faults.arm("eio_read", after=nth, lasting=True)
            try:
                await trainer.step(*batches[1])
            except (TornModelError, TierError) as error:
                if "after its first update" in str(error):
                    continue
                assert trainer.model.torn is None
                whole += 1
            faults.disarm()
            if trainer.step_count == 1:
                assert_same_tensors(await trainer.model.state_dict(), before)
            await trainer.step(*batches[2])
    assert whole > 0


async def test_with_a_folder_and_no_cap_ram_gets_a_cap(tmp_path: Path) -> None:
    async with Engine("cpu", spill=tmp_path) as engine:
        cap = engine.statistics().host_memory_bytes
    assert cap is not None
    assert cap < psutil.virtual_memory().total
