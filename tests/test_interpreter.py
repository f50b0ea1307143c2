"""The program that is started as Python: one with an interpreter's name, never a service that embeds Python."""

import sys

import pytest

from asynctile.interpreter import interpreter


@pytest.mark.parametrize("path", [None, "", "/usr/sbin/uwsgi", "/opt/program", "program.exe"])
def test_a_program_that_embeds_python_is_not_started_as_an_interpreter(path, monkeypatch):
    monkeypatch.setattr(sys, "executable", path)
    assert interpreter() is None


@pytest.mark.parametrize("name", ["python", "python3", "python3.13", "python3.13t", "pypy3"])
def test_interpreters_are_recognized_by_their_names(name, monkeypatch):
    monkeypatch.setattr(sys, "executable", f"/usr/bin/{name}")
    assert interpreter() == f"/usr/bin/{name}"
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert interpreter() is None
