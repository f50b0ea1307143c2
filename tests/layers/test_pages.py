"""Numbers of pages: the lowest free ones, ascending, never shared by two sequences; and how many a program visits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import GPT2Config
from asynctile.layers.cache import KVCache
from asynctile.layers.pages import MOST_POSITIONS, Pages, page_positions
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_the_lowest_free_pages_are_given_in_order_and_to_one_sequence_at_a_time(
    most: int, wishes: list[tuple[bool, int]]
) -> None:
    pages, taken, visited = Pages(most), list[tuple[int, ...]](), 0
    for gives_back, count in wishes:
        if gives_back and taken:
            pages.free(taken.pop(count % len(taken)))
        elif not gives_back and pages.has(count):
            held = {number for numbers in taken for number in numbers}
            wanted = pages.needed(count)
            taken.append(pages.reserve(count))
            assert list(taken[-1]) == sorted(set(range(most)) - held)[:count]
            assert pages.visited == wanted
        held = {number for numbers in taken for number in numbers}
        assert pages.taken == len(held) and pages.has(most - len(held)) and not pages.has(most - len(held) + 1)
        if not held:
            visited = 0
            assert pages.visited == 0
        assert pages.visited >= max(held, default=-1) + 1 and pages.visited >= visited
        assert pages.visited == most or pages.visited & (pages.visited - 1) == 0
        visited = pages.visited


@given(st.integers(1, 600), st.integers(1, 2000))
def test_keys_and_values_of_a_page_are_no_taller_than_a_tile(tile: int, block_size: int) -> None:
    positions = page_positions(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=block_size, vocab_size=9), tile)
    assert 1 <= positions <= min(MOST_POSITIONS, block_size)
    assert tile == 1 or 2 * positions <= tile
    assert positions in (tile // 2, block_size, MOST_POSITIONS, 1)


def test_a_page_has_a_tile_for_each_layer_and_group_of_heads() -> None:
    config = GPT2Config(n_layer=2, n_head=5, n_embd=40, block_size=50, vocab_size=9)
    cache = KVCache(Parameters(config, Tiling(config, 20)))
    pages = cache.pages(3)
    assert [tile.name for tile in pages[1, 2]] == [f"h.1.attn.kv[2].page {number}" for number in range(3)]
    assert {tile.shape for tile in pages[0, 0]} == {(20, 16)}
    assert {tile.shape for tile in pages[0, 2]} == {(20, 8)}
    assert len(pages) == 6
    assert sum(tile.nbytes for tile in cache.tiles(1, 2)) == cache.page_nbytes == 2 * 20 * 40 * 4
    assert cache.pages(4)[0, 1][:3] == list(pages[0, 1])
