"""What a run on Ray refuses before Ray starts, where Ray is not installed too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli import main
from asynctile.cli.options import Options
from asynctile.ray import RayTrainer
from asynctile.ray.choices import as_typed, checked, most_workers
from asynctile.ray.command import resources_of


def test_an_import_does_not_import_ray() -> None:
    code = "import sys, asynctile.ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_are_those_that_could_have_been_typed(tmp_path: Path) -> None:
    plain = {"replicas": 4, "callback": ("a:B",), "spill": None, "lr": 0.5}
    given = as_typed({"data": tmp_path, "host_memory": "64MiB", **plain})
    assert given == {"data": str(tmp_path), "host_memory": 64 << 20, **plain}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replica": 4}, "did you mean replicas"), ({"replicas": 3}, "options set replicas"),
        ({"nodes": 2}, "num_workers"), ({"host_memory": "much"}, "options set host_memory"),
        ({"replicas": None}, "options set replicas: None"),
    ],
)  # fmt: skip
def test_what_could_not_have_been_typed_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_typed(options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"replicas": 2}, "4 nodes need as many replicas, but --replicas is 2"), ({"node": 1}, "--node does not go with Ray"),
        ({"replicas": 4, "batch_size": 6}, "--batch-size 6 cannot be split into --replicas 4"),
        ({"trace": "a"}, "--trace does not go with Ray"), ({"resume": True}, "--resume needs the run to continue"),
    ],
)  # fmt: skip
def test_options_that_no_number_of_workers_can_have_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked(given, 4)


def test_a_new_run_is_not_begun_over_another_one(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds a run"):
        checked({"out": str(tmp_path)}, 1)


def test_the_folder_of_a_run_is_the_same_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked({"out": "a", "ray": "local", "nodes": 1, "lr": 0.5}, 1) == {
        "out": str(tmp_path / "a"), "lr": 0.5, "device": "auto"}  # fmt: skip
    assert checked({}, 1)["out"].startswith(str(tmp_path / "runs"))


def test_the_time_limit_counts_from_the_first_start_also_if_a_file_of_options_has_it(tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text('max-time = "1h"\n')
    assert checked({"config": str(tmp_path / "options.toml")}, 1)["max_time"] == 3600


@pytest.mark.parametrize(
    ("device", "gpus"), [("auto", 0), ("cpu", 0), ("cuda:0", 1), ("cuda:0-3", 4), ("cuda:1", None), ("cuda:all", None)]
)
def test_workers_get_the_gpus_that_the_device_names(device: str, gpus: int | None) -> None:
    if gpus is None:
        with pytest.raises(ValueError, match="numbers the GPUs of each worker from 0"):
            resources_of({"device": device})
    else:
        assert resources_of({"device": device}).get("resources_per_worker", {}).get("GPU", 0) == gpus


def test_the_most_workers_of_a_range_count() -> None:
    assert (most_workers(2), most_workers((1, 4))) == (2, 4)
    with pytest.raises(ValueError, match="expected at least 1 worker"):
        most_workers(0)


def test_without_ray_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ray", "ray.train", "ray.train.v2.api.data_parallel_trainer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"pip install 'asynctile\[ray\]'"):
        RayTrainer({})
    assert main(["train", "--ray", "local", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'asynctile[ray]'" in capsys.readouterr().err
    assert Options.ray is None and not (tmp_path / "run").exists()
