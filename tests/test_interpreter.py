"""Which program is started as Python: one that goes by that name, and no service that embeds it."""

import sys

import pytest

from asynctile.interpreter import interpreter


@pytest.mark.parametrize("path", [None, "", "/usr/sbin/uwsgi", "/opt/program", "program.exe"])
def test_what_embeds_python_is_not_started_for_it(path, monkeypatch):
    monkeypatch.setattr(sys, "executable", path)
    assert interpreter() is None


@pytest.mark.parametrize("name", ["python", "python3", "python3.13", "python3.13t", "pypy3"])
def test_interpreters_go_by_their_names(name, monkeypatch):
    monkeypatch.setattr(sys, "executable", f"/usr/bin/{name}")
    assert interpreter() == f"/usr/bin/{name}"
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert interpreter() is None
