"""Every training that bench/gpu.sh measures can be begun: its floor is below its cap, and its tiles are within the memory.

The memory is that of the machine it is for: an H200's, and 128 GiB of RAM.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from asynctile.device.cuda import RESERVE_NBYTES
from tests.bench.test_gpu import bench  # noqa: F401

GIB = 1 << 30
DEVICE, RAM = 139 * GIB - RESERVE_NBYTES, 128 * GIB


def options(bench: Any, part: str, rehearsed: bool = False) -> argparse.Namespace:  # noqa: F811
    full, small = getattr(bench("gpu_rows"), part.upper())
    return argparse.Namespace(device="soft" if rehearsed else "cuda:0", precision="bf16", **full | (small if rehearsed else {}))


@pytest.mark.parametrize("part", ["memory", "capped", "depth", "largest"])
def test_every_row_can_be_begun(bench: Any, part: str) -> None:  # noqa: F811
    chosen = options(bench, part)
    rows = list(bench("gpu_rows").rows(part, chosen, DEVICE, RAM))
    assert rows
    for name, row in rows:
        floor, everything = row.needs("cuda:0", "bf16")
        assert floor <= (DEVICE if row.cap is None else row.cap), f"{part}: {name} is below its floor of {floor} bytes"
        assert everything <= RAM * 0.85, f"{part}: {name} wants {everything} bytes of RAM"
        assert row.cap is not None or everything <= DEVICE, f"{part}: {name} does not fit on the GPU"


@pytest.mark.parametrize("part", ["memory", "capped", "depth", "largest"])
def test_every_row_of_a_rehearsal_can_be_begun(bench: Any, part: str) -> None:  # noqa: F811
    for name, row in bench("gpu_rows").rows(part, options(bench, part, rehearsed=True), 4 << 20, 64 << 20):
        assert row.needs("cuda:0", "bf16")[0] <= (row.cap or 4 << 30), f"{part}: {name}"


def test_every_model_and_cap_was_placed_by_a_plan(bench: Any) -> None:  # noqa: F811
    chosen = options(bench, "capped")
    assert {(name, share) for name in chosen.models for share in chosen.caps} == set(bench("gpu_rows").PLACED)


def test_the_largest_model_is_the_largest(bench: Any) -> None:  # noqa: F811
    """One layer more would not fit, and it is far beyond what the GPU holds of states."""
    rows, chosen = bench("gpu_rows"), options(bench, "largest")
    cap, host = int(chosen.device_share * DEVICE), int(chosen.host_share * RAM)
    layers = rows.largest(chosen, cap, host)
    assert rows.large(chosen, cap, layers).needs("cuda:0", "bf16")[1] <= host
    assert rows.large(chosen, cap, layers + 1).needs("cuda:0", "bf16")[1] > host
