"""The law of equal bits for steps that a GPU replays, on a driver made of threads whose streams pause at random.

See test_cuda_replayed_between.py for other work between steps, test_cuda_replayed_cancelled.py for cancellations, and
test_cuda_replayed_failures.py for failures. tests/execute/test_scheduled_job.py tests schedules elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.laws import law
from tests.layers.replaying import DEEP, assert_same, by_coroutines, place_of, trained

#: Further options of the engine, and options of a trainer, each at one place: pairs rather than the product.
CASES: list[Any] = [
    law("all there", {"device_memory": None, "host_memory": None}, {}),
    ("all there", {"precision": "bf16"}, {"clip_norm": 0.3, "recompute": False}),
    law("under a cap", {}, {"clip_norm": 0.3, "recompute": True}),
    ("under a cap", {"precision": "bf16"}, {"update": "mixed", "micro_batches": 2}),
    law("under a cap", {"prefetch": 1}, {"update": "host", "clip_norm": 0.3}),
    ("near the floor", {}, {}),
    law("near the floor", {"precision": "bf16", "device_memory": 27 << 10}, {"clip_norm": 0.3, "update": "mixed"}),
    ("over a file", {}, {"recompute": False}),
    law("over a file", {"precision": "bf16"}, {"update": "mixed", "clip_norm": 0.3, "micro_batches": 2}),
]


@pytest.mark.parametrize(("where", "more", "options"), CASES, ids=str)
async def test_replayed_steps_have_the_bits_of_issued_steps(
    where: str, more: dict[str, Any], options: dict[str, Any], soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await by_coroutines(soft_gpu.opened, precision=more.get("precision", "fp32"), **options)
    soft_gpu(seed=len(where) + len(options))
    found = await trained(soft_gpu.opened, place_of(where, tmp_path, **more), **options)
    assert_same(found, expected)
    assert found.played == [False, True, True, True, True]
    assert found.launches[2:] == [0, 0, 0], "kernels run in graphs alone"
    assert 0 < found.graphs[2] == found.graphs[3] == found.graphs[4]


@pytest.mark.laws
async def test_a_tenth_of_the_states_on_the_gpu_changes_no_bit(soft_gpu: Any) -> None:
    expected = await by_coroutines(soft_gpu.opened, shape=DEEP, steps=4)
    soft_gpu(seed=10)
    place = {"device": "cuda:0", "device_memory": DEEP.config.states_nbytes // 10}
    found = await trained(soft_gpu.opened, place, shape=DEEP, steps=4)
    assert_same(found, expected)
    assert found.launches[2:] == [0, 0] and found.played[1:] == [True] * 3


async def test_without_prefetch_steps_are_replayed_as_well(soft_gpu: Any) -> None:
    expected = await by_coroutines(soft_gpu.opened)
    found = await trained(soft_gpu.opened, place_of("under a cap", prefetch=0))
    assert_same(found, expected)
    assert all(found.graphs[1:])
