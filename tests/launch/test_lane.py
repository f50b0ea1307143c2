"""The state after an operation that could not be enqueued: every tile is as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.ops import copy, fill, gemm
from asynctile.share import runtime_of
from asynctile.storage.residency import ABSENT, STORED
from asynctile.storage.tile import Tile
from tests.by_hand import NBYTES, SHAPE, prepared, program_of, standing

#: Three slots where operations run, and RAM or a folder below.
PLACES = {"cpu": {"host_memory": 3 * NBYTES}, "emulated": {"device_memory": 3 * NBYTES}}


@asynccontextmanager
async def full_of_others(device: str, folder: Path) -> AsyncIterator[tuple[Engine, list[Tile], dict[Tile, np.ndarray]]]:
    """Open an engine with six tiles that have bytes; the last three are where operations run."""
    spill: dict[str, Any] = {"spill": folder} if device == "cpu" else {}
    async with Engine(device, **PLACES[device], **spill) as engine:
        tiles = standing(*"abcxyz")
        bytes_of = await prepared(engine, program_of(copy(tiles[0], tiles[1])), tiles)
        await runtime_of(engine).read_all(tiles[3:])
        yield engine, tiles, bytes_of


def state(engine: Engine, tile: Tile) -> Any:
    return runtime_of(engine).tiers.top.of(tile).state


@pytest.mark.parametrize("device", PLACES)
async def test_a_tile_to_be_overwritten_keeps_its_bytes_if_the_device_refuses_the_operation(device, tmp_path):
    async with full_of_others(device, tmp_path) as (engine, tiles, bytes_of):
        a, b, c = tiles[:3]
        assert state(engine, c) is STORED
        with pytest.raises(KeyError):
            await runtime_of(engine).launch(replace(gemm(a, b, c), kernel="no such kernel"))
        assert state(engine, c) is STORED
        for tile in tiles:
            assert np.array_equal(await runtime_of(engine).read(tile), bytes_of[tile])


@pytest.mark.parametrize("device", PLACES)
async def test_an_unwritten_tile_is_still_waited_for_if_its_operation_was_refused(device, tmp_path):
    async with full_of_others(device, tmp_path) as (engine, _, _):
        out = Tile("out", SHAPE, persistent=True)
        with pytest.raises(KeyError):
            await runtime_of(engine).launch(replace(fill(out, 1.0), kernel="no such kernel"))
        assert state(engine, out) is ABSENT
        with pytest.raises(Exception, match="out was never written"):
            await runtime_of(engine).read(out)
        await runtime_of(engine).launch(fill(out, 2.0))
        assert (await runtime_of(engine).read(out) == 2).all()


@pytest.mark.parametrize("device", PLACES)
async def test_a_failed_load_leaves_the_tile_beside_it_that_was_to_be_overwritten(device, tmp_path, monkeypatch):
    async with full_of_others(device, tmp_path) as (engine, tiles, bytes_of):
        a, b = tiles[:2]
        link = runtime_of(engine).tiers.top.link
        monkeypatch.setattr(link, "read", lambda *_: 1 / 0)
        operation = replace(copy(a, b), operands=(b, a), access="wr")
        with pytest.raises(ZeroDivisionError):
            await runtime_of(engine).launch(operation)
        monkeypatch.undo()
        assert state(engine, a) is state(engine, b) is STORED
        assert np.array_equal(await runtime_of(engine).read(b), bytes_of[b])
