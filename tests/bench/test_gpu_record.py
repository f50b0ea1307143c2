"""The record of results: names, sections that replace their predecessors, rows that are kept, and the short table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.shell import ROOT, clean


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "cuda_h200_202611"), ("NVIDIA A100-SXM4-80GB", "cuda_a100-sxm4-80gb_202611"), ("?", "cuda_gpu_202611")],
)
def test_results_are_named_by_theme_gpu_and_month(bench: Any, gpu: str, name: str) -> None:
    assert bench("gpu_record").results_name(gpu, "2026-11-21") == name


def section_of(part: str, value: float, gpu: str = "NVIDIA H200") -> dict[str, Any]:
    table = {"title": f"{part}: what was wanted", "columns": ["what", "measured", "wanted"], "rows": [["speed", value, None]]}
    return {"question": f"How is {part}?", "configuration": {"tile": 512}, "machine": {"gpu": gpu, "day": "2026-11-21"},
            "tables": [table]}  # fmt: skip


def test_a_part_replaces_its_own_section_and_leaves_the_others(bench: Any, tmp_path: Path) -> None:
    record = bench("gpu_record")
    for part, value in (("depth", 1.0), ("link", 2.0), ("depth", 3.0)):
        path = record.merge(tmp_path, part, section_of(part, value))
    whole = json.loads(path.read_text())
    assert list(whole["parts"]) == ["link", "depth"], "in the order of bench/gpu.sh"
    assert whole["parts"]["depth"]["tables"][-1]["rows"] == [["speed", 3.0, None]]
    text = path.with_suffix(".md").read_text()
    assert text.index("## link") < text.index("## depth")
    assert "How is depth?" in text and "- tile: 512" in text and "| speed | 3 |  |" in text
    assert sorted(os.listdir(tmp_path)) == ["cuda_h200_202611.json", "cuda_h200_202611.md"]


def test_the_short_table_says_how_each_part_ended(bench: Any) -> None:
    whole = {"parts": {"link": section_of("link", 2.0), "depth": section_of("depth", 1.0)}}
    ran = [("tests", 1, 30), ("link", 0, 9), ("depth", 124, 60), ("largest", -1, 0)]
    assert bench("gpu_report").short_table(whole, ran).rows == [
        ("tests", "status 1 after 30 s", None, None),
        ("link", "9 s", None, None),
        ("", "speed", 2.0, None),
        ("depth", "stopped after 60 s; rows before that count", None, None),
        ("", "speed", 1.0, None),
        ("largest", "not run: the time was up", None, None),
    ]


def rehearsal(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(device="emulated", precision="fp32", write=False, **more)


def test_a_failure_is_a_row_and_the_part_goes_on(bench: Any) -> None:
    section = bench("gpu_record").Section("link", "Is it fast?", rehearsal())
    table = section.table("speed", "model", "cap", "s", "note")
    with section.row(table, "gpt2", 0.25):
        raise MemoryError("no room\nfor it")
    with section.row(table, "gpt2-xl"):
        section.put(table, {"model": "gpt2-xl", "s": 1.5})
    assert table.rows == [("gpt2", 0.25, None, "failed: MemoryError: no room"), ("gpt2-xl", None, 1.5, None)]


# A part that finds two rows and then hangs.
HANGS = """
import argparse, time
from gpu_record import Section

section = Section("depth", "Does it hold?", argparse.Namespace(device="soft", precision="bf16", write=True))
table = section.table("depth", "layers", "s")
section.add(table, 4, 1.5)
section.add(table, 48, 18.0)
section.headline("fall", 0.01)
print("hangs", flush=True)
time.sleep(60)
"""


def test_each_row_is_kept_when_its_part_is_ended(bench: Any, tmp_path: Path) -> None:
    """The part is ended by SIGTERM, as timeout(1) does."""
    folder = bench("gpu_record").REHEARSED
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("results", "__pycache__"))
    (tmp_path / "bench" / "hangs.py").write_text(HANGS)
    command = [sys.executable, tmp_path / "bench" / "hangs.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [line for line in process.stdout if line == "hangs\n" and process.terminate() is None] == ["hangs\n"]
    assert process.returncode == -signal.SIGTERM
    (path,) = (tmp_path / folder.relative_to(ROOT)).glob("cuda_rehearsal_*.json")
    kept = json.loads(path.read_text())["parts"]["depth"]["tables"]
    assert [table["rows"] for table in kept] == [[[4, 1.5], [48, 18.0]], [["fall", 0.01, None]]]
    assert "| 48 | 18 |" in path.with_suffix(".md").read_text()


def test_a_section_names_each_of_its_libraries_once(bench: Any) -> None:
    section = bench("gpu_record").Section("link", "Is it fast?", rehearsal())
    driver = argparse.Namespace(attention="cuDNN 9.1", epilogues="cuBLASLt")
    section.went_by(driver, "bf16")
    driver.attention = "cuDNN 9.1, not for all shapes (one)"
    section.went_by(driver, "bf16")
    section.went_by(argparse.Namespace(attention="not used: no frontend", epilogues="cuBLASLt"), "bf16")
    section.went_by(driver, "tf32")
    assert section.configuration["attention"] == (
        "cuDNN 9.1, not for all shapes (one); not used: no frontend; asynctile's kernels in tf32")
    assert section.configuration["bias"] == "cuBLASLt"
