"""One miss of a weight tile passes the files that CONTRIBUTING.md follows it through, and no others."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from asynctile import Engine
from tests.matmul import Matmul

ROOT = Path(__file__).resolve().parents[2]
#: Where the miss is decided, where its bytes are asked for, and where they move: file and function.
ENDS = {
    ("asynctile/run/issuer.py", "_perform"), ("asynctile/memory/spill_link.py", "carry"),
    ("asynctile/device/emulated.py", "upload"), ("storage/container.py", "preadv"), ("asynctile/device/emulated.py", "copy"),
}  # fmt: skip
MOST = 10


class Followed:
    """The files on the way to each of ENDS, on whatever thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.ends: set[tuple[str, str]] = set()
        self._is_on = False

    def look(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_on or event != "call" or (end := (_file(frame), frame.f_code.co_name)) not in ENDS:
            return
        passed: set[str] = set()
        at: FrameType | None = frame
        while at is not None:
            passed |= {file} if (file := _file(at)) is not None else set()
            at = at.f_back
        self.ends.add(end)  # type: ignore[arg-type]
        self.files |= passed

    @contextmanager
    def on(self) -> Iterator[None]:
        """On this thread, and on those that began while `threading` knew of it."""
        before = sys.getprofile()
        self._is_on = True
        sys.setprofile(self.look)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._is_on = False


def _file(frame: FrameType) -> str | None:
    """In the repository, without tests."""
    path = Path(frame.f_code.co_filename)
    if not path.is_absolute() or ROOT not in path.parents:
        return None
    file = path.relative_to(ROOT).as_posix()
    file = re.sub("^asynctile/(storage|layers)/", r"\1/", file)
    return file if file.startswith(("asynctile/", "storage/", "layers/")) else None


def told() -> list[str]:
    """The files that the section names, in its order."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## A miss, followed")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, flags=re.MULTILINE)


async def test_a_miss_passes_the_files_that_contributing_follows_it_through(tmp_path: Path) -> None:
    work, followed = Matmul(), Followed()
    threading.setprofile(followed.look)
    try:
        engine = Engine("emulated", device_memory=6 * work.nbytes, host_memory=7 * 4096, spill=tmp_path)
        await engine.__aenter__()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    try:
        engine.plays = False
        await work.prepare(engine)
        await work.run(engine)

        async def job() -> Any:
            async with engine.exclusive():
                run = await engine.start(work.program, work.demand, {})
                with followed.on():
                    await run.finish()

        await engine.call(job())
    finally:
        await engine.__aexit__(None, None, None)
    assert followed.ends == ENDS
    names = told()
    assert len(names) == len(set(names)) <= MOST
    assert set(names) == followed.files - {"asynctile/loop/thread.py"}, "the thread that all of it runs on"
