"""A trace during recording: its record of steps on an engine, that nothing grows, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.measure import trace as tracing
from asynctile.measure import trace_file
from asynctile.measure.trace import Trace
from asynctile.streams.recorder import Ran, Recorder
from tests.cuda.build import missing
from tests.measure.full_disk import fill_disk
from tests.measure.trace_format import problems, spans_of, tracks_of
from tests.settle import HANG_S

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=64)
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 16))
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stalls.py"


async def trained(engine: Engine, steps: int = 1) -> Trainer:
    trainer = Trainer(await GPT2.create(engine, CONFIG, seed=1, tile=16))
    for _ in range(steps):
        await trainer.step(TOKENS, TOKENS)
    return trainer


def read(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    assert problems(events) == []
    return events


def of_kind(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category and event["ph"] == "X"]


def said_by_the_example(path: Path) -> list[str]:
    done = subprocess.run([sys.executable, EXAMPLE, path], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_example_without_a_trace_says_how_to_call_it() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "python examples/stalls.py trace.json" in done.stderr


async def test_steps_over_three_tiers_are_traced_from_kernels_to_the_causes_of_stalls(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    caps = {"device_memory": "64KiB", "host_memory": "160KiB", "spill": tmp_path / "spill", "link_rate": "20MiB"}
    async with Engine("emulated", **caps) as engine:  # type: ignore[arg-type]
        trainer = await trained(engine)
        assert not engine.is_traced
        engine.start_trace(tmp_path / "t.json")
        assert engine.is_traced
        before = engine.statistics()
        reports = [await trainer.step(TOKENS, TOKENS) for _ in range(2)]
        after, threads = engine.statistics(), len(os.sched_getaffinity(0))
        summary = engine.stop_trace()
        assert not engine.is_traced
        assert (await trainer.step(TOKENS, TOKENS)).played
    events = read(tmp_path / "t.json")
    assert (summary.path, summary.lost, summary.events) == (str(tmp_path / "t.json"), 0, len(events))
    names = tracks_of(events)
    assert names[:4] == ["steps", "phases", "layers", "compute stalls"] and "upload" in names and "spill-0" in names
    assert [(step["name"], step["args"]["loss"]) for step in of_kind(events, "step")] == [
        (f"step {report.step}", report.loss) for report in reports
    ]
    phases = [event["name"] for event in of_kind(events, "phase")]
    assert phases == ["forward", "head", "backward and update"] * 2
    layers = [name for name, _ in groupby(event["name"].split(" rows")[0] for event in of_kind(events, "layer"))]
    there = ["embedding", "h.0", "h.1", "head"]
    assert layers == [name for name, _ in groupby([*there, *there[-2::-1]] * 2)]
    kernels = of_kind(events, "kernel")
    assert len(kernels) == after.operations - before.operations
    assert all(kernel["args"]["tiles"] for kernel in kernels)
    copies = of_kind(events, "copy")
    uploaded = sum(copy["args"]["bytes"] for copy in copies if copy["name"].startswith("upload "))
    assert uploaded == after.uploaded_bytes - before.uploaded_bytes
    assert {copy["name"].split()[0] for copy in copies} == {"upload", "download", "read", "write", "copy"}  # by its schedule
    stalls = of_kind(events, "stall")
    # the rest of the stall is the time that threads took to wake up
    assert 0 < sum(stall["args"]["idle_us"] for stall in stalls) / 1e6 / threads <= after.stall_s - before.stall_s + 1e-6
    operations = {"copy", *(kernel["name"] for kernel in kernels)}
    tiles = {copy["args"]["tile"].split()[0] for copy in copies}
    assert {re.split("[( ]", stall["args"]["operation"])[0] for stall in stalls} <= operations
    assert {stall["args"]["tile"] for stall in stalls} <= tiles
    assert any(event["ph"] == "C" and event["args"].keys() == {"device", "RAM", "spill"} for event in events)
    lines = said_by_the_example(tmp_path / "t.json")
    most = max(tiles, key=lambda tile: sum(stall["args"]["idle_us"] for stall in stalls if stall["args"]["tile"] == tile))
    assert f" ms for {most}, mostly " in lines[1]


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.usefixtures("soft_gpu")
async def test_a_gpu_is_traced_in_the_same_way_by_events_on_its_streams(tmp_path: Path) -> None:
    async with Engine("cuda:0", device_memory="96KiB") as engine:
        trainer = await trained(engine)
        engine.start_trace(tmp_path / "t.json")
        await trainer.step(TOKENS, TOKENS)
        engine.stop_trace()
    events = read(tmp_path / "t.json")
    assert tracks_of(events)[:5] == ["steps", "phases", "layers", "compute stalls", "compute"]
    stalls = of_kind(events, "stall")
    assert stalls and all(stall["args"]["waits_for"].startswith(("upload", "download", "unpin")) for stall in stalls)
    # By the GPU's own clock: on a busy machine it is behind that of the host, by which steps are timed.
    ends = [span["ts"] + span["dur"] for spans in spans_of(events).values() for span in spans if span.get("cat") != "stall"]
    assert sum(stall["dur"] for stall in stalls) <= max(ends)


async def test_start_trace_and_write_trace_write_the_whole_record_as_often_as_wanted(tmp_path: Path) -> None:
    engine = Engine("cpu", host_memory="16MiB")
    with pytest.raises(ValueError, match="no trace was started"):
        engine.write_trace(tmp_path / "none.json")
    with pytest.raises(ValueError, match="no trace was started"):
        engine.stop_trace()
    engine.start_trace()  # before it is open
    async with engine:
        trainer = await trained(engine)
        engine.write_trace(tmp_path / "one.json")
        await trainer.step(TOKENS, TOKENS)
        engine.write_trace(tmp_path / "two.json")
    engine.write_trace(tmp_path / "three.json")
    one, two, three = (len(read(tmp_path / f"{name}.json")) for name in ("one", "two", "three"))
    assert one < two <= three


async def test_only_one_trace_runs_at_a_time(tmp_path: Path) -> None:
    async with Engine("cpu", host_memory="16MiB") as engine:
        engine.start_trace()
        engine.start_trace()  # restarted, as always
        with pytest.raises(ValueError, match="a trace of this engine goes on, in a file without a name"):
            engine.start_trace(tmp_path / "a.json")
        engine.stop_trace()
        engine.start_trace(tmp_path / "a.json")
        for path in (None, tmp_path / "b.json"):
            with pytest.raises(ValueError, match=r"goes on, in .*a\.json: call stop_trace\(\)"):
                engine.start_trace(path)
        with pytest.raises(ValueError, match="is the file that this trace is written to"):
            engine.write_trace(tmp_path / "a.json")
        engine.stop_trace()
        with pytest.raises(FileNotFoundError):
            engine.start_trace(tmp_path / "nowhere" / "a.json")
        assert not engine.is_traced


async def test_a_full_disk_ends_the_trace_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill_disk(monkeypatch, 20_000)
    async with Engine("cpu", host_memory="16MiB") as engine:
        engine.start_trace(tmp_path / "t.json")
        trainer = await trained(engine)
        while engine.is_traced:
            await trainer.step(TOKENS, TOKENS)
        assert [(await trainer.step(TOKENS, TOKENS)).played for _ in range(3)][-1]
        assert "has ended early, and the traced work goes on: [Errno 28] No space left" in caplog.text
        with pytest.raises(OSError, match=r"No space left.*t\.json"):
            engine.stop_trace()
        monkeypatch.undo()
        engine.start_trace(tmp_path / "t.json")
        engine.stop_trace()
    assert read(tmp_path / "t.json") == []


def ran(number: int) -> Ran:
    return Ran("compute", "compute", "f", f"work {number}", 0.0, float(number), number + 0.5, None)


def test_a_slow_disk_costs_events_and_the_trace_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "Recorder", lambda: Recorder(most=10))
    go, append = threading.Event(), trace_file.TraceFile.append
    monkeypatch.setattr(trace_file.TraceFile, "append", lambda *args: go.wait(HANG_S) and append(*args))
    trace = Trace((), str(tmp_path / "t.json"), dict)
    for number in range(1000):
        trace.recorder.put(ran(number))
    go.set()
    summary = trace.stop()
    events = read(tmp_path / "t.json")
    shown = [event for event in events if event["ph"] == "X"]
    assert summary.lost > 900 and len(shown) + summary.lost == 1000
    (told,) = [event["args"]["lost"] for event in events if event["ph"] == "i"]
    assert told == summary.lost


def test_a_fault_of_the_thread_ends_the_trace_with_a_sentence(tmp_path: Path) -> None:
    trace = Trace((), str(tmp_path / "t.json"), lambda: {"RAM": 1 / 0})
    trace.recorder.put(ran(1))
    with pytest.raises(OSError, match="the trace is not complete: ZeroDivisionError"):
        trace.stop()
    assert [event["name"] for event in read(tmp_path / "t.json") if event["ph"] == "X"] == ["f work 1"]


KILLED = """
import asyncio, sys
import numpy as np
from asynctile import Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
async def main():
    async with Engine("cpu", host_memory="16MiB") as engine:
        trainer = Trainer(await GPT2.create(engine, GPT2Config(n_layer=1, n_head=1, n_embd=16, block_size=8, vocab_size=64)))
        engine.start_trace(sys.argv[1])
        for step in range(10**6):
            await trainer.step(np.zeros((1, 8), int), np.zeros((1, 8), int))
            print(step, flush=True)
asyncio.run(main())
"""


def test_the_file_of_a_killed_process_can_be_opened(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "t.json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 3 and (tmp_path / "t.json").stat().st_size > 10_000:
                break
        process.send_signal(signal.SIGKILL)
    # A process killed during a write leaves half a line at the end. Viewers skip it, as they accept a file without its end.
    events = json.loads((tmp_path / "t.json").read_text().rpartition(",\n")[0] + "]")
    assert of_kind(events, "kernel") and of_kind(events, "step")
