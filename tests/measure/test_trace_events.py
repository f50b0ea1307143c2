"""Messages of streams and jobs as events of a trace: tracks, names, arguments, and what an operation waited for."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from asynctile.measure.trace_events import TraceEvents
from asynctile.ops import copy, fill
from asynctile.program.program import Program
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Begun, Message, Ran, Stalled, Stepped
from tests.measure.trace_format import problems, tracks_of

A, B, C = (Tile(name, (4, 2), np.float32) for name in "abc")
USES_A, FILLS_B = copy(A, C), fill(B, 0.0)
UPLOAD = Ran("upload", "upload", "copy", A, 101.0, 102.0, 104.0, ("spill", A))


def shown(*messages: Message, start: float = 100.0) -> list[dict[str, Any]]:
    made, lines = TraceEvents(start), []
    for message in messages:
        made.add(message, lines)
    found = [json.loads(line) for line in [*lines, *made.end()]]
    assert problems(found) == []
    return found


def spans(events: list[dict[str, Any]], category: str) -> list[tuple[str, float, float]]:
    found = [event for event in events if event.get("cat") == category and event["ph"] == "X"]
    return [(event["name"], event["ts"], event["dur"]) for event in found]


def test_work_is_named_after_its_operation_and_its_tile() -> None:
    kernel = Ran("compute", "compute-1", "copy_kernel", USES_A, 0.0, 100.5, 100.75, None)
    read = Ran("spill", "spill-0", "read", A, 0.0, 101.0, 102.0, None)
    save = Ran("files", "files-0", "file_work", "x", 0.0, 101.0, 102.0, None)
    events = shown(kernel, UPLOAD, read, save)
    found = {event["name"]: event for event in events if event["ph"] == "X"}
    assert found.keys() == {"copy", "upload a", "read a", "x"}
    assert (found["copy"]["ts"], found["copy"]["dur"]) == (500000.0, 250000.0)
    assert found["copy"]["args"]["tiles"] == ["a 4x2 float32 (r)", "c 4x2 float32 (w)"]
    assert found["upload a"]["args"] == {"tile": "a 4x2 float32", "bytes": 32}
    assert tracks_of(events) == ["compute-1", "upload", "spill-0", "files-0"]


def test_work_that_began_before_the_trace_is_shown_from_the_traces_start() -> None:
    (event,) = [event for event in shown(Ran("upload", "upload", "copy", A, 0.0, 99.0, 100.5, None)) if event["ph"] == "X"]
    assert (event["ts"], event["dur"]) == (0.0, 500000.0)


@pytest.mark.parametrize(
    ("began", "copy", "words"),
    [
        (101.0, UPLOAD._replace(ready=101.1, began=101.2), "upload under way"),
        (101.0, UPLOAD._replace(began=103.5), "upload queued"),
        (99.0, UPLOAD._replace(ready=103.0, began=103.1), "upload behind read of this tile"),
        (99.0, UPLOAD._replace(ready=103.0, began=103.1, behind=("download", B)), "upload behind download of b"),
        (99.0, UPLOAD._replace(ready=103.0, began=103.1, behind=("spill", B)), "upload behind write of b"),
        (
            99.0, UPLOAD._replace(ready=103.0, began=103.0, behind=("compute", FILLS_B)),
            "upload behind fill, which still uses its slot",
        ),
        (99.0, UPLOAD._replace(ready=0.0, began=103.9, behind=None), "upload not begun"),
        (99.0, UPLOAD._replace(ready=0.0, began=0.0, ended=0.0), "upload behind read of this tile"),
        (99.0, UPLOAD._replace(stream="spill", began=100.5, ended=0.0), "read under way"),
    ],
)  # fmt: skip
def test_a_stall_names_the_waiting_work_the_tile_and_the_cause(began: float, copy: Ran, words: str) -> None:
    events = shown(UPLOAD, Stalled("compute", began, 104.0, 3.0, USES_A, 98.5, copy), start=98.0)
    (stall,) = [event for event in events if event["name"] == "waits for a"]
    assert stall["args"] == {
        "operation": "copy(a, c)", "tile": "a", "bytes": 32, "waits_for": words, "since_us": 500000.0, "idle_us": 3000000.0,
        "threads": round(3.0 / (104.0 - began), 2),
    }  # fmt: skip
    arrow = [event["ph"] for event in events if event["name"] == "arrives"]
    assert arrow == (["s", "f"] if copy.ended else [])


def program_of(*sections: tuple[str, str]) -> Program:
    program = Program("step")
    for phase, name in sections:
        program.section(phase, name)
        program.mark(f"{phase} {name}")
        program.add(fill(A, 0.0))
    return program


def ran_all(program: Program, start: float) -> list[Message]:
    operations = list(program.operations())
    return [Ran("compute", "compute", "fill", what, 0.0, start + n, start + n + 0.5, None) for n, what in enumerate(operations)]


def test_phases_and_layers_run_from_their_first_operation_to_that_of_the_next() -> None:
    program = program_of(("forward", "h.0"), ("forward", "h.1"), ("backward", "h.1"))
    events = shown(Begun("engine", program), *ran_all(program, 100.0), Begun("engine", program), *ran_all(program, 110.0))
    assert spans(events, "layer") == [
        ("h.0", 0.0, 1e6), ("h.1", 1e6, 1e6), ("h.1", 2e6, 0.5e6), ("h.0", 10e6, 1e6), ("h.1", 11e6, 1e6), ("h.1", 12e6, 0.5e6),
    ]  # fmt: skip
    assert spans(events, "phase") == [
        ("forward", 0.0, 2e6), ("backward", 2e6, 0.5e6), ("forward", 10e6, 2e6), ("backward", 12e6, 0.5e6),
    ]  # fmt: skip


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_spans_never_overlap_even_if_a_section_is_reported_after_the_next_one(late: int) -> None:
    """With two threads this happens: the first operation of a section is reported when it ends."""
    program = program_of(("forward", "h.0"), ("forward", "h.1"), ("backward", "h.1"), ("update", "h.0"))
    told = ran_all(program, 100.0)
    told.append(told.pop(late))
    again = Begun("engine", program), *ran_all(program, 110.0)
    assert spans(shown(Begun("engine", program), *told, *again), "layer")[-4:] == spans(shown(*again), "layer")


def test_an_interrupted_program_ends_with_its_last_work() -> None:
    program, other = program_of(("forward", "h.0"), ("backward", "h.0")), program_of(("texts", "head"))
    events = shown(Begun("engine", program), ran_all(program, 100.0)[0], Begun("engine", other), *ran_all(other, 105.0))
    assert spans(events, "phase") == [("forward", 0.0, 0.5e6), ("texts", 5e6, 0.5e6)]


def test_shares_have_their_own_tracks_above_all_streams() -> None:
    one, two = program_of(("forward", "h.0")), program_of(("forward", "h.0"))
    args = {"loss": math.nan, "lr": 0.1, "update": "skipped"}
    events = shown(Begun("engine", one), Begun("night", two), *ran_all(one, 100.0), *ran_all(two, 101.0),
                   Stepped("night", "step 7", 100.0, 102.0, args), Stepped("engine", "step 1", 100.0, 101.0, {}))  # fmt: skip
    assert tracks_of(events) == ["steps", "phases", "layers", "steps of night", "phases of night", "layers of night", "compute"]
    assert spans(events, "step") == [("step 7", 0.0, 2e6), ("step 1", 0.0, 1e6)]
    (step,) = [event for event in events if event["name"] == "step 7"]
    assert step["args"] == {"loss": "nan", "lr": "0.1", "update": "skipped"}  # JSON has no nan
