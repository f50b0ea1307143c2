"""Options from a TOML file: valid content, messages about invalid content, and that typed options win."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.cli.config_file import read_config
from asynctile.cli.option import flag, options_of
from asynctile.cli.options import Options
from tests.cli.conftest import Program
from tests.cli.test_refusals import refused


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def test_keys_are_options_with_either_dash_and_values_are_as_typed(config: Path) -> None:
    config.write_text('lr = 3e-4\nbatch-size = 4\nmicro_batches = 2\nhost-memory = "512MiB"\ndevice_memory = 4096\nseed = 7\n'
                      'recompute = false\nmax-time = "1h"\nmodel = "gpt2"\nclip-norm = 1\nlink_rate = "none"\n# a remark\n')
    assert read_config(str(config)) == {
        "lr": 3e-4, "batch_size": 4, "micro_batches": 2, "host_memory": 512 << 20, "device_memory": 4096, "seed": 7,
        "recompute": False, "max_time": 3600.0, "model": "gpt2", "clip_norm": 1.0, "link_rate": None,
    }  # fmt: skip


@pytest.mark.parametrize(("content", "said"), [
    ("learning_rate = 1", "sets 'learning_rate', which is not an option; did you mean lr?"),
    ("batchsize = 1", "sets 'batchsize', which is not an option; did you mean batch_size?"),
    ("warm-up = 1", "did you mean warmup?"),
    ("xyzzy = 1", "which is not an option; `asynctile train --help` lists the options"),
    ("lr = 1\n'l\\r' = 2", "not an option"),
    ("[train]\nlr = 1", "sets 'train', which is not an option"),
    ("[lr]\nx = 1", ", lr: a table cannot be used; put options above all [headings]"),
    ('lr = "0.1"', ", lr: '0.1' cannot be used; expected a number without quotes"),
    ('steps = "many"', ", steps: 'many' cannot be used; expected a whole number"),
    ("steps = 2.0", ", steps: '2.0' cannot be used"), ("steps = true", ", steps: True cannot be used"),
    ("steps = [1]", ", steps: [1] cannot be used; expected a number"), ("steps = 0", ", steps: '0' cannot be used"),
    ("steps = 1979-05-27", ", steps: datetime.date(1979, 5, 27) cannot be used"),
    ("lr = nan", ", lr: 'nan' cannot be used"), ("lr = -1", ", lr: '-1' cannot be used"),
    ("seed = 0x" + "f" * 5000, ", seed: a number of 20000 bits cannot be used"),
    ("data = 7", ", data: 7 cannot be used; expected text in quotes"), ('data = ""', ", data: the value is empty"),
    ('data = "a\\u0000b"', "without a NUL character"), ("data = ['a']", "expected text in quotes"),
    ("recompute = 1", ", recompute: 1 cannot be used; expected true or false"),
    ('recompute = "no"', "expected true or false, without quotes"),
    ('schedule = "cosin"', ", schedule: 'cosin' cannot be used; expected cosine, linear or constant"),
    ("max_time = 90", ", max_time: '90' cannot be used; expected a time"),
    ('host_memory = "lots"', ", host_memory: "), ("no-recompute = true", "did you mean recompute?"),
    ("batch-size = 1\nbatch_size = 2", "sets batch_size twice"), ("lr = 1\nlr = 2", "is not TOML"),
    ("lr 1", "is not TOML: "), ("{", "is not TOML"), ('lr = "', "is not TOML"), ("x = " + "[" * 30_000, "is nested too deep"),
    ("steps = 3\nepochs = 1", "--steps 3 and --epochs 1.0 exclude each other"),
])  # fmt: skip
def test_invalid_content_is_named_with_its_file(program: Program, config: Path, content: str, said: str) -> None:
    config.write_text(content)
    refused(program("train", "--config", config, "--out", config.parent / "run"), str(config), said)
    assert not (config.parent / "run").exists()


TYPED = [name for name, entry in options_of(Options).items() if not entry.config]


def test_the_output_folder_and_code_to_run_are_not_accepted_in_a_file() -> None:
    assert {"out", "trace", "spill", "callback"} <= set(TYPED)


@pytest.mark.parametrize("key", [*TYPED, "resume", "config"])
def test_options_that_no_file_may_set_must_be_typed(program: Program, config: Path, key: str) -> None:
    config.write_text(f'{key} = "{config.parent}"')
    refused(program("plan", "--config", config), f"sets {key}, which no file may set; type {flag(key)} instead",
            command="plan")  # fmt: skip


def test_an_unreadable_file_is_refused(program: Program, config: Path) -> None:
    refused(program("plan", "--config", config), f"--config {config} cannot be read: No such file", command="plan")
    refused(program("plan", "--config", config.parent), "cannot be read: Is a directory", command="plan")
    config.write_bytes(b"lr = 1 # \xff")
    refused(program("plan", "--config", config), "byte 9 is not UTF-8", command="plan")
    config.write_bytes(b"#" * (1 << 17))
    refused(program("plan", "--config", config), "cannot be read: it has 128.00 KiB", command="plan")


KEYS = st.sampled_from([*options_of(Options), "resume", "x"])
VALUES = st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from(["a", "7", "none", "1h", "1MiB", ""])


@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_any_content_gives_options_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, found: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in found.items())
                    .replace("NaN", "nan").replace("Infinity", "inf"))
    try:
        read = read_config(str(path))
    except ValueError as error:
        assert "\n" not in str(error) and "any.toml" in str(error)  # noqa: PT017
    else:
        assert read.keys() == found.keys()
        Options(**read)


def test_a_run_follows_its_file_and_typed_options_win(
    program: Program, text: Path, shape: Path, tmp_path: Path, config: Path
) -> None:
    config.write_text(f'data = "{text}"\nmodel = "{shape}"\ndevice = "cpu"\nbatch-size = 4\nepochs = 1\nlr = 0.01\nkeep = 1\n')
    run = tmp_path / "run"
    assert program("train", "--config", config, "--steps", 2, "--lr", 0.02, "--out", run)[0] == 0
    options = json.loads((run / "run.json").read_text())["options"]
    assert (options["batch_size"], options["keep"], options["lr"], options["steps"]) == (4, 1, 0.02, 2)
    assert options["epochs"] is None and "config" not in options
    assert program("train", "--resume", "--out", run, "--steps", 3)[0] == 0
