"""Do the tests of tests/gpu pass on this GPU?

    python bench/gpu_tests.py [--choose EXPRESSION] [--write]

pytest runs with the settings of tests/gpu/pytest.ini, which need no plugin, file by file: AdamW and the other kernels,
attention, memory, four of the tests of replayed steps (`--choose replay` runs them all), and equal bits last. Each file has a
process of its own: after an error of the driver nothing works in the process that saw it. A test that does not pass is a row as
soon as it is known. A process that dies, or is silent for longer than a test may take, is ended, and the test that it was in is
a row. If bench/gpu.sh stops this part, the rows so far are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator

from gpu_common import engine_of, options_of
from gpu_record import ROOT, Section
from gpu_rows import TESTS

#: All files of tests/gpu: first those on which others depend, last the one that takes longest.
FILES = ("adamw", "kernels", "attention", "memory", "replay", "refusals", "bridge", "torch", "equal_bits")
#: For a file with slow tests: the tests that run if none are chosen.
FEW = {
    "replay": (
        *(f"a_replayed_step_has_the_bits_of_an_issued_one[{way}]" for way in ("no cap", "a cap", "updates in RAM")),
        "so_it_has_over_a_folder[device]",
    )
}
#: The longest silence in seconds. A test ends by itself after 60 s (tests/gpu/pytest.ini), unless the process hangs.
SILENT_S = 75.0
#: The longest silence in a rehearsal, where PyTorch's tests take minutes.
REHEARSED_S = 600.0
#: Exit statuses of pytest that the rows already explain: all passed, some failed, a file does not load, no test was chosen.
ENDED = (0, 1, 2, 5)


def command(options: Namespace, name: str) -> list[str]:
    file = f"tests/gpu/test_{name}.py"
    tests = [f"{file}::test_{test}" for test in FEW.get(name, ())] if not options.choose else []
    found = [sys.executable, "-m", "pytest", "-c", "tests/gpu/pytest.ini", *(tests or [file]), "-q", "--tb=short",
             "-p", "no:cacheprovider", "-p", "gpu_outcomes"]  # fmt: skip
    found += ["--rehearse", "-o", f"timeout={REHEARSED_S:.0f}"] if options.device == "soft" else []
    return [*found, "-k", options.choose] if options.choose else found


def lines(source: int, silent_s: float) -> Iterator[str]:
    """Yield lines from a pipe until all writers have closed it. Raises TimeoutError after `silent_s` without a line."""
    held = b""
    while True:
        if not select.select([source], [], [], silent_s)[0]:
            raise TimeoutError
        got = os.read(source, 1 << 16)
        if not got:
            return
        *whole, held = (held + got).split(b"\n")
        yield from (line.decode() for line in whole)


def outcomes(command: list[str], silent_s: float = SILENT_S) -> Iterator[tuple[str, str, str]]:
    """Yield (test, how, note) of each test that `command` runs, as the test ends.

    If the process dies or falls silent, the test that was running comes last, as failed.
    """
    source, target = os.pipe()
    path = os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OUTCOMES": str(target), "PYTHONPATH": path}
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[target], env=environment)
    os.close(target)
    inside, why = "", ""
    try:
        for line in lines(source, silent_s):
            test, how, note = json.loads(line)
            inside = test if how == "runs" else ""
            if how != "runs":
                yield test, how, note
    except TimeoutError:
        process.kill()
        why = f"said nothing for {silent_s:.0f} s"
    finally:
        os.close(source)
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.kill()
        status = process.wait()
    if inside or why or status not in ENDED:
        yield inside or "no test", "failed", f"its process {why or f'ended with status {status}'}"


async def note_libraries(section: Section, options: Namespace) -> None:
    """Record which libraries are used: tests of attention and biases check a library only if it is."""
    async with engine_of(section, options, device_memory="1MiB"):
        pass


def main(options: Namespace) -> int:
    section = Section("tests", __doc__, options)
    table = section.table("tests that did not pass", "test", "how", "note")
    spent = section.table("files", "file", "passed", "failed", "skipped", "s")
    total: Counter[str] = Counter()
    with section.row(table, "an engine opens", "failed"):
        asyncio.run(note_libraries(section, options))
    for name in FILES:
        start, before = time.perf_counter(), total.copy()
        for test, how, note in outcomes(command(options, name), REHEARSED_S if options.device == "soft" else SILENT_S):
            total[how] += 1
            if how != "passed":
                section.add(table, test, how, (note.splitlines() or [""])[0][:200])
            section.headline("tests that passed", total["passed"])
            section.headline("tests that failed", total["failed"], 0, above=False)
            section.headline("tests that were skipped", total["skipped"])
        counts = total - before
        section.add(spent, name, counts["passed"], counts["failed"], counts["skipped"], time.perf_counter() - start)
        section.headline("files of tests that were run", f"{FILES.index(name) + 1} of {len(FILES)}")
    section.end()
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(options_of(__doc__, TESTS)))
