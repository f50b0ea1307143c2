"""The pictures of plans: all are drawn from the results that are kept, with their words as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")


def test_each_picture_is_drawn_from_the_results_on_a_ground_of_its_own(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = bench("plan_pictures")
    monkeypatch.setattr("sys.argv", ["plan_pictures.py", "--into", str(tmp_path)])
    pictures.main()
    drawn = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert drawn.keys() == {f"plans-{name}" for name in pictures.PICTURES}
    for text in drawn.values():
        assert pictures.GROUND in text and "simulated" in text
    assert all(policy in drawn["plans-depth"] for policy in pictures.POLICIES) and "NNTile, measured" in drawn["plans-paper"]
    assert {path.name for path in (pictures.ROOT / "docs" / "pictures").glob("plans-*")} == {f"{name}.svg" for name in drawn}


def test_a_table_is_found_by_the_beginning_of_its_title(bench: Any) -> None:
    rows = bench("plan_pictures").Results("bench_verdicts").rows("a step")
    assert rows[0]["model"] == "gpt2-xl" and rows[0]["fits"] is True
    with pytest.raises(StopIteration):
        bench("plan_pictures").Results("bench_verdicts").rows("no such table")
