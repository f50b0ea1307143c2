"""Trainings in an engine of several devices: their bits depend on the replicas, and not on the devices that carry them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.layers.training import NARROW, assert_same_bits, floor_of, outcome

#: Four replicas of one sequence each.
FOUR = replace(NARROW, batch=4, micro_batches=1)


@pytest.mark.parametrize("plays", [True, False])
@pytest.mark.parametrize("cap", [None, 2.0, 1.0])
@pytest.mark.parametrize("device", ["emulated*2", "emulated*3"])
async def test_a_training_on_several_devices_gives_the_bits_of_one(device: str, cap: float | None, plays: bool) -> None:
    options: dict[str, Any] = {} if cap is None else {"device_memory": int(cap * await floor_of(FOUR))}

    def prepare(engine: Any) -> None:
        engine.plays = plays

    found = await outcome(FOUR, device=device, engine_options=options, prepare=prepare, replicas=4)
    assert_same_bits(found, await outcome(FOUR, device="cpu", replicas=4))
    assert cap is None or found.device_peak_bytes <= options["device_memory"]


@pytest.mark.parametrize("update", ["device", "host"])
async def test_a_training_over_a_spill_folder_gives_the_same_bits_on_three_devices(update: str, tmp_path: Path) -> None:
    states = FOUR.config.states_nbytes
    caps = {"device_memory": states // 2, "host_memory": states, "spill": tmp_path}
    found = await outcome(FOUR, device="emulated*3", engine_options=caps, update=update, clip_norm=0.5, replicas=4)
    assert_same_bits(found, await outcome(FOUR, device="cpu", clip_norm=0.5, replicas=4))
