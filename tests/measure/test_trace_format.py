"""The format check used by the tests of traces refuses whatever the published format refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.measure.trace_format import problems

SPAN = {"name": "gemm", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 7}
FLOW = {"name": "arrives", "cat": "stall", "id": 1, "pid": 1, "tid": 7}
START, END = {**FLOW, "ph": "s", "ts": 1.5}, {**FLOW, "ph": "f", "bp": "e", "ts": 2.5}
NAME = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 7, "args": {"name": "compute-0"}}
COUNTER = {"name": "memory", "ph": "C", "ts": 1, "pid": 1, "args": {"RAM": 12.0}}
INSTANT = {"name": "lost", "ph": "i", "s": "p", "ts": 1, "pid": 1}
GOOD = [SPAN, {**SPAN, "ts": 1.2, "dur": 0.5}, {**SPAN, "ts": 3.0}, START, END, NAME, COUNTER, INSTANT]


def test_valid_events_have_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    "event",
    [
        {**SPAN, "ph": "Z"}, {**SPAN, "tid": "compute-0"}, {**SPAN, "pid": None}, {**SPAN, "dur": -1}, {**SPAN, "ts": "1"},
        {key: value for key, value in SPAN.items() if key != "dur"}, {**SPAN, "ts": 2.5, "dur": 2.0}, {**SPAN, "args": []},
        {**START, "id": 2}, {**END, "id": 2}, {**START, "ts": 100.0, "id": 3}, {**NAME, "args": {}},
        {**NAME, "name": "thread_colour"},
        {**COUNTER, "args": {"RAM": "12"}}, {**INSTANT, "s": "x"}, {**SPAN, "name": 3},
    ],
    ids=lambda event: f"{event.get('name', '')}-{event['ph']}",
)  # fmt: skip
def test_an_invalid_event_has_a_problem(event: dict[str, Any]) -> None:
    assert problems([*GOOD, event])
