"""Cases of an exhaustive test that `make test` leaves to `make laws`, because a few cases already prove the same law."""

from __future__ import annotations

from functools import partial

import pytest

#: A case that only `make laws` runs. `make test` covers every value of each parameter, but not every combination.
law = partial(pytest.param, marks=pytest.mark.laws)
