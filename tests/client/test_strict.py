"""The whole face on a loop that is watched: nothing blocks it, and python -X dev has nothing to say.

A cheap part of `make strict`, which runs the tests of the public face so (tests/strict.py).
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
from tests.strict import nothing_blocks

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_nothing_blocks_the_callers_loop_or_the_engines(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with nothing_blocks(), asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(whole_face.main(tmp_path)).device == "emulated"


@pytest.mark.parametrize("where", ["asynctile.layers.model.check_tokens", "asynctile.layers.model.token_inputs"])
async def test_what_blocks_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first on the caller's loop, the second on the engine's."""
    async with Engine("cpu", host_memory="16MiB") as engine:
        model = await GPT2.create(engine, whole_face.CONFIG)
        monkeypatch.setattr(where, lambda *args, **more: time.sleep(0))
        with nothing_blocks(), pytest.raises(BlockingError, match=r"time\.sleep"):
            await model.logits([[1, 2]])


def test_development_mode_has_nothing_to_say(tmp_path: Path) -> None:
    """No resource left open, no coroutine unawaited, no loop called from another thread. Slow callbacks are the machine's."""
    client = Path(whole_face.__file__)
    command = [sys.executable, "-X", "dev", "-W", "error", client, tmp_path]
    debug = os.environ | {"PYTHONASYNCIODEBUG": "1", "PYTHONPATH": str(client.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=debug)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, said) == (0, [])
