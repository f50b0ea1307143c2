"""The places where played trainings are tested."""

from typing import Any

import pytest

from tests.execute.interleaving import PLACES
from tests.laws import law

#: On a device that holds everything, as in RAM, no tile moves. So this place is a law.
CASES = [*(pytest.param(PLACES[name], id=name) for name in ("cpu", "under a cap")), law(PLACES["resident"], id="resident")]


@pytest.fixture(params=CASES)
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of an engine."""
    found: dict[str, Any] = request.param
    return found
