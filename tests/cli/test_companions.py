"""Files beside the weights of a run's checkpoints: the tokenizer that it learned with, for other programs to open.

tests/layers/test_companions.py tests how a model keeps them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from asynctile.cli.model import choose_shape
from asynctile.cli.options import Options
from asynctile.layers.companions import CARD, LIMITS
from asynctile.layers.config import TOKENS
from asynctile.layers.special_tokens import token_ids
from asynctile.layers.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from asynctile.storage.checksums import checksum, checksum_record
from tests.cli.conftest import Program


def beside(run: Path, step: int) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"step-{step:06d}"
    assert json.loads((folder / "checksums.json").read_text())["files"].keys() >= {"tokenizer.json", "tokenizer_config.json"}
    return others(folder)


def others(folder: Path) -> dict[str, bytes]:
    """Return all companions but the card, which is tested in test_card.py."""
    return {name: (folder / name).read_bytes() for name in LIMITS if name != CARD and (folder / name).exists()}


def read(run: Path, step: int, name: str) -> Any:
    return json.loads((run / "checkpoints" / f"step-{step:06d}" / name).read_text())


def test_a_checkpoint_has_the_tokenizer_and_the_run_names_it_at_its_end(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    status, out, _ = train("--out", run, "--save-every", 4)
    assert status == 0
    assert f"transformers can load {run / 'checkpoints' / 'step-000006'} as it is" in out
    found = beside(run, 4)
    assert found.keys() == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert found == beside(run, 6)
    assert found["tokenizer.json"] == ByteTokenizer().to_json() == (run / "tokenizer.json").read_bytes()
    assert json.loads(found["tokenizer_config.json"])["model_max_length"] == 32
    assert read(run, 6, "config.json")["eos_token_id"] is None
    # When another run starts from it, the checkpoint brings all of that along.
    other = tmp_path / "other"
    assert train("--out", other, "--model", run / "checkpoints" / "step-000006", "--steps", 1)[0] == 0
    assert beside(other, 1) == found


def test_a_run_older_than_companions_resumes_and_gets_them(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    folder = run / "checkpoints" / "step-000002"
    wanted = beside(run, 2)
    for name in wanted:
        (folder / name).unlink()
    for path, of in ((folder / "config.json", lambda record: record), (run / "run.json", lambda record: record["model"])):
        record = json.loads(path.read_text())
        for name in TOKENS:
            del of(record)[name]
        path.write_text(json.dumps(record))
    (folder / "checksums.json").unlink()
    sums = {path.name: checksum(path) for path in folder.iterdir()}
    record = checksum_record(sums)
    del record["record"]
    (folder / "checksums.json").write_text(json.dumps(record))
    for steps in (3, 4):
        status, _, err = program("train", "--resume", "--out", run, "--steps", steps)
        assert (status, err) == (0, "")
        assert beside(run, steps) == wanted


@pytest.fixture
def foreign(train: Program, text: Path, tmp_path: Path) -> Path:
    """The folder of a model from elsewhere, with a tokenizer whose files asynctile would have written differently."""
    raw = tokenizers.Tokenizer.from_buffer(train_bpe([text.read_text()], 280).to_json())
    raw.add_special_tokens(["<|endoftext|>"])
    raw.enable_truncation(7)
    size = raw.get_vocab_size()
    shape = tmp_path / "foreign.json"
    shape.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": size,
                                 "bos_token_id": size - 1, "eos_token_id": [size - 1, 3], "pad_token_id": 0}))
    assert train("--out", tmp_path / "r", "--model", shape, "--steps", 1)[0] == 0
    folder = Path(shutil.copytree(tmp_path / "r" / "checkpoints" / "step-000001", tmp_path / "foreign"))
    (folder / "checksums.json").unlink()
    (folder / "tokenizer.json").write_text(raw.to_str())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}')
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "generation_config.json").write_text('{"do_sample": true, "top_p": 0.9}')
    return folder


def test_a_model_that_continues_with_its_tokenizer_keeps_its_files(train: Program, tmp_path: Path, foreign: Path) -> None:
    before = others(foreign)
    assert train("--out", tmp_path / "run", "--model", foreign, "--steps", 1)[0] == 0
    assert beside(tmp_path / "run", 1) == before
    config = read(tmp_path / "run", 1, "config.json")
    assert config["eos_token_id"] == [config["bos_token_id"], 3] and config["pad_token_id"] == 0


def test_a_model_trained_with_another_tokenizer_gets_that_tokenizers_files(
    train: Program, tmp_path: Path, foreign: Path
) -> None:
    assert train("--out", tmp_path / "run", "--model", foreign, "--steps", 1, "--tokenizer", "bytes")[0] == 0
    found = beside(tmp_path / "run", 1)
    assert found.keys() == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert found["tokenizer.json"] == ByteTokenizer().to_json()
    assert found["generation_config.json"] == (foreign / "generation_config.json").read_bytes()


def test_a_new_model_ends_texts_as_its_tokenizer_does(program: Program, tmp_path: Path, foreign: Path, text: Path) -> None:
    run, named = tmp_path / "run", foreign / "tokenizer.json"
    status, _, err = program("train", "--data", text, "--out", run, "--tokenizer", named, "--steps", 1, "--device", "cpu",
                             "--batch-size", 2)
    assert (status, err) == (0, "")
    tokenizer = load_tokenizer(str(named), ())
    end = tokenizer.special["<|endoftext|>"]
    assert (read(run, 1, "config.json")["bos_token_id"], read(run, 1, "config.json")["eos_token_id"]) == (end, end)
    assert read(run, 1, "tokenizer_config.json")["eos_token"] == "<|endoftext|>"
    # A published id is not used where the tokenizer has a token of text there, or none.
    for tokens, expected in ((tokenizer, end), (ByteTokenizer(), None)):
        shape = choose_shape(Options(model="gpt2"), tokens.vocab_size, token_ids(tokens))
        assert (shape.bos_token_id, shape.eos_token_id) == (expected, expected)
    assert choose_shape(Options(model=str(foreign)), 281, token_ids(ByteTokenizer())).eos_token_id == (end, 3)
