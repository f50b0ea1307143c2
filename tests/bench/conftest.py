"""What tests of bench/ share: its modules by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.shell import HARMFUL, ROOT


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Imports a module of bench/ by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        for name in HARMFUL:
            patch.delenv(name, raising=False)
        yield importlib.import_module
