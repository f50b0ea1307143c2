"""Another commit's package measured beside this one: each process measures its own side, in alternating order.

Errors end the processes. The trees are packages of a few lines, because no real measurement is needed here.
"""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

#: A side writes its tree into a log, which shows the order over both processes, and prints text that must not be taken for an
#: answer. `demand_of` and `Engine.kernels` have other names in the old tree.
BENCH = """
from contextlib import asynccontextmanager
from asynctile.engine import Engine
from asynctile.storage.tile import Tile
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.share import runtime_of

@asynccontextmanager
async def opened(options):
    async def side():
        print("from the side")
        with open(options.log, "a") as log:
            log.write(demand_of() + "\\n")
        return runtime_of(Engine()).device.kernels[demand_of()]
    async def broken():
        raise ZeroDivisionError("a side that ends its process")
    yield {"first": side, "second": side, "third": side} if not options.broken else {"broken": broken}
    with open(options.log, "a") as log:
        log.write("closed\\n")
"""
KERNELS = "{'old': 10.0, 'new': 11.0}"
ENGINES = {
    "old": f"class Engine: _device = type('Device', (), {{'kernels': {KERNELS}}})",
    "new": f"class Engine: runtime = type('Runtime', (), {{'device': type('Device', (), {{'kernels': {KERNELS}}})}})",
}
NAMES = {"operation": "Operation = None", "program": "Program = None"}


def tree_of(folder: Path, which: str) -> Path:
    """Return a checkout whose package says which tree it is, with modules in the old or in today's places."""
    package = folder / which / "asynctile"
    inner, needs = (package, "demand.py") if which == "old" else (package / "program", "needs.py")
    inner.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "engine.py").write_text(ENGINES[which])
    for name, text in NAMES.items():
        (inner / f"{name}.py").write_text(text)
    name = "measure" if which == "old" else "demand_of"
    (inner / needs).write_text(f"def {name}(): return {which!r}")
    (package / "storage").mkdir()
    (package / "storage" / "tile.py").write_text("Tile = None")
    if which == "new":
        (package / "runtime.py").touch()
        (package / "share.py").write_text("def runtime_of(engine): return engine.runtime")
    else:
        (package / "handle.py").write_text("Handle = None")
    (folder / which / "fake.py").write_text(BENCH)
    return folder / which


@pytest.fixture
def against(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = bench("against")
    monkeypatch.setattr(module, "ROOT", tree_of(tmp_path, "new"))
    monkeypatch.setattr(bench("common"), "RESULTS", tmp_path / "results")
    tree_of(tmp_path, "old")
    return module


async def test_old_and_new_alternate_for_every_case_and_each_start_begins_with_the_other(against: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = Namespace(against=tmp_path / "old", starts=6, rounds=2, broken=False, write=True, log=str(log))
    bounds = {"first": against.Bound(1), "second": against.Bound(5, percent=True)}
    await against.compare("fake", "Which?", options, "us", bounds, {"model": "none"})
    there, back = ["old", "new"] * 3, ["new", "old"] * 3
    once, other = [*there, *there, *back, "closed", "closed"], [*there, *back, *there, "closed", "closed"]
    assert log.read_text().split() == (once + other) * 3
    found = json.loads((tmp_path / "results" / "fake_against.json").read_text())
    assert found["configuration"]["old"] == found["configuration"]["new"] == "unknown"
    numbers = [10.0, 11.0, *[1.0] * 3, *[10.0] * 3]
    assert found["tables"][0]["rows"] == [
        ["first", "us", *numbers, "at most 1 us more: met"],
        ["second", "us", *numbers, "at most 5 % more: MISSED"],
        ["third", "us", *numbers, "no loss: MISSED"],
    ]


async def test_too_few_starts_for_an_interval_measure_nothing(against: Any, tmp_path: Path) -> None:
    options = Namespace(against=tmp_path / "old", starts=5, log=str(tmp_path / "log"))
    with pytest.raises(SystemExit, match="--starts 5 is too few for an interval of 95%: give at least 6"):
        await against.compare("fake", "", options, "us", {}, {})
    assert not (tmp_path / "log").exists()


async def measured(against: Any, tree: Path, side: str, **options: Any) -> float:
    """Return the result of a process for `tree`."""
    async with against.worker(tree, "fake", options) as found:
        await found.ready()
        return float(await found.measure(side))


async def test_a_process_that_ends_before_its_time_is_named(against: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"the process for \S+old ended with status 1; its error is printed above"):
        await measured(against, tmp_path / "old", "broken", broken=True, log=str(tmp_path / "log"))


async def test_an_error_ends_the_process_too(against: Any, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stack.push(lambda kind, error, trace: kind is ZeroDivisionError)
        old = await stack.enter_async_context(against.worker(tmp_path / "old", "fake", {"broken": False}))
        await old.ready()
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match=f"ended with status -{signal.SIGKILL:d};"):
        await old.ready()


async def test_a_folder_without_the_package_is_refused(against: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "fake.py").write_text(BENCH)
    with pytest.raises(RuntimeError, match=r"imported \S+; name a checkout that contains asynctile/"):
        await measured(against, tmp_path / "empty", "first", broken=False)
