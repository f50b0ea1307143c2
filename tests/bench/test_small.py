"""The benchmark of the small model compares only sides that compute the same."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def small(bench: Any) -> Any:
    return bench("bench_small")


def trainings(small: Any, **losses: list[float]) -> Any:
    """Return sides with these losses so far, or 3, 2, 1, 0.5 by default."""
    found = {name: small.Training(None, 3) for name in (*small.PLACES, small.EAGER)}
    for name, training in found.items():
        training.losses = losses.get(name.partition(",")[0].replace(" ", "_"), [3.0, 2.0, 1.0, 0.5])
    return found


@pytest.mark.reference
def test_sides_may_round_differently_and_later_drift_apart(small: Any) -> None:
    assert small.check_losses(trainings(small, torch_eager=[3.0, 2.00005, 1.0, 0.7])) == pytest.approx(5e-5, rel=1e-3)


@pytest.mark.reference
@pytest.mark.parametrize(
    "losses",
    [
        {"torch_eager": [3.0, 2.0, 1.001, 0.5]},
        {"torch_eager": [3.0, 2.0, float("nan"), 0.5]},
        {"cpu": [3.0, 2.0, 1.0, 0.5000001]},
    ],
)
def test_sides_that_compute_something_else_are_refused(small: Any, losses: Any) -> None:
    with pytest.raises(AssertionError, match="differ"):
        small.check_losses(trainings(small, **losses))


@pytest.mark.reference
def test_a_pytorch_model_takes_every_weight_by_its_hugging_face_name(bench: Any, small: Any) -> None:
    torch_step = bench("torch_step")
    model = torch_step.Reference(small.SHAPE)
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    there = {here: there for there, here in torch_step.LINEAR.items()}
    named = {}
    for name, value in state.items():
        part = next((own for own in there if f".{own}." in name), None)
        if part is not None:
            name, value = name.replace(part, there[part]), value.T
        named[f"transformer.{name}"] = value + 1
    model.load(named)
    assert all((value.numpy() == state[name] + 1).all() for name, value in model.state_dict().items())
