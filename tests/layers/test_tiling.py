"""Split, Rows and Tiling cover exactly and stay within the edge; default tiles stay within the floor's bound, on a GPU too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.floor import floor_demand
from asynctile.layers.gpt2.config import STANDARD, GPT2Config
from asynctile.layers.head import STRIP_TOKENS
from asynctile.layers.machine import Machine, Work
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.rows import Rows, count_rows
from asynctile.layers.split import GRAIN, Split
from asynctile.layers.step import record
from asynctile.layers.tiling import FLOOR_SHARE, MOST_EDGE, Tiling, default_tile, floor_estimate
from asynctile.program.grain import COARSE, FINE, Grain, grain_of

small = st.integers(1, 400)
#: micro_batches and replicas
PARTS = st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4)])


@given(units=small, tile=small, multiple=st.integers(1, 40))
def test_split_covers_exactly(units: int, tile: int, multiple: int) -> None:
    n = units * multiple
    split = Split.even(n, tile, multiple)
    sizes = [stop - start for start, stop in split]
    assert sum(sizes) == n
    assert min(sizes) > 0
    assert max(sizes) <= max(tile, multiple)
    assert len(set(sizes[:-1])) <= 1
    assert sizes[-1] <= sizes[0]
    assert all(size % multiple == 0 for size in sizes)
    assert [split.size(i) for i in range(len(split))] == sizes
    if multiple == 1:
        assert len(split) == -(-n // tile)


@given(n=small, tile=small, pitch=st.sampled_from([2, 8, 16]))
def test_only_the_last_part_of_a_padded_split_is_not_a_multiple_of_its_pitch(n: int, tile: int, pitch: int) -> None:
    split = Split.even(n, tile, pitch=pitch)
    sizes = [stop - start for start, stop in split]
    assert sum(sizes) == n and min(sizes) > 0
    assert all(size % pitch == 0 for size in sizes[:-1])
    assert max(split.size(i) for i in range(len(split))) <= max(tile, pitch)
    assert [split.padding(i) for i in range(len(split))] == [*[0] * (len(split) - 1), -sizes[-1] % pitch]
    assert [split.size(i) - split.padding(i) for i in range(len(split))] == sizes
    assert len(split) <= Split.count(n, tile, pitch)


@given(n=small, parts=st.integers(1, 8))
def test_a_split_uses_whole_grains_where_there_is_room(n: int, parts: int) -> None:
    sizes = [stop - start for start, stop in Split.even(n, parts * GRAIN)]
    assert all(size % GRAIN == 0 for size in sizes[:-1])


def test_a_split_is_balanced() -> None:
    assert Split.even(1600, 768).offsets == (0, 544, 1088, 1600)
    assert Split.even(100, 30).offsets == (0, 25, 50, 75, 100)
    assert Split.even(768, 512, multiple=64).offsets == (0, 384, 768)
    assert Split.even(6, 4).repeated(2).offsets == (0, 3, 6, 9, 12)


@given(share=st.integers(1, 9), parts=PARTS, length=st.integers(1, 60), tile=st.integers(1, 70))
def test_rows_cover_exactly(share: int, parts: tuple[int, int], length: int, tile: int) -> None:
    micro_batches, replicas = parts
    batch = share * micro_batches * replicas
    rows = Rows(batch, length, micro_batches, tile, replicas)
    assert count_rows(batch, length, micro_batches, tile, replicas) == (len(rows), sum(len(row.keys) for row in rows))
    seen = np.zeros(batch * length, int)
    for index, row in enumerate(rows):
        assert row.index == index
        assert 1 <= row.size <= tile
        assert row.micro_batch == row.sequence // share == (row.sequence + row.seqs - 1) // share
        assert row.seqs == 1 or (row.start, row.stop) == (0, length)
        part = rows.part(row)
        assert part.stop - part.start == row.size
        seen[part] += 1
        same = [other.index for other in rows if other.sequence == row.sequence]
        assert list(row.keys) == [other for other in same if other <= index]
        assert list(row.queries) == [other for other in same if other >= index]
    assert (seen == 1).all()
    assert [row for m in range(replicas * micro_batches) for row in rows.passes[m]] == rows.tiles
    assert [row for strip in rows.strips(tile) for row in strip] == rows.tiles


def test_rows_hold_whole_sequences_where_they_fit() -> None:
    assert [row.seqs for row in Rows(10, 5, 2, 16)] == [2, 3, 2, 3]
    assert [(row.start, row.stop) for row in Rows(1, 40, 1, 32)] == [(0, 32), (32, 40)]
    assert [len(strip) for strip in Rows(5, 10, 1, 10).strips(20)] == [2, 2, 1]


@given(st.integers(1, 5), PARTS, st.integers(1, 70), st.integers(4, 40), st.data())
def test_passes_cover_rows_in_order_and_no_sequence_is_in_two(
    share: int, parts: tuple[int, int], length: int, tile: int, data: st.DataObject
) -> None:
    micro_batches, replicas = parts
    rows = Rows(share * micro_batches * replicas, length, micro_batches, tile, replicas)
    assert rows.in_passes(micro_batches) is rows
    count = data.draw(st.integers(1, rows.most_passes))
    passes = rows.in_passes(count).passes
    assert len(passes) == replicas * count
    assert [row for part in passes for row in part] == rows.tiles
    for part in passes:
        indices = {row.index for row in part}
        assert all(indices.issuperset(row.keys) and indices.issuperset(row.queries) for row in part)
    assert max(map(len, passes)) - min(map(len, passes)) <= max(len(row.keys) for row in rows) or length <= tile
    with pytest.raises(ValueError, match="passes, expected 1 to"):
        rows.in_passes(rows.most_passes + 1)


@given(st.integers(1, 3), PARTS, st.integers(1, 70), st.integers(4, 40), st.data())
def test_every_replica_is_cut_as_its_share_of_the_batch_would_be(
    share: int, parts: tuple[int, int], length: int, tile: int, data: st.DataObject
) -> None:
    """So no replica notices how many others there are, and no pass has rows of two."""
    micro_batches, replicas = parts
    of_each = share * micro_batches
    rows, alone = Rows(of_each * replicas, length, micro_batches, tile, replicas), Rows(of_each, length, micro_batches, tile)
    count = data.draw(st.integers(1, alone.most_passes))
    rows, alone = rows.in_passes(count), alone.in_passes(count)
    assert len(rows.by_replica) == replicas
    for number, own in enumerate(rows.by_replica):
        cut = [(row.sequence - number * of_each, row.seqs, row.start, row.stop, len(row.keys), len(row.queries)) for row in own]
        assert cut == [(row.sequence, row.seqs, row.start, row.stop, len(row.keys), len(row.queries)) for row in alone]
        passes = rows.passes[number * count : (number + 1) * count]
        assert [row for part in passes for row in part] == own
        assert list(map(len, passes)) == list(map(len, alone.passes))
        assert [row for row in own if rows.ends_replica(row)] == own[-1:]


def test_rows_requested_again_are_those_of_this_batch_and_cut_once() -> None:
    tiling = Tiling(GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=50), tile=32)
    asked = [(4, 64, 1, 1), (4, 64, 1, 2), (4, 64, 2, 2), (2, 64, 1, 2), (2, 16, 1, 2), (4, 64, 1, 1)]
    for batch, length, micro_batches, replicas in asked:
        rows = tiling.rows(batch, length, micro_batches, replicas)
        assert list(rows) == list(Rows(batch, length, micro_batches, 32, replicas))
        assert (rows.micro_batches, rows.replicas) == (micro_batches, replicas)
        assert tiling.rows(batch, length, micro_batches, replicas) is rows


def test_wrong_shapes_are_refused() -> None:
    tiling = Tiling(GPT2Config(n_layer=1, n_head=2, n_embd=8, block_size=16, vocab_size=11), 8)
    with pytest.raises(ValueError, match="3 sequences is not divisible by micro_batches 2"):
        tiling.rows(3, 8, 2)
    with pytest.raises(ValueError, match="not divisible by replicas 4 x micro_batches 1; choose a multiple of 4"):
        tiling.rows(6, 8, 1, 4)
    with pytest.raises(ValueError, match="replicas is 3, expected a power of two"):
        tiling.rows(6, 8, 1, 3)
    with pytest.raises(ValueError, match=r"17 tokens.*block_size 16"):
        tiling.rows(1, 17)
    with pytest.raises(ValueError, match="micro_batches is 0"):
        tiling.rows(1, 8, 0)
    for tile in (0, -4, 1.5, True):
        with pytest.raises(ValueError, match="tile is"):
            Tiling(tiling.config, tile)  # type: ignore[arg-type]


@pytest.mark.parametrize("grain", [FINE, COARSE], ids=["fine", "coarse"])
@pytest.mark.parametrize("config", [
    GPT2Config(), GPT2Config.named("gpt2-xl"),
    GPT2Config(n_layer=4, n_head=4, n_embd=256, block_size=256, vocab_size=256),
    GPT2Config(n_layer=1, n_head=1, n_embd=256, block_size=64, vocab_size=64),
    GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=11),
])  # fmt: skip
def test_default_tile_is_the_largest_within_the_floor(config: GPT2Config, grain: Grain) -> None:
    tile = default_tile(config, grain)
    bound = max(FLOOR_SHARE * config.states_nbytes, grain.floor_nbytes)
    assert floor_estimate(config, tile, grain.tall) <= bound
    larger = [edge for edge in grain.ladder if edge > tile]
    assert not larger or floor_estimate(config, larger[-1], grain.tall) > bound
    assert Tiling(config, grain=grain).tile == tile


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_published_models_have_the_widest_tiles_on_a_gpu_and_floors_that_any_gpu_has(name: str, precision: str) -> None:
    config = GPT2Config.named(name)
    tile = default_tile(config, COARSE)
    assert tile == COARSE.ladder[0]
    floor = floor_demand(config, tile, COARSE, precision).floor_nbytes
    assert floor <= {"bf16": 1.1, "fp32": 2.1}[precision] * 2**30 <= floor_estimate(config, tile, COARSE.tall)


def test_a_step_of_gpt2_on_a_gpu_is_few_operations() -> None:
    config = GPT2Config()
    tiling = Tiling(config, grain=COARSE)
    parameters = Parameters(config, tiling, "bf16")
    assert len(record("step", parameters, tiling.rows(16, config.block_size))) < 1000


def test_row_tiles_of_a_gpu_are_tall_and_each_is_its_own_strip() -> None:
    tiling = Tiling(GPT2Config(n_layer=1, block_size=1024), 768, COARSE)
    rows = tiling.rows(16, 1024)
    assert tiling.row_tokens == 3072
    assert [row.size for row in rows] == [2048, 3072, 3072, 2048, 3072, 3072]
    assert [len(strip) for strip in rows.strips(STRIP_TOKENS)] == [1] * 6
    assert tiling.model.offsets == (0, 768)
    assert Tiling(tiling.config, 768).rows(1, 1024)[0].size == 512


def test_the_grain_is_that_of_the_kind_of_device() -> None:
    assert [grain_of(name) for name in ("cuda:0", "cuda:13", "cuda")] == [COARSE] * 3
    assert [grain_of(name) for name in ("cpu", "emulated", "auto")] == [FINE] * 3


@pytest.mark.timeout(10)
def test_an_absurdly_large_batch_is_refused_before_its_rows_are_listed() -> None:
    with pytest.raises(ValueError, match=r"is 1,000,000,000,000 tokens, expected at most"):
        Tiling(GPT2Config(n_layer=1)).rows(10**12, 1)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("config", "tile", "batch", "length"),
    [
        (GPT2Config(n_layer=4, n_head=4, n_embd=128, block_size=64, vocab_size=256), 7, 12, 64),
        (GPT2Config(n_layer=1, n_head=1, n_embd=16, block_size=1 << 24, vocab_size=16), 1 << 12, 1, 1 << 24),
    ],
    ids=["of weight tiles and row tiles", "of pairs of row tiles"],
)
def test_a_step_of_absurdly_many_operations_is_refused_everywhere_before_it_is_recorded(
    config: GPT2Config, tile: int, batch: int, length: int
) -> None:
    sentence = rf"of edge {tile} makes [\d,]+ operations forward, expected at most 1,048,576; choose a larger tile"
    with pytest.raises(ValueError, match=sentence):
        Tiling(config, tile).rows(batch, length)
    with pytest.raises(ValueError, match="operations forward"):
        plan_step(config, Work(batch_size=batch, seq_len=length, tile=tile), Machine(device="cpu"))


def test_a_refusal_depends_on_the_number_of_operations_in_a_program() -> None:
    config = GPT2Config(n_layer=3, n_head=4, n_embd=64, block_size=64, vocab_size=256)
    tiling = Tiling(config, 16)
    rows = tiling.rows(4, 64)
    weights, pairs = tiling.count * len(rows), 3 * 4 * sum(len(row.keys) for row in rows)
    forward = len(record("loss", Parameters(config, tiling), rows))
    assert 0.8 * forward < weights + pairs < 1.2 * forward


@pytest.mark.parametrize("name", sorted(STANDARD))
@pytest.mark.parametrize("grain", [FINE, COARSE], ids=["fine", "coarse"])
def test_published_models_with_default_tiles_are_not_refused(name: str, grain: Grain) -> None:
    assert len(Tiling(GPT2Config.named(name), None, grain).rows(32, 1024, 4)) > 0


def test_the_largest_edge_has_a_floor_and_larger_ones_are_refused() -> None:
    config = GPT2Config(n_layer=1, n_head=1, n_embd=4, block_size=8, vocab_size=5)
    for grain in (FINE, COARSE):
        assert floor_demand(config, MOST_EDGE, grain).floor_nbytes > 0
    with pytest.raises(ValueError, match=f"tile is {MOST_EDGE + 1}, expected"):
        Tiling(config, MOST_EDGE + 1)
