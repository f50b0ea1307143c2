"""Fixtures that the tests of bench/ share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.shell import HARMFUL, ROOT


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Return a function that imports a module of bench/ by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        for name in HARMFUL:
            patch.delenv(name, raising=False)
        yield importlib.import_module
