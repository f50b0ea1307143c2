"""The host tier: exact blocks under a cap."""

import itertools

import numpy as np
import pytest

from asynctile.errors import BudgetError
from asynctile.storage.host import HostTier


def test_blocks_do_not_overlap_and_keep_their_bytes():
    tier = HostTier(1 << 16)
    blocks = [tier.take(100 * (index + 1), "t") for index in range(5)]
    for value, block in enumerate(blocks):
        block.array((block.nbytes,), np.uint8)[:] = value
    assert [int(block.array((block.nbytes,), np.uint8).sum()) for block in blocks] == [
        value * block.nbytes for value, block in enumerate(blocks)
    ]


def test_a_given_block_is_used_again_for_its_size():
    tier = HostTier(128)
    block = tier.take(128, "a")
    tier.give(block)
    assert tier.take(128, "b") is block
    assert tier.peak_nbytes == tier.used_nbytes == 128


def test_a_full_tier_names_what_needed_how_much_and_the_way_out():
    tier = HostTier(128)
    tier.take(64, "a")
    with pytest.raises(BudgetError, match=r"tile b needs 128 B .* raise host_memory") as caught:
        tier.take(128, "tile b")
    assert caught.value.floor == 192


def test_closing_under_a_living_view_leaves_the_view_alone():
    tier = HostTier(128)
    view = tier.take(64, "a").array((16,), np.float32)
    view[:] = 3
    tier.close()
    assert view.sum() == 48


def test_blocks_of_other_sizes_are_cut_from_what_was_given_back():
    tier = HostTier(512)
    blocks = [tier.take(128, "t") for _ in range(4)]
    for block in blocks[:3]:
        tier.give(block)
    tier.reserve({320: 1, 64: 1})
    taken = [tier.take(320, "a"), tier.take(64, "b"), blocks[3]]
    spans = sorted((block.offset, block.offset + block.nbytes) for block in taken)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_reservation_that_cannot_be_kept_is_refused_with_what_it_takes():
    tier = HostTier(512)
    tier.take(256, "t")
    with pytest.raises(BudgetError, match="raise host_memory") as caught:
        tier.reserve({128: 3})
    assert caught.value.floor == 256 + 3 * 128
    tier.reserve({128: 2})
