"""The places where the trainers of disturbances.py run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.laws import law
from tests.layers.disturbances import DEFAULTS, DEVICES

#: A device where updates run on the host has every path of one where they do not, but an update.
PLACES = [law(DEVICES[name], id=name) if name == "emulated" else pytest.param(DEVICES[name], id=name) for name in DEVICES]


@pytest.fixture(params=PLACES)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of an engine; trainers on it place their updates by the same parameter."""
    engine_options, update = request.param
    monkeypatch.setitem(DEFAULTS, "update", update)
    return engine_options
