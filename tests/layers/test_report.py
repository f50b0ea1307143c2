"""Reading metrics again: the required fields of a line, and lines that are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from asynctile.layers.report import number_in, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"7", b"null", b'"step"', b'{"loss": 1.0}', b'{"step": "2"}', b'{"step": 1.5}', b'{"step": true}',
    b'{"step": -1}', b'{"step": null}', b"[" * 30_000, b'{"step": ' * 7000, b"\xff",
    b'{"step": 2, "loss": ' + b"9" * 5000 + b"}",
])  # fmt: skip
def test_lines_that_are_no_steps_count_as_cut(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"step": 1, "loss": 2.0}\n' + line + b'\n{"step": 3, "loss": NaN, "validation_loss": 1.5}\n')
    assert [found["step"] for found in read_metrics(path)] == [1, 3]


def test_an_endless_line_and_a_special_file_are_refused_by_name(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\n' + b" " * (1 << 17) + b"\n")
    with pytest.raises(OSError, match="line 2 has more than"):
        list(read_metrics(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="is a pipe"):
        list(read_metrics(path))


@pytest.mark.parametrize(("text", "number"), [
    ("1", 1), ("-2.5", -2.5), ("9" * 90, int("9" * 90)), ("NaN", None), ("Infinity", None), ('"nan"', None), ("true", None),
    ("null", None), ("[1]", None), ("1e999", None),
])  # fmt: skip
def test_a_number_is_finite_or_missing(text: str, number: float | None) -> None:
    assert number_in(json.loads(f'{{"loss": {text}}}'), "loss") == number
    assert number_in({}, "loss") is None
