"""Trainings in an engine of several devices give the bits of one device, and move the same bytes while one device works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.layers.training import NARROW, SMALL, assert_same_bits, floor_of, outcome


@pytest.mark.parametrize("plays", [True, False])
@pytest.mark.parametrize("cap", [None, 2.0, 1.0])
async def test_a_training_on_two_devices_gives_the_bits_and_bytes_of_one(cap: float | None, plays: bool) -> None:
    options: dict[str, Any] = {} if cap is None else {"device_memory": int(cap * await floor_of(NARROW))}

    def prepare(engine: Any) -> None:
        engine.plays = plays

    one, two = [
        await outcome(NARROW, device=device, engine_options=options, prepare=prepare) for device in ("emulated", "emulated*2")
    ]
    assert_same_bits(one, two)
    assert (one.uploaded_bytes, one.device_peak_bytes) == (two.uploaded_bytes, two.device_peak_bytes)


@pytest.mark.parametrize("update", ["device", "host"])
async def test_a_training_over_a_spill_folder_gives_the_same_bits_on_three_devices(update: str, tmp_path: Path) -> None:
    states = SMALL.config.states_nbytes
    caps = {"device_memory": states // 2, "host_memory": states, "spill": tmp_path}
    found = await outcome(SMALL, device="emulated*3", engine_options=caps, update=update, clip_norm=0.5)
    assert_same_bits(found, await outcome(SMALL, device="cpu", clip_norm=0.5))
