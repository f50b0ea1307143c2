"""The device of a text: the fewest texts first, and no more pages with bytes than one limit for all devices allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import GPT2Config
from asynctile.layers.caches import Caches
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling

CONFIG = GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=8, vocab_size=9)
PARAMETERS = Parameters(CONFIG, Tiling(CONFIG, 8))

#: (device, pages) of each text.
Texts = list[tuple[int, tuple[int, ...]]]


def caches_of(devices: int, most: int) -> Caches:
    return Caches(PARAMETERS, devices, most)


def admitted(caches: Caches, texts: Texts, count: int) -> bool:
    """Admit a text of `count` pages as a server does; return whether there was room."""
    while (device := caches.device_for(count, [device for device, _ in texts])) is None:
        if not (idle := caches.idle()):
            return False
        for cache in idle:
            cache.filled = 0
    cache = caches[device]
    cache.filled = max(cache.filled, cache.pages.needed(count))
    texts.append((device, cache.pages.reserve(count)))
    return True


def test_a_text_goes_to_the_first_device_with_the_fewest_texts() -> None:
    caches, texts = caches_of(3, 100), Texts()
    for _ in range(7):
        assert admitted(caches, texts, 2)
    assert [device for device, _ in texts] == [0, 1, 2, 0, 1, 2, 0]
    caches[1].pages.free(texts.pop(1)[1])
    assert admitted(caches, texts, 2) and texts[-1][0] == 1


def test_a_text_goes_to_a_busier_device_that_has_room_before_it_waits() -> None:
    caches, texts = caches_of(2, 8), Texts()
    assert admitted(caches, texts, 6) and admitted(caches, texts, 2)
    caches[0].pages.free(texts.pop(0)[1])
    for _ in range(6):
        assert admitted(caches, texts, 1)
    assert [device for device, _ in texts] == [1, 0, 0, 0, 0, 0, 0] and not admitted(caches, texts, 1)


def test_as_many_texts_of_equal_length_fit_on_devices_that_divide_them_as_on_one() -> None:
    for devices in (1, 2, 4):
        caches, texts = caches_of(devices, 80), Texts()
        for _ in range(16):
            assert admitted(caches, texts, 5)
        assert not admitted(caches, texts, 1)


def test_a_cache_without_texts_gives_its_pages_to_another_device() -> None:
    caches, texts = caches_of(2, 6), Texts()
    for _ in range(2):
        assert admitted(caches, texts, 2)
    assert not admitted(caches, texts, 5)
    for device, pages in texts:
        caches[device].pages.free(pages)
    texts.clear()
    assert admitted(caches, texts, 6) and [cache.filled for cache in caches] == [6, 0]


@given(st.integers(1, 4), st.integers(1, 30), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_no_more_pages_have_bytes_than_the_limit_and_any_text_fits_once_all_others_have_left(
    devices: int, most: int, wishes: list[tuple[bool, int]]
) -> None:
    caches, texts = caches_of(devices, most), Texts()
    for leaves, count in wishes:
        if leaves and texts:
            device, pages = texts.pop(count % len(texts))
            caches[device].pages.free(pages)
        elif not leaves and count <= most:
            free = most - sum(cache.pages.taken for cache in caches)
            assert admitted(caches, texts, count) or devices > 1 or count > free
        assert sum(cache.filled for cache in caches) <= most
        assert all(cache.pages.visited <= cache.filled for cache in caches)
    while texts:
        device, pages = texts.pop()
        caches[device].pages.free(pages)
    assert admitted(caches, texts, most)
