"""Caps that are cut again for a share of an engine, where that fails half way. What a share may have is tests/test_share.py."""

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.ops import fill
from asynctile.share import runtime_of
from tests.matmul import Matmul

ALL = 3 * 16 * Matmul().nbytes  # what its tiles take


async def prepared(engine):
    work = Matmul()
    await work.prepare(engine)
    await work.run(engine)
    return work


async def test_an_engine_whose_tiles_could_not_be_cut_again_behind_a_share_still_computes(monkeypatch):
    """What its device was packed for is gone by then."""
    async with Engine("emulated", device_memory=ALL, host_memory=4 * ALL) as engine:
        other = await prepared(engine)
        share = engine.share(device_memory=ALL // 2, host_memory=ALL // 4)
        await share.__aenter__()
        gone = await prepared(engine)
        await gone.run(engine)
        assert runtime_of(engine).tiers.top.arena.packed
        await runtime_of(engine).release(gone.standing())

        async def drain():
            raise DeviceError("a write-back failed")

        monkeypatch.setattr(runtime_of(engine).tiers.caps.run_ahead, "drain", drain)
        with pytest.raises(DeviceError, match="a write-back failed"):
            await share.__aexit__(None, None, None)
        monkeypatch.undo()
        await runtime_of(engine).launch(fill(other.tiles["c"][0, 0], 2.0))
        assert (await runtime_of(engine).read(other.tiles["c"][0, 0]) == 2).all()
        await other.run(engine)
        assert np.allclose(await other.result(engine), other.a @ other.b, atol=1e-3)
