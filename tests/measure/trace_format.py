"""Violations of the Trace Event Format in a list of events, as far as a trace of asynctile uses the format.

From "Trace Event Format" (the Chromium project): every event has `ph`, one letter. `ts` and `dur` are microseconds, `pid` and
`tid` numbers. By letter:

    X  a span: name, ts, dur, pid, tid. Two spans of one (pid, tid) are nested or disjoint.
    M  metadata: pid, args; process_name and thread_name (args.name), process_labels (args.labels), process_sort_index and
       thread_sort_index (args.sort_index, a number). Metadata of a thread has a tid.
    C  counter: name, ts, pid, args with a number for each line. No tid: counters belong to a process.
    i  instant: name, ts, s of g, p and t (global, process, thread), pid, and tid for t.
    s f  a flow begins, ends: name, cat, id, ts, pid, tid. Events of one flow share name, cat and id; s is the first by ts.
       An f with bp "e" belongs to the span around it, as s always does; without, to the next span.

Perfetto's importer (google/perfetto, src/trace_processor/importers/json) demands more:

- pid and tid fit into 32 bits; it takes a string in one of them for a name.
- A span of the track is open at the time of a flow's s, and of an f with bp "e". Otherwise it counts an error
  (flow_no_enclosing_slice).
- args of a counter are numbers (json_parser_failure).

It accepts a file that is an array without its end, but not an object without its end. Of metadata it reads process_name and
thread_name, and its page sorts threads by their numbers; chrome://tracing reads all metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

_NEEDS = {
    "X": ("name", "ts", "dur", "pid", "tid"), "M": ("name", "pid", "args"), "C": ("name", "ts", "pid", "args"),
    "i": ("name", "ts", "s", "pid"), **dict.fromkeys("sf", ("name", "cat", "id", "ts", "pid", "tid")),
}  # fmt: skip
_METADATA = {"process_name": "name", "thread_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
             "thread_sort_index": "sort_index"}  # fmt: skip
#: The effect of rounding to nanoseconds, in microseconds.
_ROUNDING = 0.0015


def problems(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the violations of the format; empty if there are none."""
    wrong = [f"{problem} in {event}" for event in events for problem in _of_one(event)]
    return wrong or [*_of_tracks(events), *_of_flows(events)]


def _of_one(event: dict[str, Any]) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in _NEEDS:
        yield f"phase {phase!r}"
        return
    yield from (f"no {key}" for key in _NEEDS[phase] if key not in event)
    for key in ("ts", "dur"):
        if key in event and not (type(event[key]) in (int, float) and event[key] >= 0):
            yield f"{key} is no time"
    for key in ("pid", "tid"):
        if key in event and not (type(event[key]) is int and 0 <= event[key] < 1 << 32):
            yield f"{key} is no number of 32 bits"
    yield from (f"{key} is no text" for key in ("name", "cat") if not isinstance(event.get(key, ""), str))
    if not isinstance(event.get("args", {}), dict):
        yield "args are no object"
    elif phase == "C" and not all(type(value) in (int, float) for value in event.get("args", {}).values()):
        yield "a counter of what is no number"
    elif phase == "M":
        wanted = _METADATA.get(event["name"])
        kind = int if wanted == "sort_index" else str
        if wanted is None or type(event["args"].get(wanted)) is not kind or ("thread" in event["name"] and "tid" not in event):
            yield "metadata"
    elif phase == "i" and (event.get("s") not in ("g", "p", "t") or (event["s"] == "t" and "tid" not in event)):
        yield "the scope of an instant"


def _of_tracks(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    for track, found in spans_of(events).items():
        open_until: list[float] = []
        for span in found:
            while open_until and open_until[-1] <= span["ts"] + _ROUNDING:
                open_until.pop()
            if open_until and span["ts"] + span["dur"] > open_until[-1] + _ROUNDING:
                yield f"spans of track {track} overlap at {span}"
            open_until.append(span["ts"] + span["dur"])


def _of_flows(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    spans, flows = spans_of(events), defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "f"):
            flows[event["cat"], event["name"], event["id"]].append(event)
            around = [span for span in spans[event["pid"], event["tid"]]
                      if span["ts"] <= event["ts"] <= span["ts"] + span["dur"]]  # fmt: skip
            if not around and (event["ph"] != "f" or event.get("bp") == "e"):
                yield f"no span around {event}"
    for key, found in flows.items():
        order = "".join(event["ph"] for event in sorted(found, key=lambda event: (event["ts"], "sf".index(event["ph"]))))
        if order != "sf":
            yield f"flow {key} is {order}"


def spans_of(events: Sequence[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return X events by track, in order: the outer before the inner."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    for spans in found.values():
        spans.sort(key=lambda span: (span["ts"], -span["dur"]))
    return found


def tracks_of(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of tracks in a viewer's order, from the top."""
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [names[tid] for tid in sorted(names, key=lambda tid: order[tid])]
