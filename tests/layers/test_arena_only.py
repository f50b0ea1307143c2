"""No memory hides outside the arena: allocations of Python and the process during a step; host copies are real copies."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.training import OPTIMIZER, RAGGED, assert_same_tensors, batches_of, lively, outcome
from tests.settle import HANG_S

LARGEST = 64 << 10
#: Tiles of 256 KiB: a temporary of a tile's size is far above LARGEST.
WIDE = GPT2Config(n_layer=1, n_head=4, n_embd=256, block_size=256, vocab_size=600)
TILE = 256


@pytest.mark.parametrize(
    ("device", "recompute", "clip_norm"),
    covering(["cpu", "emulated"], {"keep": False, "recompute": True}, {"two-phase": 1.0, "fused": None}),
)
async def test_a_step_allocates_no_array_elsewhere(
    device: str, recompute: bool, clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy reports its arrays to tracemalloc. The arena and the host tier are mappings, which tracemalloc does not see."""
    tokens, targets = np.random.default_rng(0).integers(0, WIDE.vocab_size, (2, 2, 256))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # one stream: a peak is that of one kernel
    options: dict[str, Any] = {"device_memory": WIDE.states_nbytes // 2} if device == "emulated" else {}
    async with Engine(device, **options) as engine:
        trainer = Trainer(await GPT2.create(engine, WIDE, tile=TILE), clip_norm=clip_norm, recompute=recompute)
        await trainer.step(tokens, targets)  # records the program
        biggest = 0
        for name, kernel in list(runtime_of(engine).device.kernels.items()):

            def watched(*args: Any, kernel: Any = kernel) -> None:
                nonlocal biggest
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                kernel(*args)
                biggest = max(biggest, tracemalloc.get_traced_memory()[1] - before)

            runtime_of(engine).device.kernels[name] = watched
        tracemalloc.start()
        try:
            await trainer.step(tokens, targets)
            traces = tracemalloc.take_snapshot().traces
        finally:
            tracemalloc.stop()
    held = [trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain]
    assert max(held, default=0) <= LARGEST
    assert 0 < biggest <= 3 * LARGEST, "a kernel holds an array of its own"  # beside it the loop enqueues others


async def test_tracemalloc_would_see_an_array() -> None:
    tracemalloc.start()
    try:
        held = np.empty(2 * LARGEST, np.uint8)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    assert max(trace.size for trace in snapshot.traces if trace.domain == np.lib.tracemalloc_domain) == held.nbytes


async def test_host_copies_are_copies() -> None:
    """A weight on the device is computed from there, so its host copy may turn to noise meanwhile."""
    options = {"device": "emulated"}
    expected = await outcome(RAGGED, steps=2)
    async with Engine(**options) as engine:
        model = await lively(engine, RAGGED)
        trainer = Trainer(model, OPTIMIZER, micro_batches=RAGGED.micro_batches)
        batches = batches_of(RAGGED, 2)
        await trainer.step(*batches[0])
        changed = 0
        for tile in model_state_of(model).parameters.states():
            above, below = runtime_of(engine).tiers.top.of(tile), runtime_of(engine).tiers.host.of(tile)
            if above.slot is not None and below.slot is not None:
                below.array[...] = np.nan
                changed += 1
        assert changed > 100
        report = await trainer.step(*batches[1])
        assert report.loss == expected.losses[1]
        assert_same_tensors(await model.state_dict(), expected.weights)


async def test_results_are_the_callers_own_arrays_and_arguments_stay_unchanged() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, RAGGED)
        trainer = Trainer(model, OPTIMIZER, micro_batches=RAGGED.micro_batches)
        (tokens, targets), *_ = batches_of(RAGGED, 1)
        before = await model.logits(tokens)
        for value in (await model.state_dict()).values():
            value[...] = 7
        for value in (await trainer.gradients(tokens, targets)).values():
            value[...] = 7
        given = tokens.copy()
        assert np.array_equal(await model.logits(given), before)
        assert np.array_equal(given, tokens)


RESIDENT = """
import asyncio, json, sys
import numpy as np
from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer

config = GPT2Config(n_layer=6, n_head=8, n_embd=512, block_size=128, vocab_size=2000)
HOST, ARENA = 340 << 20, 48 << 20

def status(name):
    # Bytes: VmRSS is what is resident, VmHWM the most that was.
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

async def main():
    random = np.random.default_rng(0)
    async with Engine("cpu") as engine:  # kernels are loaded, torch is not
        small = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=16, vocab_size=32)
        await Trainer(await GPT2.create(engine, small)).step(np.zeros((1, 8), int), np.zeros((1, 8), int))
    start = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the most begins anew
    async with Engine("emulated", device_memory=ARENA, host_memory=HOST) as engine:
        trainer = Trainer(await GPT2.create(engine, config, tile=256))
        for _ in range(2):
            report = await trainer.step(*random.integers(0, 2000, (2, 2, 128)))
    print(json.dumps({"grown": status("VmHWM") - start, "host": report.host_peak_bytes, "device": report.device_peak_bytes,
                      "states": config.states_nbytes}))

asyncio.run(main())
"""


@pytest.mark.laws
def test_the_process_grows_by_its_budgets_and_little_more(tmp_path: Path) -> None:
    program = tmp_path / "resident.py"
    program.write_text(RESIDENT)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print({name: f"{value / 2**20:.0f} MiB" for name, value in found.items()})
    # Compared with the memory taken of the caps, not with the caps, which leave room: that is stricter.
    assert found["grown"] < found["host"] + found["device"] + (100 << 20)
    assert found["device"] <= 48 << 20
    assert found["host"] <= 340 << 20
