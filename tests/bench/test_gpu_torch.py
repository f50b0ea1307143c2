"""PyTorch's side as far as it needs no GPU: the choice of the micro-batch for FSDP2."""

from __future__ import annotations

from typing import Any

import pytest


class Side:
    """A model with given seconds a sequence for each micro-batch size, until one runs out of memory, which spoils the model."""

    made = 0

    def __init__(self, seconds: dict[int, float]) -> None:
        Side.made += 1
        self.seconds, self.spoilt = seconds, False

    def trial_s(self, length: int, part: int) -> float:
        assert not self.spoilt
        if part not in self.seconds:
            self.spoilt = True
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return self.seconds[part]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("seconds", "part", "full"),
    [({1: 3.0, 4: 1.0}, 4, True), ({1: 3.0, 4: 1.0, 16: 2.0}, 4, False), ({1: 3.0, 4: 2.0, 16: 1.0}, 16, False), ({}, 0, True)],
)
def test_the_fastest_micro_batch_is_found_and_the_model_is_whole(
    bench: Any, seconds: dict[int, float], part: int, full: bool
) -> None:
    torch_side, before = bench("gpu_torch"), Side.made
    place = bench("gpu_peaks").Place("soft")
    side, found, more_is_too_much = torch_side.fastest_micro_batch(lambda: Side(seconds), place, 16, 1024)
    assert (found, more_is_too_much) == (part, full)
    assert not side.spoilt
    assert Side.made == before + 1 + full
