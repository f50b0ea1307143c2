"""The measurement of several devices: kernels that sleep, and the arithmetic of a schedule."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from numba import types

from asynctile.execute.workers import calls
from asynctile.execute.workers.layout import layout, native_of
from asynctile.kernels.cpu.jit import KERNELS, prepare
from asynctile.layers import GPT2Config, carriers
from asynctile.layers.machine import Machine, Work
from asynctile.layers.planned_step import planned_step
from asynctile.measure.calls import call_of
from asynctile.measure.simulate import simulate
from asynctile.measure.virtual import Resource
from tests.layers.training import NARROW


def test_while_kernels_sleep_a_call_has_the_address_of_the_sleep_and_its_nanoseconds(bench: Any) -> None:
    asleep = bench("asleep")
    prepare("fill")
    operands = [((4, 8), np.dtype(np.float32))]
    arguments = KERNELS["fill"], operands, (0.5,), False
    call = "fill", (((4, 8), "float32"),), (0.5,)
    with asleep.sleeping({call: 2e-3}):
        block = calls.layout(*arguments)
    real = layout(*arguments)
    assert block is not None and real is not None and calls.layout is layout
    assert block.address == native_of(asleep.sleep, (types.int64,)) != real.address
    assert block.words[2] == 2_000_000 and block.pointers == real.pointers


def test_a_thread_that_woke_up_late_sleeps_less_unless_it_was_idle_meanwhile(bench: Any) -> None:
    asleep = bench("asleep")
    late = asleep.LATE[threading.get_native_id() % asleep.THREADS]
    for woke_s_ago, at_least in ((0.0, 0.0), (1e6, 3e-3)):
        began = time.perf_counter()
        late[:] = 1e5, began - woke_s_ago
        asleep.sleep(3_000_000)
        assert time.perf_counter() - began >= at_least
        assert (late[0] > 9e4) == (woke_s_ago == 0.0)


@pytest.mark.parametrize("rate", [1e6, 1e12])
def test_by_arithmetic_devices_work_beside_their_links(bench: Any, rate: float) -> None:
    device, cap = "emulated*2", NARROW.config.states_nbytes // 2
    work = Work(batch_size=2, seq_len=17, replicas=2, tile=NARROW.tile, update="device", recompute=True)
    step = planned_step(NARROW.config, work, Machine(device=device, device_memory=cap))
    schedule = simulate(step.program, step.standing, device=device, device_memory=cap).schedule
    seconds = {call_of(operation): 1e-3 for operation in step.program.operations()}
    played = bench("bench_devices").by_arithmetic(schedule, seconds, rate, 2 * rate)
    computed = [played.busy[device, Resource.COMPUTE] for device in (0, 1)]
    carried = max(played.busy[device, way] for device in (0, 1) for way in (Resource.UP, Resource.DOWN, Resource.PASSED))
    assert sum(computed) == pytest.approx(1e-3 * len(list(step.program.operations())))
    assert max(*computed, carried) <= played.seconds <= sum(computed) + sum(played.busy.values())
    for number, entry in enumerate(schedule.entries):
        assert all(played.ends[before] <= played.begins[number] for before in (*entry.waits, *entry.after))


def test_devices_wait_less_when_work_on_others_results_lags(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GPT2Config(n_layer=4, n_head=2, n_embd=64, block_size=32, vocab_size=128)

    def seconds(devices: int, cap: int) -> float:
        """Return the seconds of a step under a cap, relative to those of its operations on as many devices."""
        device = f"emulated*{devices}"
        work = Work(batch_size=devices, seq_len=32, replicas=devices, tile=32, update="device", recompute=True)
        step = planned_step(config, work, Machine(device=device, device_memory=cap))
        traffic = simulate(step.program, step.standing, device=device, device_memory=cap)
        calls_s = {call_of(operation): 1e-3 for operation in step.program.operations()}
        computed_s = 1e-3 * len(list(step.program.operations())) / devices
        rate = 1.7 * traffic.busiest_nbytes / computed_s
        return float(bench("bench_devices").by_arithmetic(traffic.schedule, calls_s, rate, 8 * rate).seconds) / computed_s

    half, quarter = config.states_nbytes // 2, config.states_nbytes // 4
    assert seconds(4, half) < 1.25  # 1.26 if a result takes the place that was left last
    assert seconds(4, quarter) < 1.07  # 1.08 if all partials of a gradient go to its owner
    lagging = seconds(8, quarter)
    monkeypatch.setattr(carriers, "lagging", lambda program, devices, begins: [range(len(program))])
    assert lagging < 0.95 * seconds(8, quarter)
