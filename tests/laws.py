"""Which cases of an exhaustive test `make test` leaves to `make laws`: where a few already prove the same law."""

from __future__ import annotations

from functools import partial

import pytest

#: A case that only `make laws` runs; what `make test` runs has every value of each parameter, but not every combination.
law = partial(pytest.param, marks=pytest.mark.laws)
