"""Other work of an engine of several devices between and beside steps, in random order: no bit changes.

Tiles that one device has changed are then used by a program that runs on another one, and tiles that it has copied are changed
by others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.laws import law
from tests.layers.replaying import PLACES
from tests.layers.stories import ACTIONS, OPTIONS, tell
from tests.layers.training import assert_same_tensors

#: Story, place, and whether steps are played. Story 2 has a share that trains beside.
STORIES: list[Any] = [(2, "all there", True)]
LAWS = [law(3, "over a file", True), law(1, "under a cap", True), law(4, "near the floor", False)]
LAWS += [law(seed, sorted(PLACES)[seed % len(PLACES)], seed % 8 < 6) for seed in range(5, 45)]


def drawn(seed: int) -> tuple[dict[str, Any], list[str]]:
    """Draw options of a trainer of two replicas, and the actions."""
    chance = random.Random(seed)
    actions = ["steps"]
    for _ in range(4):
        actions += [chance.choice(ACTIONS), chance.choice(["step", "steps"])]
    options = {name: chance.choice(values) for name, values in OPTIONS.items()}
    return options | {"micro_batches": 1, "replicas": 2}, actions


@pytest.mark.parametrize(("seed", "where", "plays"), [*STORIES, *LAWS])
async def test_a_story_on_two_devices_has_the_numbers_and_bits_of_one(seed: int, where: str, plays: bool) -> None:
    options, actions = drawn(seed)
    expected, _, states = await tell(where, options, actions, seed, plays=False, device="emulated")
    found, played, others = await tell(where, options, actions, seed, plays=plays, device="emulated*2")
    assert any(played) is plays
    assert found == expected, (options, actions)
    assert_same_tensors(others, states)
