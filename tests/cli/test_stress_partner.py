"""The forking process beside stress: it ends together with everything that it has forked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from asynctile.cli.stress.partner import Partner

#: Forks a process with a session of its own, which writes for ever, and answers with its number.
_FORKING = """
import os, sys
folder = sys.argv[1]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.setsid()
        while True:
            os.makedirs(f"{folder}/a/b", exist_ok=True)
            open(f"{folder}/a/b/c", "w").close()
    print('{"child": %d}' % child, flush=True)
"""


async def test_a_process_forked_into_another_session_stops_writing_once_it_is_left(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        async with Partner(("-c", _FORKING), folder) as partner:
            child = (await partner.ask(1))["child"]
            while not (folder / "a" / "b" / "c").exists():
                os.sched_yield()
        status = Path(f"/proc/{child}/status")
        assert not status.exists() or "Z (zombie)" in status.read_text()
        shutil.rmtree(folder)
        assert not folder.exists()
