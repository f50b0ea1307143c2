"""The trace of a step that only the virtual clock ran: the format of real traces, and a span that says that nothing ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynctile.measure.costs import EntryCosts
from asynctile.measure.simulated_trace import STEP, write_simulated
from asynctile.measure.virtual import Timeline
from asynctile.program.operation import Operation
from asynctile.schedule.rates import CORES
from asynctile.schedule.schedule import Schedule
from tests.measure.test_virtual import schedule_of
from tests.measure.trace_format import problems, tracks_of


def clock_of(schedule: Schedule, cores: int, devices: int) -> Timeline:
    return EntryCosts(rates=CORES, cores=cores, devices=devices).timeline(schedule)


@pytest.mark.parametrize(("device", "replicas", "update", "spill", "cores", "tracks"), [
    ("emulated", 1, "device", False, 2, {"compute-0", "compute-1", "upload-0", "download-0"}),
    ("emulated*2", 2, "host", False, 2, {"compute:0-0", "compute:1-0", "upload:1-0", "pass:1-0", "host-0"}),
    ("cpu", 1, "auto", True, 3, {"compute-2", "spill-0"}),
])  # fmt: skip
def test_every_entry_is_a_span_at_its_time_on_a_track_of_its_own(
    device: str, replicas: int, update: str, spill: bool, cores: int, tracks: set[str], tmp_path: Path
) -> None:
    schedule = schedule_of(device, replicas=replicas, update=update, spill=spill)
    clock, path = clock_of(schedule, cores, replicas), tmp_path / "trace.json"
    count = write_simulated(str(path), schedule, clock)
    events = json.loads(path.read_text())
    assert len(events) == count and problems(events) == []
    assert tracks <= set(tracks_of(events)) and {"steps", "phases", "layers"} <= set(tracks_of(events))
    spans = [event for event in events if event["ph"] == "X" and event["cat"] in ("kernel", "copy")]
    assert sorted(span["ts"] for span in spans) == pytest.approx(sorted(1e6 * begin for begin in clock.begins), abs=2e-3)
    ends = sorted(span["ts"] + span["dur"] for span in spans)
    assert ends == pytest.approx(sorted(1e6 * end for end in clock.ends), abs=4e-3)
    kernels = [entry.what.kernel for entry in schedule.entries if isinstance(entry.what, Operation)]
    assert sorted(span["name"] for span in spans if span["cat"] == "kernel") == sorted(kernels)
    (step,) = [event for event in events if event.get("cat") == "step"]
    assert step["name"] == STEP == "step, simulated: nothing ran" and step["args"]["simulated"] is True
    assert step["dur"] == pytest.approx(clock.seconds * 1e6, abs=1e-3)
    if spill:
        assert {"read", "write"} <= {span["name"].partition(" ")[0] for span in spans}
