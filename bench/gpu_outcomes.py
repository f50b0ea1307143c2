"""A pytest plugin for gpu_tests.py that reports each test as it begins and as it ends: `-p gpu_outcomes`.

It writes lines of JSON, [test, how, note], to the file descriptor in the variable OUTCOMES. how: "runs", "passed", "failed" or
"skipped". If the process dies, the lines still say what it had found, and which test it was in.
"""

from __future__ import annotations

import json
import os
from typing import Any

_lines = open(int(os.environ["OUTCOMES"]), "w", buffering=1, encoding="utf-8")  # noqa: SIM115  (open until the process ends)


def _write(test: str, how: str, note: str = "") -> None:
    _lines.write(json.dumps([test, how, note]) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(nodeid, "runs")


def pytest_runtest_logreport(report: Any) -> None:
    if report.skipped:
        _write(report.nodeid, "skipped", str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr))
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        _write(report.nodeid, "failed", f"{report.when}: {crash.message if crash is not None else report.longrepr}")
    elif report.when == "call":
        _write(report.nodeid, "passed")


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write(report.nodeid, "failed", f"collection: {str(report.longrepr).rstrip().splitlines()[-1]}")
