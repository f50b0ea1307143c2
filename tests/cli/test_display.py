"""The display of a running training, on a terminal and in a file. The figures themselves are tested in test_pace.py."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asynctile import Statistics
from asynctile.cli.display import Display, PlainDisplay, TerminalDisplay, open_display
from asynctile.cli.figures import as_share, as_sizes
from asynctile.cli.pace import Ahead
from asynctile.layers.evaluation import Evaluation

EVALUATION = Evaluation(loss=2.25, perplexity=9.4877, bits_per_byte=3.2461, tokens=1000, seconds=0.5)


def report(step: int, **others: Any) -> Any:
    return SimpleNamespace(**{"step": step, "loss": 2.5, "lr": 1e-3, "step_s": 0.5, "tokens_per_s": 2000.0, "stall_s": 0.1,
                              "played": True, **others})  # fmt: skip


def ahead(steps: int, done: int = 0, **others: Any) -> Ahead:
    return Ahead(**{"steps": steps, "done": done, "validate_every": steps, "save_every": steps, "flops_per_token": 1e6,
                    **others})  # fmt: skip


STATISTICS = Statistics(
    device="emulated", device_memory_bytes=8 << 20, device_used_bytes=6 << 20, device_peak_bytes=8 << 20,
    host_memory_bytes=None, host_used_bytes=3 << 20, host_peak_bytes=3 << 20, spill_limit_bytes=None,
    spill_used_bytes=0, spill_peak_bytes=0, uploaded_bytes=0, downloaded_bytes=0, passed_bytes=0, sent_bytes=0,
    received_bytes=0, spill_read_bytes=0, spill_written_bytes=0, spill_retries=0, operations=0, stall_s=0.0,
)  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands at `now`, in seconds."""
    clock = SimpleNamespace(now=100.0)
    for module in ("display", "pace"):
        monkeypatch.setattr(f"asynctile.cli.{module}.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def console(terminal: bool, width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, legacy_windows=False)


def said(display_console: Console) -> str:
    assert isinstance(display_console.file, io.StringIO)
    return display_console.file.getvalue()


def drawn(width: int, act: Callable[[Display], object]) -> list[str]:
    """Return the lines of the final picture on a terminal of that width, without color codes."""
    out = console(True, width)
    display = TerminalDisplay(out)
    act(display)
    with out.capture() as captured:
        out.print(display)
    return [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in captured.get().splitlines()]


def test_plain_lines_are_few_and_whole(clock: SimpleNamespace) -> None:
    out = console(False)
    with open_display(out) as display:
        assert isinstance(display, PlainDisplay)
        display.note("[a] note")
        display.begin(ahead(50, flops_per_s=1e10))
        for step in range(1, 51):
            clock.now += 0.01
            display.step(report(step))
    lines = said(out).splitlines()
    assert lines[0] == "[a] note"
    assert [line.split("  ")[0] for line in lines[1:]] == ["step 1 of 50", "step 50 of 50"]
    assert lines[2].split("  ") == [
        "step 50 of 50", "0:00 left", "loss 2.5000", "smoothed 2.5000", "2,000 tokens/s", "MFU 20%", "stalled 20%",
    ]  # fmt: skip


def test_a_plain_line_stays_below_100_characters_and_drops_what_does_not_fit(clock: SimpleNamespace) -> None:
    out = console(False)
    with open_display(out) as display:
        display.begin(ahead(9_000_000, done=8_000_000, flops_per_s=1e10))
        for step in range(8_000_001, 8_000_004):
            clock.now += 5.0
            display.step(report(step, loss=1234.5678, tokens_per_s=8e8))
        display.validation(8_000_003, EVALUATION, is_best=True)
    lines = said(out).splitlines()
    assert max(map(len, lines)) < 100
    assert lines[2].split("  ")[2:] == ["loss 1234.5678", "smoothed 1234.5678", "800,000,000 tokens/s"]


@pytest.mark.parametrize("terminal", [False, True])
def test_an_unmeasured_stall_is_not_shown_as_zero(terminal: bool) -> None:
    said_of = {}
    for stall_s in (0.0, math.nan):
        out = console(terminal)
        with open_display(out) as display:
            display.begin(ahead(2))
            display.step(report(1, stall_s=stall_s))
            if isinstance(display, TerminalDisplay):
                out.print(display)
        said_of[stall_s] = said(out)
    assert "stalled" in said_of[0.0] and "stalled" not in said_of[math.nan]


def test_a_line_is_printed_every_few_seconds(clock: SimpleNamespace) -> None:
    out = console(False)
    with open_display(out) as display:
        display.begin(ahead(100))
        for step in range(1, 31):
            clock.now += 1.0
            display.step(report(step))
    lines = said(out).splitlines()
    assert [line.split()[1] for line in lines] == ["1", "6", "11", "16", "21", "26"]
    assert "left" not in lines[0], "one step says nothing of the others"
    assert "1:14 left" in lines[-1]


def test_long_work_says_how_far_it_is(clock: SimpleNamespace) -> None:
    out = console(False)
    with open_display(out) as display:
        for done in range(11):
            display.progress("validating", done, 10)
            clock.now += 1.0
        display.progress("saving step 3", 3 << 20, 4 << 20, as_share)
    assert said(out).splitlines() == ["validating: 0 of 10", "validating: 5 of 10", "validating: 10 of 10"]
    clock.now += 5.0
    display.progress("saving step 3", 3 << 20, 4 << 20, as_share)
    assert said(out).splitlines()[-1] == "saving step 3: 75%"


def test_bars_on_a_terminal() -> None:
    out = console(True)
    with open_display(out) as display:
        assert isinstance(display, TerminalDisplay)
        display.watch(lambda: STATISTICS)
        display.stage("reading the text")
        display.begin(ahead(50, done=10))
        display.step(report(11))
        display.note("a note")
    text = said(out)
    for word in ("11 of 50", "emulated", "6.00 MiB of 8.00 MiB", "stalled", "20% of the step", "a note"):
        assert word in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is given back


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_picture_is_as_wide_as_the_terminal_and_no_figure_is_cut(width: int) -> None:
    def act(display: Display) -> None:
        display.watch(lambda: STATISTICS)
        display.begin(ahead(12_000, done=10, flops_per_s=1e10))
        display.validation(10, EVALUATION, is_best=True)
        for step in range(11, 15):
            display.step(report(step))
        display.progress("tokenizing the text", 1 << 20, 3 << 20, as_sizes)
        display.stage("a stage")

    lines = drawn(width, act)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for figure in ("loss 2.5000", "smoothed 2.5000", "validation 2.2500 (step 10)", "lr 1.00e-03", "2,000 tokens/s", "MFU 20%",
                   "14 of 12,000, 0:00 left", "20% of the step", "1.00 MiB of 3.00 MiB", "a stage",
                   "6.00 MiB of 8.00 MiB (peak 8.00 MiB)"):  # fmt: skip
        assert figure in text, figure
    bars = [re.search("[━╸╺]+", line) for line in lines]
    *fixed, under_way = [len(bar[0]) for bar in bars if bar]
    assert len({*fixed}) == 1 and min(fixed[0], under_way) >= width - 52, "bars take what is left"


def test_running_work_is_a_bar_until_it_is_done() -> None:
    def act(done: int) -> Callable[[Display], object]:
        return lambda display: [display.progress("saving step 3", now, 4, as_share) for now in (1, done)]

    assert [line for line in drawn(80, act(2)) if "saving step 3" in line and "50%" in line]
    assert not any("saving" in line for line in drawn(80, act(4)))


def test_a_validation_leaves_a_sentence() -> None:
    out = console(False, 200)
    with open_display(out) as display:
        display.begin(ahead(50))
        display.validation(0, EVALUATION, is_best=True)
        display.validation(5, EVALUATION, is_best=True)
    assert said(out).splitlines() == [
        "validation before the first step: loss 2.2500, perplexity 9.49, 3.2461 bits per byte",
        "validation after step 5: loss 2.2500, perplexity 9.49, 3.2461 bits per byte, best so far",
    ]


def test_a_note_is_wrapped_between_words_on_a_terminal_and_nowhere_else() -> None:
    note = "the checkpoints and the metrics of this run are in runs/a-folder"
    for terminal, lines in ((True, ["the checkpoints and the metrics of this", "run are in runs/a-folder"]), (False, [note])):
        out = console(terminal, 40)
        display = open_display(out)
        display.note(note)
        assert [line.rstrip() for line in said(out).splitlines()] == lines
