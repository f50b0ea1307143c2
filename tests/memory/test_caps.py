"""Caps that are divided anew for a share of an engine, where that fails half way.

tests/test_share.py tests what a share may have.
"""

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.ops import fill
from asynctile.share import runtime_of
from tests.matmul import Matmul

ALL = 3 * 16 * Matmul().nbytes  # all tiles of the work


async def prepared(engine):
    work = Matmul()
    await work.prepare(engine)
    await work.run(engine)
    return work


async def test_an_engine_still_computes_if_its_tiles_could_not_be_divided_again_after_a_share(monkeypatch):
    """The program for which its device was packed is gone by then."""
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
