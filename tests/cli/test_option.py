"""Arguments of the API in the messages of a command: written as the options that set them, but not where they are keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynctile.cli.option import with_flags
from tests.cli.conftest import Program

FLAGS = ("-h", "--help", "--host-memory", "--seq-len", "--spill", "--spill-limit", "--no-recompute")


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("raise host_memory or give spill a folder", "raise --host-memory or give --spill a folder"),
        ("name a folder with spill; spill_limit of 1 MiB", "name a folder with --spill; --spill-limit of 1 MiB"),
        ("the spill folder is in use", "the spill folder is in use"),
        ("at least seq_len + 1 = 9", "at least --seq-len + 1 = 9"),
        ("my_host_memory and host_memory_bytes", "my_host_memory and host_memory_bytes"),
        ("clip_norm skips such steps", "clip_norm skips such steps"),
        ("--config my.toml, host_memory: 'x'", "--config my.toml, host_memory: 'x'"),
        ("run/run.json was edited: host_memory: 'x'", "run/run.json was edited: host_memory: 'x'"),
    ],
)
def test_only_the_names_of_arguments_are_written_as_options(sentence: str, told: str) -> None:
    assert with_flags(sentence, FLAGS, ()) == told


def test_a_name_that_the_user_typed_stays_as_typed() -> None:
    assert with_flags("out/host_memory: is in use", FLAGS, ("--out", "out/host_memory")) == "out/host_memory: is in use"


@pytest.mark.filterwarnings("always")
def test_a_warning_names_options_but_the_keys_of_a_file_as_they_stand_there(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", tmp_path / "my.toml"
    assert train("--out", run)[0] == 0
    config.write_text("weight_decay = 0.5\n")
    status, _, err = program("train", "--resume", "--out", run, "--steps", 7, "--config", config)
    assert status == 0 and "keeps its own weight_decay; to change an option, type it" in err
