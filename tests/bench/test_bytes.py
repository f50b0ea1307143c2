"""Bytes of steps against the least possible, under one cap (bench_bytes.py) and under many (bench_curve.py)."""

from __future__ import annotations

from typing import Any

import pytest

from asynctile.errors import BudgetError
from asynctile.layers import GPT2Config


@pytest.fixture
def tiny(bench: Any) -> Any:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=200)
    return bench("counted").Model(name="tiny", config=config, batch=2, tile=64)


@pytest.mark.parametrize("update", ["auto", "device"])
def test_counted_bytes_lie_between_the_least_and_the_target(tiny: Any, update: str) -> None:
    demand = tiny.needs()
    cap = (demand.floor_nbytes + demand.resident_nbytes) // 2
    found = tiny.counted(cap, update)
    assert 0 < found.least.uploaded_nbytes <= found.traffic.uploaded_nbytes
    assert 0 < found.least.downloaded_nbytes <= found.traffic.downloaded_nbytes
    assert found.traffic.device_peak_nbytes <= cap
    with pytest.raises(BudgetError):
        tiny.counted(demand.floor_nbytes - 1, update)


def test_every_figure_of_a_row_stands_in_its_column(bench: Any, tiny: Any) -> None:
    found = bench("bench_bytes")
    cap = tiny.needs().resident_nbytes // 2
    row = found.figures(tiny, 0.5, cap)
    assert len(row) == len(found.COLUMNS)
    counted, at = tiny.counted(cap, "auto"), found.COLUMNS.index
    assert row[at("up GB")] == counted.traffic.uploaded_nbytes / 1e9
    assert row[at("up GB") + 1] == pytest.approx(counted.traffic.uploaded_nbytes / counted.least.uploaded_nbytes)
    assert row[at("down GB")] == counted.traffic.downloaded_nbytes / 1e9
    assert row[at("target")].startswith("at most 1.15")
    assert set(found.figures(tiny, 0.0, 1)[5:]) == {None}, "a cap below the floor"


def test_a_curve_has_caps_at_which_nearly_all_fits_and_its_largest_rise(bench: Any, tiny: Any) -> None:
    found = bench("bench_curve")
    assert found.caps(100, 10_000, 3) == [100, 5050, 9900, 9990, 10_000, 10_000 + (1 << 26)]
    assert found.rise([10, 8, 9, 8, 3]) == 9 / 8
    assert found.rise([10, 10, 3]) == 1
    assert found.rise([10, 0, 3]) == 3
    table, wanted = found.curve(tiny, "device", 3)
    assert len(table.rows) == 6
    assert table.rows[0][3] == max(row[3] for row in table.rows)
    assert len(wanted) == 2


def test_every_model_has_a_row_for_each_cap_and_for_the_tiling_of_a_gpu(bench: Any) -> None:
    found, small = bench("bench_bytes"), bench("counted").models()["gpt2"]
    rows = [(table, model.name, share) for table, (model, share, _) in found.cases({"gpt2": small}, [0.1, 0.5])]
    for table in (found.STATES, found.ALIVE, found.FASTEST):
        assert {share for where, name, share in rows if where == table and name == "gpt2"} == {0.1, 0.5}
    assert rows[-1][1] == "make train"


def test_a_row_for_the_disk_holds_reads_against_min_of_both_memories(bench: Any) -> None:
    found = bench("bench_bytes")
    model, at = found.make_train(), found.DISK_COLUMNS.index
    row = found.disk_figures(model, 0.4, 0.6)
    assert len(row) == len(found.DISK_COLUMNS)
    assert row[at("device MB")] + row[at("RAM MB")] == pytest.approx(model.config.states_nbytes / 1e6)
    assert 0 < row[at("MIN reads MB")] <= row[at("read MB")]
    assert row[at("of MIN")] == pytest.approx(row[at("read MB")] / row[at("MIN reads MB")])
    assert row[at("target")].startswith("at most 1.25")
    assert row[at("written MB")] > 0
    assert set(found.disk_figures(model, 0.4, 0.001)[7:]) == {None}, "a cap below the floor"
