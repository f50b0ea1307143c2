"""Do the tests of tests/gpu pass on this GPU?

    python bench/gpu_tests.py [--choose EXPRESSION] [--write]

pytest with the settings of tests/gpu/pytest.ini, which need no plugin. Failures stand in the table with their first line. A few
seconds before the time of PART_SECONDS, which bench/gpu.sh sets, is up, it is interrupted: what was found by then counts.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from argparse import Namespace
from collections import Counter
from pathlib import Path

from gpu_common import options_of
from gpu_record import ROOT, Section

KINDS = ("failure", "error", "skipped")
#: Of the time given, for an interrupted run to say what it found.
RESERVE_S = 10


def command(options: Namespace, report: Path) -> list[str]:
    found = [sys.executable, "-m", "pytest", "-c", "tests/gpu/pytest.ini", "tests/gpu", "-q", "--tb=short", "--durations=10",
             f"--junitxml={report}", "-p", "no:cacheprovider"]  # fmt: skip
    found += ["--rehearse"] if options.device == "soft" else []
    return [*found, "-k", options.choose] if options.choose else found


def run(options: Namespace, report: Path) -> int:
    """pytest's exit status; 2 if it was interrupted."""
    seconds = float(os.environ.get("PART_SECONDS", "inf")) - RESERVE_S
    process = subprocess.Popen(command(options, report), cwd=ROOT)
    try:
        return process.wait(seconds if seconds < math.inf else None)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait()


def outcomes(report: Path) -> tuple[Counter[str], list[tuple[str, str, str]]]:
    """How many tests ended how, and (test, how, first line) of those that did not pass."""
    counts: Counter[str] = Counter()
    others = []
    for case in ET.parse(report).iter("testcase"):
        kind = next((child for child in case if child.tag in KINDS), None)
        counts["passed" if kind is None else kind.tag] += 1
        if kind is not None:
            said = (kind.get("message") or "").splitlines() or [""]
            others.append((f"{case.get('classname')}: {case.get('name')}", kind.tag, said[0][:200]))
    return counts, others


def main(options: Namespace) -> int:
    section = Section("tests", __doc__, options)
    table = section.table("tests that did not pass", "test", "how", "note")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status = run(options, report)
        counts, others = outcomes(report) if report.exists() else (Counter[str](), [])
    for row in others:
        section.add(table, *row)
    section.configuration["seconds"] = round(time.perf_counter() - start, 1)
    section.headline("tests that passed", counts["passed"])
    section.headline("tests that failed", counts["failure"] + counts["error"], 0, above=False)
    section.headline("tests that were skipped", counts["skipped"])
    section.headline("all of them ran", status in (0, 1))
    section.end()
    return status


if __name__ == "__main__":
    sys.exit(main(options_of(__doc__, choose="")))
