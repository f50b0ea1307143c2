"""The decode program: the cache gives the logits of the whole window, and a row's bits depend on its sequence alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.layers import Model
from asynctile.layers.cache import KVCache
from asynctile.layers.caches import Caches
from asynctile.layers.decode import Span, inputs_of, record_decode
from asynctile.layers.floor import floor_demand
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling
from asynctile.ops.attention_page import NOBODY
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation, device_named
from asynctile.program.program import Fetch, Program
from asynctile.storage.tile import Tile
from tests.laws import law
from tests.layers.families import FAMILIES, NAMES
from tests.layers.shapes import LIGHT, SHAPES, Shape
from tests.layers.training import RAGGED, lively

#: (sequence, position of the first token, number of tokens)
Piece = tuple[int, int, int]


class Decoder:
    """A runner of decode programs of a model on two texts. numbers: the pages of each text."""

    def __init__(self, model: Model, numbers: Sequence[Sequence[int]]) -> None:
        self.model, self.numbers = model, [tuple(pages) for pages in numbers]
        self.most = max(map(max, numbers)) + 1
        self.caches = Caches(model_state_of(model).parameters, 1, self.most)
        self.tokens = texts(model)
        self.logits: dict[tuple[int, int], bytes] = {}
        #: by number of rows
        self.programs: dict[int, Program] = {}

    async def run(self, pieces: Iterable[Piece], rows: int) -> None:
        """Run one program of `rows` rows, of which these pieces fill the first."""
        pieces = list(pieces)
        if rows not in self.programs:
            parameters = model_state_of(self.model).parameters
            self.programs[rows] = record_decode(parameters, self.caches, rows=rows, pages=(self.most,), wanted=rows)
        program = self.programs[rows]
        spans = [Span(self.tokens[i, start : start + count], start, self.numbers[i]) for i, start, count in pieces]
        inputs = inputs_of([spans], self.caches.positions, rows, (self.most,))
        found = np.empty((rows, self.model.config.vocab_size), np.float32)

        async def job() -> None:
            async with model_state_of(self.model).runtime.exclusive():
                demand = model_state_of(self.model).demand(program, self.caches.tiles((self.most,)))
                await (await model_state_of(self.model).runtime.start(program, demand, inputs, {"logits": found})).finish()

        await model_state_of(self.model).runtime.call(job())
        places = [(i, start + place) for i, start, count in pieces for place in range(count)]
        self.logits |= {place: row.tobytes() for place, row in zip(places, found, strict=False)}

    async def store(self, value: float) -> None:
        """Fill the pages with `value`, as earlier requests might have left them."""
        tiles = list(self.caches.tiles((self.most,)))
        demand = demand_of([], [*model_state_of(self.model).weights(), *tiles])
        await model_state_of(self.model).runtime.reserve(demand)
        await model_state_of(self.model).runtime.store((tile, np.full(tile.shape, value, tile.dtype)) for tile in tiles)


def texts(model: Model) -> NDArray[np.int32]:
    """Return two texts of three pages and a token, if block_size allows."""
    length = min(model.config.block_size, 3 * KVCache(model_state_of(model).parameters).positions + 1)
    return np.random.default_rng(3).integers(0, model.config.vocab_size, (2, length), np.int32)


async def decoded(model: Model, way: str) -> dict[tuple[int, int], bytes]:
    """Return the logits of both texts by (text, position)."""
    length, both = texts(model).shape[1], range(2)
    each = -(-length // KVCache(model_state_of(model).parameters).positions)
    if way == "token by token, one after the other, pages in a row":
        decoder = Decoder(model, [range(each), range(each, 2 * each)])
        await decoder.store(0.0)
        for index in both:
            for start in range(length):
                await decoder.run([(index, start, 1)], 1)
    elif way == "side by side, pages in turns, one never used":
        decoder = Decoder(model, [range(2, 2 * each + 2, 2), range(1, 2 * each + 1, 2)])
        await decoder.store(3.0)
        for start in range(length):
            await decoder.run([(1, start, 1), (0, start, 1)], min(4, most_rows(model)) if most_rows(model) > 1 else 1)
    else:
        decoder = Decoder(model, [range(each, 2 * each), range(each)])
        await decoder.store(-1e30)
        for index in both:
            start = 0
            while start < length:
                count = min(most_rows(model), 5 + 3 * index, length - start)
                await decoder.run([(index, start, count)], most_rows(model))
                start += count
    return decoder.logits


def most_rows(model: Model) -> int:
    return min(16, model_state_of(model).tiling.row_tokens)


WAYS = ("token by token, one after the other, pages in a row", "side by side, pages in turns, one never used", "in chunks")
NARROW = {"tiles of one", "one sequence of one token"}
#: Of the families, Qwen3 has every verb of a cache, and sequences that are cut.
LONG = ("sequences cut, all ragged", "llama", "mistral", "qwen2")
CACHED = [*(name for name in SHAPES if name not in (*NARROW, *LONG)), "qwen3", *map(law, LONG)]


@pytest.mark.parametrize("name", CACHED)
async def test_cached_logits_are_those_of_the_window_and_their_bits_ignore_neighbors(name: str) -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, (LIGHT | FAMILIES)[name])
        whole = await model.logits(texts(model))
        alone, beside, chunks = [await decoded(model, way) for way in WAYS]
    for (index, position), found in alone.items():
        np.testing.assert_allclose(np.frombuffer(found, np.float32), whole[index, position], rtol=0, atol=1e-5)
    assert len(alone) == whole.shape[0] * whole.shape[1]
    assert alone == beside == chunks


async def test_tiles_of_one_row_have_a_cache_as_well() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SHAPES["tiles of one"])
        whole = await model.logits(texts(model))
        alone = await decoded(model, WAYS[0])
    for (index, position), found in alone.items():
        np.testing.assert_allclose(np.frombuffer(found, np.float32), whole[index, position], rtol=0, atol=1e-5)


def recorded(shape: Shape, rows: int, pages: int) -> tuple[Parameters, list[Any]]:
    parameters = Parameters(shape.config, Tiling(shape.config, shape.tile))
    program = record_decode(parameters, Caches(parameters, 1, pages), rows=rows, pages=(pages,), wanted=min(rows, 4))
    return parameters, list(program.entries)


def test_weights_are_visited_in_one_order_for_any_number_of_rows_and_pages() -> None:
    """The order is that of a forward pass, each weight once. The head is left out, because it is the embedding."""
    orders = []
    for rows, pages in ((1, 1), (4, 2), (16, 8)):
        parameters, entries = recorded(RAGGED, rows, pages)
        names = {tile: tile.name for parameter in parameters.values() for tile in parameter.weights.values()}
        uses = [names[tile] for entry in entries if isinstance(entry, Operation) for tile in entry.tiles if tile in names]
        orders.append([name for name, before in zip(uses, [None, *uses], strict=False) if name != before])
    assert orders[0] == orders[1] == orders[2]
    matrices = [name for name in orders[0] if "," in name and not name.startswith("wte")]
    assert len(matrices) == len(set(matrices))


@pytest.mark.parametrize("name", [*(name for name in SHAPES if name != "tiles of one"), *NAMES])
@pytest.mark.parametrize("pages", [1, 16])
def test_generation_needs_no_more_at_once_than_training(name: str, pages: int) -> None:
    """Except with tiles of one, where the inputs are the largest."""
    shape = (SHAPES | FAMILIES)[name]
    parameters = Parameters(shape.config, Tiling(shape.config, shape.tile))
    caches = Caches(parameters, 1, pages)
    rows = min(64, parameters.tiling.row_tokens)
    program = record_decode(parameters, caches, rows=rows, pages=(pages,), wanted=min(16, rows))
    needed = demand_of([program], [*parameters.states(), *caches.tiles((pages,))]).floor_nbytes
    assert needed <= floor_demand(shape.config, shape.tile).floor_nbytes


def test_each_device_has_its_own_pages_and_rows_and_a_device_without_pages_has_no_work() -> None:
    parameters = Parameters(RAGGED.config, Tiling(RAGGED.config, RAGGED.tile))
    caches = Caches(parameters, 4, 9)
    program = record_decode(parameters, caches, rows=4, pages=(0, 2, 0, 1), wanted=2)
    places: dict[Tile, set[str]] = {}
    for entry in program.entries:
        assert isinstance(entry, Operation | Fetch)
        for tile in entry.tiles:
            places.setdefault(tile, set()).add(entry.device)
    assert {*chain.from_iterable(places.values())} == {device_named(1), device_named(3)}
    for device, cache in enumerate(caches):
        assert all(places[tile] == {device_named(device)} for tile in cache.tiles.tiles(0, (0, 2, 0, 1)[device]))
    assert {tile for tile, found in places.items() if len(found) > 1} == set(parameters.weights())


def test_inputs_name_the_rows_and_pages_of_each_device_that_has_some() -> None:
    def span(token: int, *pages: int) -> Span:
        return Span(np.array([token], np.int32), 3, pages)

    found = inputs_of([[span(8, 0)], [], [span(9, 1, 2)]], 2, 2, (1, 0, 3))
    assert {name: list(value) for name, value in found.items()} == {
        "tokens[0]": [8, NOBODY], "positions[0]": [3, NOBODY], "rows[0]": [0, 3, NOBODY, NOBODY], "pages[0]": [0, 0],
        "tokens[1]": [9, NOBODY], "positions[1]": [3, NOBODY], "rows[1]": [1, 3, NOBODY, NOBODY],
        "pages[1]": [NOBODY, NOBODY, 1, 0, 1, 2],
    }  # fmt: skip
