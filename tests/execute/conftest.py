"""The places where played trainings are tested."""

from typing import Any

import pytest

from tests.execute.interleaving import PLACES


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of an engine."""
    found: dict[str, Any] = request.param
    return found
