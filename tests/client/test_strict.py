"""The whole public face on a watched loop: nothing blocks it, and python -X dev reports nothing.

A cheap part of `make strict`, which runs the tests of the public face in the same way (tests/strict.py).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from blockbuster import BlockingError

from asynctile import Engine
from asynctile.layers import GPT2
from tests.client import whole_face
from tests.settle import HANG_S
from tests.strict import nothing_blocks

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_nothing_blocks_the_callers_loop_or_the_engines(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with nothing_blocks(), asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(whole_face.main(tmp_path)).device == "emulated"


@pytest.mark.parametrize("where", ["asynctile.layers.model.check_tokens", "asynctile.layers.model.token_inputs"])
async def test_blocking_code_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One case blocks the caller's loop, the other the engine's."""
    async with Engine("cpu", host_memory="16MiB") as engine:
        model = await GPT2.create(engine, whole_face.CONFIG)
        monkeypatch.setattr(where, lambda *args, **more: time.sleep(0))
        with nothing_blocks(), pytest.raises(BlockingError, match=r"time\.sleep"):
            await model.logits([[1, 2]])


@pytest.mark.laws
def test_development_mode_reports_nothing(tmp_path: Path) -> None:
    """No resource stays open, no coroutine unawaited, no loop is called from another thread. Slow callbacks are not counted."""
    client = Path(whole_face.__file__)
    command = [sys.executable, "-X", "dev", "-W", "error", client, tmp_path]
    debug = os.environ | {"PYTHONASYNCIODEBUG": "1", "PYTHONPATH": str(client.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=debug)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, said) == (0, [])
