"""Logits, every gradient and 50 steps on a real GPU against PyTorch on the CPU, in float32 and in float64.

The tests are those of tests/reference/test_torch.py, on other devices; each precision has its own bounds.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.conftest import NAME  # noqa: E402
from tests.layers.shapes import Shape  # noqa: E402
from tests.reference.bounds import BF16, FP32, TF32  # noqa: E402
from tests.reference.test_torch import (  # noqa: E402, F401
    SHAPES,
    Place,
    test_a_schedule_and_clipping_are_pytorchs,
    test_every_tensor_after_50_steps,
    test_greedy_generation_is_pytorchs,
    test_ignored_targets_do_not_count_in_a_longer_mean,
    test_logits_and_every_gradient,
    test_two_micro_batches_are_one_to_rounding,
)

pytestmark = pytest.mark.gpu

PLACES = {
    "fp32 beside float32": Place(NAME, "fp32", torch.float32, FP32),
    "fp32 beside float64": Place(NAME, "fp32", torch.float64, FP32),
    "tf32 beside float64": Place(NAME, "tf32", torch.float64, TF32),
    "bf16 beside float64": Place(NAME, "bf16", torch.float64, BF16),
}
#: Tests that compare with float32's own rounding, or for equal tokens; in lower precision they prove nothing.
EXACT = ("test_a_schedule_and_clipping_are_pytorchs", "test_two_micro_batches_are_one_to_rounding",
         "test_greedy_generation_is_pytorchs")  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        names = ["fp32 beside float32"] if metafunc.function.__name__ in EXACT else list(PLACES)
        metafunc.parametrize("place", [PLACES[name] for name in names], ids=names)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param
