"""`asynctile stress`: tries to make memory tiers lose a byte, leak or hang, and commands do harm on damaged files.

    settings.py   what was asked for        conductor.py  whose turn it is       round.py   one round and its checks
    tally.py      what was counted          output.py     what is shown          leaks.py   what may not be left behind
    programs.py   scenario random           thrash.py, train.py, faults.py, truncate.py, crawl.py, cancel.py   the scenarios
                                            of their names
    writer.py     random tile programs      work.py       running one            place.py   where: device, caps, depth
    calls.py      every public coroutine    disturb.py    cancelled, timed out, abandoned
    lives.py      lives of engines          settled.py    what must hold between calls
    models.py     a very small GPT-2        killer.py     the process that kills trainings
    partner.py    a process beside stress   saver.py      the process that kills saves, call by call
    answers.py    what it answers           signaller.py  the process that sends signals
    relay.py      the line between nodes    breaker.py    the process that disturbs nodes
    mishap.py     what happens to nodes     command.py    the training that both disturb
    inputs/       scenario inputs           threads.py    scenario threads
    refusals.py   threads that are refused

A round is one try of a scenario with a seed of its own. Covers `run`: set-up, signals, exit status. A run lasts minutes and
then says what it found.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from asynctile import Engine
from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.cli.interrupt import EXIT_STATUS, ONCE_MORE, Interrupt
from asynctile.cli.stress.conductor import Conductor
from asynctile.cli.stress.output import StressDisplay, summary, write_report
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Tally
from asynctile.kernels.cpu import warm
from asynctile.loop.thread import new_loop

__all__ = ["run"]

_STOPPING = f"stopping after this round; {ONCE_MORE}"


def run(given: dict[str, Any]) -> int:
    """Run the command; return exit status 1 if anything was found, else 130 if it was stopped early, else 0."""
    settings = StressSettings.of(given)
    interrupt = Interrupt()
    interrupt.begin_steps()
    with settings.folder() as folder:
        status = interrupt.run(_stress(settings, folder, interrupt))
    return EXIT_STATUS if status is None else status


async def _stress(settings: StressSettings, folder: Path, interrupt: Interrupt) -> int:
    began_s, tally = time.monotonic(), Tally()
    display = StressDisplay(settings, tally)
    interrupt.announce = lambda _: display.note(_STOPPING)
    conductor = Conductor(settings, folder, tally, lambda: interrupt.requested)
    display.note(f"asynctile stress --seed {settings.seed}, in {folder}")
    hold_one_thread()
    try:
        with display.showing():
            await _warm_up(display)
            await conductor.run()
    finally:
        let_go()
    status = 1 if tally.failures else EXIT_STATUS if interrupt.requested else 0
    summary(settings, tally)
    if settings.report is not None:
        write_report(settings.report, settings, tally, seconds=time.monotonic() - began_s, status=status)
    if conductor.hung:
        # A hung task would block the end of the loop, and after it the end of the process.
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(status)
    return status


async def _warm_up(display: StressDisplay) -> None:
    """Compile kernels and start each kind of loop, once, so that no round takes this for a leak or for its own time."""

    def compiled(kernel: str, ready: int, total: int) -> None:
        display.stage = f"compiling kernels (once per machine): {ready} of {total} ({kernel})"

    await asyncio.to_thread(warm, compiled)
    display.stage = ""
    for make_loop in (new_loop, asyncio.new_event_loop):
        async with Engine("emulated", make_loop=make_loop):
            pass
