"""How token arrays are checked and cut. tests/test_bad_input.py tests the messages of trainers and models about bad ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynctile.layers import GPT2Config
from asynctile.layers.batch import check_tokens

CONFIG = GPT2Config(n_layer=1, n_head=1, n_embd=4, block_size=4, vocab_size=100)
SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64", ">i8"), ("uint8", "uint16", "uint32", "uint64")


def ids(*values: int, dtype: Any) -> np.ndarray:
    return np.array([values], dtype)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_ids_of_every_integer_type_are_accepted_up_to_the_end_of_the_vocabulary(dtype: str) -> None:
    found = check_tokens("tokens", ids(0, 7, 99, dtype=dtype), CONFIG)
    assert found.dtype == np.int32 and found.tolist() == [[0, 7, 99]]
    with pytest.raises(ValueError, match="tokens contains 100, expected ids from 0 to 99"):
        check_tokens("tokens", ids(0, 100, 99, dtype=dtype), CONFIG)


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("beside", [0, -100], ids=["alone", "beside what is ignored"])
def test_the_only_negative_id_accepted_is_the_ignored_one_and_only_in_targets(dtype: str, beside: int) -> None:
    assert check_tokens("targets", ids(3, -100, beside, dtype=dtype), CONFIG, ignored=True).tolist() == [[3, -100, beside]]
    for wrong in (-1, -99, -101):
        with pytest.raises(ValueError, match=f"targets contains {wrong}, .* or -100"):
            check_tokens("targets", ids(3, beside, wrong, dtype=dtype), CONFIG, ignored=True)
    with pytest.raises(ValueError, match="tokens contains -100"):
        check_tokens("tokens", ids(3, -100, dtype=dtype), CONFIG)
