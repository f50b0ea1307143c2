"""Values of --data besides plain text: documents in lines of JSON, nanoGPT's tokens, a folder with more than text.

Also GPT-2's older tokenizer files. Reading them is tested in tests/layers/test_text.py, test_raw_tokens.py and
test_bpe_files.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from asynctile.cli.run_folder import RunFolder
from asynctile.layers.companions import LIMITS
from asynctile.layers.tokenizer import ByteTokenizer, open_tokenizer
from asynctile.layers.tokens import open_tokens
from tests.cli.conftest import Program
from tests.cli.test_refusals import refused
from tests.layers.gpt2_files import END, write_gpt2_files


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": f"document {n} of a few", "id": n}) + "\n" for n in range(40)))
    return path


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    (np.arange(2000) % 251).astype(np.uint16).tofile(path)
    return path


def test_a_run_trains_on_a_field_of_json_lines_and_remembers_it(train: Program, lines: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--data", lines, "--out", run, "--steps", 1)
    refused(train(*words), f"{lines}, line 1, has no field 'text' (it has 'body', 'id')", "--text-field")
    assert not run.exists()
    assert train(*words, "--text-field", "body")[0] == 0
    text = ByteTokenizer().decode(open_tokens(run / "tokens")[:])
    assert text.startswith("document 0 of a few\n\ndocument 1 of a few\n\n") and text.endswith("\n\ndocument 39 of a few")
    assert RunFolder.open(run).read_record()["options"]["text_field"] == "body"
    refused(train("--resume", "--out", run, "--data", lines, "--text-field", "id"), "--text-field id differs from body")
    assert train("--resume", "--out", run, "--data", lines, "--steps", 2)[0] == 0


def test_a_bad_line_ends_the_training_of_a_tokenizer_too(train: Program, lines: Path, tmp_path: Path) -> None:
    lines.write_text(lines.read_text() + "no JSON\n")
    for tokenizer in ("bytes", "bpe:256"):
        words = ("--data", lines, "--text-field", "body", "--tokenizer", tokenizer, "--out", tmp_path / "run")
        refused(train(*words), f"{lines}, line 41, is not valid JSON (Expecting value: character 1)")
        assert not (tmp_path / "run").exists()


def test_a_link_is_read_by_its_own_name(train: Program, lines: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "train.jsonl").symlink_to(lines.rename(tmp_path / "blob"))
    words = ("--data", tmp_path / "cache" / "train.jsonl", "--text-field", "body", "--out", tmp_path / "run", "--steps", 1)
    assert train(*words)[0] == 0
    assert ByteTokenizer().decode(open_tokens(tmp_path / "run" / "tokens")[:12]) == "document 0 o"
    (tmp_path / "beside").symlink_to("cache")
    assert train("--resume", *words[2:-1], 2, "--data", tmp_path / "beside" / "train.jsonl")[0] == 0


@pytest.mark.filterwarnings("default")
def test_every_kind_of_data_can_be_evaluated(train: Program, program: Program, text: Path, lines: Path, ids: Path,
                                       tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "data"
    assert train("--out", run, "--steps", 1)[0] == 0
    folder.mkdir()
    text.rename(folder / "text.txt")
    (folder / "a.gz").write_bytes(b"\x1f\x8b")
    said = {}
    for data in (folder, lines, ids):
        status, out, said[data] = program("evaluate", run, "--data", data, "--text-field", "body", "--device", "cpu")
        assert status == 0 and "bits per byte" in out
    assert said == {folder: f"asynctile evaluate: data {folder}: 1 binary file was left out: a.gz\n", lines: "", ids: ""}
    refused(program("evaluate", run, "--data", lines), f"{lines}, line 1, has no field 'text'", command="evaluate")


def test_files_without_text_are_counted_in_a_line_or_refused_by_their_kind(train: Program, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    text.rename(folder / "text.txt")
    for name in ("b\x1b[31m.png", "c.png"):
        (folder / name).write_bytes(bytes.fromhex("89504e470d0a1a0a0000000d49484452"))
    status, out, _ = train("--data", folder, "--out", tmp_path / "run", "--steps", 1)
    assert status == 0
    assert f"data {folder}: 2 binary files were left out: b\\x1b[31m.png, c.png" in out.replace("\n", " ")
    assert "left out" not in train("--resume", "--data", folder, "--out", tmp_path / "run", "--steps", 2)[1]
    refused(train("--data", folder / "c.png", "--out", tmp_path / "other"), f"{folder / 'c.png'} is a PNG picture")


def test_tokens_of_others_stay_in_place_and_must_be_the_same_on_resume(
    train: Program, ids: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (np.arange(300) % 251).astype(np.uint16).tofile(tmp_path / "val.bin")
    words = ("--data", ids, "--validation-data", tmp_path / "val.bin", "--tokenizer", "bytes", "--out", run)
    assert train(*words, "--steps", 1)[0] == 0
    assert os.listdir(run / "tokens") == os.listdir(run / "validation") == ["tokens.json"]
    assert train("--resume", *words, "--steps", 2)[0] == 0
    (np.arange(300) % 251)[::-1].astype(np.uint16).tofile(tmp_path / "val.bin")
    refused(train("--resume", *words, "--steps", 3), f"{tmp_path / 'val.bin'} has changed since", "restore the old file")
    ids.rename(tmp_path / "moved")
    refused(train("--resume", *words, "--steps", 3), f"{ids} cannot be read: No such file", "restore it")


@pytest.mark.parametrize(("words", "sentence"), [
    ((), "train.bin holds tokens without their tokenizer; name the one that made them with --tokenizer"),
    (("--tokenizer", "bpe:300"), "train.bin holds tokens without their tokenizer"),
    (("--tokenizer", "gpt2"), "train.bin has the token 301 at byte 200, but the tokenizer has only 301 tokens"),
])  # fmt: skip
def test_tokens_of_others_need_their_tokenizer(train: Program, ids: Path, tmp_path: Path, words: tuple[str, ...], sentence: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    write_gpt2_files(tmp_path / "gpt2", 300, {})
    shape = tmp_path / "wide.json"
    shape.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 301}))
    found = np.fromfile(ids, np.uint16)
    found[100] = 301
    found.tofile(ids)
    refused(train("--data", ids, "--model", shape, "--out", tmp_path / "run", *words), sentence)
    refused(train("--validation-data", ids, "--model", shape, "--out", tmp_path / "run", *words), sentence)
    assert not (tmp_path / "run").exists()


def test_a_model_with_older_tokenizer_files_can_be_trained_and_keeps_them(
    train: Program, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "gpt2").mkdir()
    write_gpt2_files(tmp_path / "gpt2", 300, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}})
    shape = tmp_path / "wide.json"
    shape.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 301}))
    first = tmp_path / "first"
    assert train("--model", shape, "--tokenizer", tmp_path / "gpt2" / "vocab.json", "--out", first, "--steps", 1)[0] == 0
    model = first / "checkpoints" / "step-000001"
    older = tmp_path / "older"
    older.mkdir()
    for path in (model / "config.json", model / "model.safetensors", *(tmp_path / "gpt2").iterdir()):
        (older / path.name).write_bytes(path.read_bytes())

    second = tmp_path / "second"
    assert train("--model", older, "--out", second, "--steps", 1)[0] == 0
    saved = second / "checkpoints" / "step-000001"
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert name in LIMITS and (saved / name).read_bytes() == (older / name).read_bytes()
    assert open_tokenizer(saved).fingerprint == open_tokenizer(older).fingerprint
    assert open_tokenizer(second).special == {END: 300}
    assert train("--resume", "--out", second, "--model", older, "--steps", 2)[0] == 0
    status, out, _ = program("generate", older, "--prompt", "the", "--max-new-tokens", 3, "--device", "cpu")
    assert status == 0 and out.startswith("the")
    planned = program("plan", "--model", older)
    (older / "merges.txt").unlink()
    assert planned[0] == 0 and program("plan", "--model", older) == planned, "a plan needs no tokenizer"
    refused(train("--model", older, "--out", tmp_path / "third"), f"{older} has no tokenizer.json, nor vocab.json")
