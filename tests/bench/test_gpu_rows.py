"""Every training that bench/gpu.sh measures can begin: its floor is below its cap, and its tiles fit into memory.

The memory is that of the intended machine: an H200 and 128 GiB of RAM.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from asynctile.device.cuda import RESERVE_NBYTES
from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step
from tests.laws import law

GIB = 1 << 30
DEVICE, RAM = 139 * GIB - RESERVE_NBYTES, 128 * GIB


def options(bench: Any, part: str, rehearsed: bool = False) -> argparse.Namespace:
    full, small = getattr(bench("gpu_rows"), part.upper())
    return argparse.Namespace(device="soft" if rehearsed else "cuda:0", precision="bf16", **full | (small if rehearsed else {}))


@pytest.mark.parametrize("part", ["smoke", "memory", "two", *map(law, ["replay", "capped", "depth", "largest"])])
def test_every_row_can_begin(bench: Any, part: str) -> None:
    chosen = options(bench, part)
    rows = list(bench("gpu_rows").rows(part, chosen, DEVICE, RAM))
    assert rows
    for name, row in rows:
        floor, everything = row.needs("cuda:0", "bf16")
        assert floor <= (DEVICE if row.cap is None else row.cap), f"{part}: {name} is below its floor of {floor} bytes"
        assert everything <= RAM * 0.85, f"{part}: {name} wants {everything} bytes of RAM"
        assert row.cap is not None or everything <= DEVICE, f"{part}: {name} does not fit on the GPU"


@pytest.mark.parametrize("part", ["smoke", "memory", "two", *map(law, ["replay", "capped", "depth", "largest"])])
def test_every_row_of_a_rehearsal_can_begin(bench: Any, part: str) -> None:
    for name, row in bench("gpu_rows").rows(part, options(bench, part, rehearsed=True), 4 << 20, 64 << 20):
        assert row.needs("cuda:0", "bf16")[0] <= (row.cap or 4 << 30), f"{part}: {name}"


def test_every_model_and_cap_was_placed_by_a_plan(bench: Any) -> None:
    chosen = options(bench, "capped")
    assert {(name, share) for name in chosen.models for share in chosen.caps} == set(bench("gpu_rows").PLACED)


def test_the_largest_model_is_the_largest_that_fits(bench: Any) -> None:
    """One layer more would not fit, and the model's state is far larger than the GPU."""
    rows, chosen = bench("gpu_rows"), options(bench, "largest")
    cap, host = int(chosen.device_share * DEVICE), int(chosen.host_share * RAM)
    layers = rows.largest(chosen, cap, host)
    assert rows.large(chosen, cap, layers).needs("cuda:0", "bf16")[1] <= host
    assert rows.large(chosen, cap, layers + 1).needs("cuda:0", "bf16")[1] > host


@pytest.mark.parametrize("memory", [10, 29, 30, 31, 49, 50, 1000])
def test_as_many_layers_as_fit_and_not_one_more(bench: Any, memory: int) -> None:
    def needed(layers: int) -> int:
        return 10 + 20 * layers

    layers = bench("gpu_rows").layers_in(memory, needed)
    assert layers == 0 or needed(layers) <= memory
    assert needed(layers + 1) > memory


def test_the_memory_of_a_step_grows_by_the_same_with_every_layer() -> None:
    """layers_in relies on this."""

    def needed(layers: int) -> int:
        config = GPT2Config(n_layer=layers, n_head=2, n_embd=64, block_size=64, vocab_size=300)
        machine = Machine(device="cuda:0", device_memory="1MiB", precision="bf16")
        plan = plan_step(config, Work(batch_size=2, seq_len=64, tile=64), machine)
        return plan.host_bytes

    one, two = needed(1), needed(2)
    assert [needed(layers) for layers in (3, 7)] == [two + (two - one), two + 5 * (two - one)]


def test_a_tile_leaves_most_of_the_cap_to_other_tiles(bench: Any) -> None:
    common, config = bench("gpu_rows"), GPT2Config.named("gpt2")
    emulated = argparse.Namespace(device="emulated", precision="fp32")
    tiles = [common.tile_under(emulated, config, int(share * config.states_nbytes)) for share in (0.05, 0.25, 4)]
    assert tiles == sorted(tiles)
    assert tiles[0] < tiles[-1] == config.inner


@pytest.mark.parametrize("part", ["smoke", "replay", "memory", "capped", "two"])
def test_the_smallest_model_comes_first(bench: Any, part: str) -> None:
    assert options(bench, part).models[0] == "gpt2"
