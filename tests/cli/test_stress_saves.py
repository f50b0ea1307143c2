"""Scenario `saves` finds planted bugs: a kill after the right call of a save leaves no checkpoint, or litter.

tests/cli/test_stress.py runs a round without a bug.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynctile.cli.stress import saves
from tests.cli.conftest import Program

pytestmark = pytest.mark.laws

_PLANTED = """
import sys
from pathlib import Path
from asynctile.cli.stress import saver
from asynctile.storage import beside, folder

def removed_first(parent, fresh, final):
    if parent.stat(final) is not None:
        parent.remove_tree(final)
    parent.rename(fresh, final)

#: Names alone: what is written is what it is in either case.
saver._LOOKS |= {{"open", "close", "pwrite", "write", "fsync", "posix_fallocate", "replace", "__exit__"}}
{bug}
saver.main(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("bug", "kind", "what"), [
    ("folder.swap = removed_first", "lost", "no checkpoint loads"),
    ("folder.recover_folder = lambda parent, name: None", "leaked", "beside the checkpoint"),
], ids=["the older one is removed first", "what a kill has left stays"])  # fmt: skip
def test_a_planted_bug_is_found(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, kind: str, what: str
) -> None:
    monkeypatch.setattr(saves, "PROGRAM", ("-c", _PLANTED.format(bug=bug)))
    report = tmp_path / "report.json"
    words = ("--scenario", "saves", "--rounds", 1, "--seed", 1, "--spill", tmp_path, "--report", report)
    assert program("stress", *words)[0] == 1
    (failure,) = json.loads(report.read_text())["failures"]
    assert failure["kind"] == kind and what in failure["what"]
