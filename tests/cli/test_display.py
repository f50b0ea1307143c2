"""What is shown while a run works, on a terminal and into a file."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asynctile import Statistics
from asynctile.cli.display import PlainDisplay, TerminalDisplay, open_display


def report(step: int) -> Any:
    return SimpleNamespace(step=step, loss=2.5, tokens=1000, step_s=0.5, stall_s=0.1)


STATISTICS = Statistics(
    device="emulated", device_memory_bytes=8 << 20, device_used_bytes=6 << 20, device_peak_bytes=8 << 20,
    host_memory_bytes=None, host_used_bytes=3 << 20, host_peak_bytes=3 << 20, spill_limit_bytes=None,
    spill_used_bytes=0, spill_peak_bytes=0, uploaded_bytes=0, downloaded_bytes=0, spill_read_bytes=0,
    spill_written_bytes=0, spill_retries=0, operations=0, stall_s=0.0,
)  # fmt: skip


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, legacy_windows=False)


def said(display_console: Console) -> str:
    assert isinstance(display_console.file, io.StringIO)
    return display_console.file.getvalue()


def test_plain_lines_are_few_and_whole() -> None:
    out = console(False)
    with open_display(out, 50, 0) as display:
        assert isinstance(display, PlainDisplay)
        display.watch(lambda: STATISTICS)
        display.note("[a] note")
        for step in range(1, 51):
            display.step(report(step))
    lines = said(out).splitlines()
    assert lines[0] == "[a] note"
    assert [line.split("  ")[0] for line in lines[1:]] == ["step 1 of 50", "step 50 of 50"]
    for word in ("loss 2.5000", "2,000 tokens/s", "left", "stalled 20%"):
        assert word in lines[1]
    assert lines[1].endswith("emulated 6.00 MiB of 8.00 MiB (peak 8.00 MiB)  RAM 3.00 MiB (peak 3.00 MiB)")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_stall_that_nobody_has_measured_is_not_said_to_be_none(terminal: bool) -> None:
    said_of = {}
    for stall_s in (0.0, math.nan):
        out = console(terminal)
        with open_display(out, 2, 0) as display:
            display.step(SimpleNamespace(**{**vars(report(1)), "stall_s": stall_s}))
            if isinstance(display, TerminalDisplay):
                out.print(display._draw())
        said_of[stall_s] = said(out)
    assert "stalled" in said_of[0.0] and "stalled" not in said_of[math.nan]


def test_a_step_without_a_line_asks_for_nothing() -> None:
    asked: list[None] = []

    def statistics() -> Statistics:
        asked.append(None)
        return STATISTICS

    out = console(False)
    with open_display(out, 50, 0) as display:
        display.watch(statistics)
        for step in range(1, 50):
            display.step(report(step))
    assert len(said(out).splitlines()) == len(asked) == 1


def test_time_left_is_not_that_of_making_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("asynctile.cli.display.time", SimpleNamespace(monotonic=lambda: clock.now))
    out = console(False)
    with open_display(out, 101, 0) as display:
        clock.now += 60.0
        display.step(report(1))
    assert "0:50 left" in said(out)


def test_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("asynctile.cli.display.time", SimpleNamespace(monotonic=lambda: clock.now))
    out = console(False)
    with open_display(out, 100, 0) as display:
        for step in range(1, 31):
            clock.now += 1.0
            display.step(report(step))
    lines = said(out).splitlines()
    assert [line.split()[1] for line in lines] == ["1", "6", "11", "16", "21", "26"]
    assert "1:14 left" in lines[-1]


def test_bars_on_a_terminal() -> None:
    out = console(True)
    with open_display(out, 50, 10) as display:
        assert isinstance(display, TerminalDisplay)
        display.watch(lambda: STATISTICS)
        display.stage("reading the text")
        display.step(report(11))
        display.note("a note")
    text = said(out)
    for word in ("11 of 50", "emulated", "6.00 MiB of 8.00 MiB", "stalled", "20% of the step", "a note"):
        assert word in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is given back
