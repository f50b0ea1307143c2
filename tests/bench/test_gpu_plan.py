"""The compute time of a plan: every kernel on the GPU by its FLOPs or its bytes, not only products at their peak."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import Plan, plan_step

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=500)
OPTIONS = argparse.Namespace(batch=2, length=64)


def planned(**given: Any) -> Plan:
    machine = Machine(device="cuda:0", device_memory=CONFIG.states_nbytes // 2, precision="bf16")
    return plan_step(CONFIG, Work(batch_size=2, seq_len=64, tile=64, **given), machine)


def test_only_unbounded_memory_makes_kernels_as_fast_as_their_products_at_peak(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, plan = bench("gpu_plan"), planned()
    assert module.kernels_s(CONFIG, plan, OPTIONS) > 2 * plan.flops / module.GPU.flops_per_s
    monkeypatch.setattr(module, "GPU", module.GPU._replace(memory_per_s=1e30))
    assert module.kernels_s(CONFIG, plan, OPTIONS) == pytest.approx(plan.flops / module.GPU.flops_per_s)


def test_updates_in_ram_take_no_time_of_the_gpu(bench: Any) -> None:
    kernels_s = bench("gpu_plan").kernels_s
    on_gpu, in_ram = (kernels_s(CONFIG, planned(update=update), OPTIONS) for update in ("device", "host"))
    assert in_ram < on_gpu
