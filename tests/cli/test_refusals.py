"""Mistakes that a user can make: each gives one line that names the value, exit status 2, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from asynctile.cli.run_folder import RunFolder
from asynctile.layers.tokenizer import Tokenizer, train_bpe
from asynctile.storage.inside import Folder
from tests.cli.conftest import Program
from tests.laws import covering, law


def refused(result: tuple[int, str, str], *words: str, command: str = "train") -> None:
    status, out, err = result
    assert status == 2
    assert err.startswith(f"asynctile {command}: ")
    assert err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in out + err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "-3"), ("--steps", "0"), ("--steps", "1.5"), ("--steps", "many"), ("--steps", "nan"),
        ("--batch-size", "0"), ("--micro-batches", "-1"), ("--replicas", "3"), ("--seq-len", "0"), ("--tile", "0"),
        ("--lr", "0"), ("--lr", "-0.1"), ("--lr", "nan"), ("--lr", "inf"), ("--lr", "-inf"), ("--lr", "fast"),
        ("--weight-decay", "-.1"), ("--clip-norm", "0"), ("--warmup", "-1"), ("--seed", "-1"), ("--prefetch", "-1"),
        ("--save-every", "0"), ("--keep", "0"), ("--gradient-accumulation", "0"), ("--epochs", "0"), ("--epochs", "-1"),
        ("--max-time", "0"), ("--max-time", "30"), ("--min-lr", "-1"), ("--beta1", "1"), ("--beta2", "-0.1"), ("--eps", "0"),
        ("--schedule", "step"),
        ("--device-memory", "-5MiB"), ("--device-memory", "0"), ("--device-memory", "5 apples"),
        ("--host-memory", "much"), ("--link-rate", "0"), ("--link-rate", "-1GB"),
    ],
)  # fmt: skip
def test_invalid_numbers_are_refused(program: Program, option: str, value: str) -> None:
    refused(program("train", option, value), option, value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--device", "tpu"], ["tpu", "emulated"]),
        (["--device", "cuda:x"], ["unknown --device cuda:x; expected", "several, such as emulated*2"]),
        (["--device", "emulated*0"], ["--device 'emulated*0' asks for 0 devices", "from 1 to 64"]),
        (["--device", "emulated,cuda:0"], ["--device 'emulated,cuda:0' names unlike devices"]),
        (["--device", "cuda:1,cuda:1"], ["--device 'cuda:1,cuda:1' names cuda:1 twice"]),
        (["--device", "cuda:0-1"], ["--device cuda:0-1 has 2 devices, but --replicas is 1", "--replicas of at least 2"]),
        (["--device", "emulated*2"], ["--device emulated*2 has 2 devices, but --replicas is 1", "--replicas of at least 2"]),
        (["--device", "emulated*4", "--replicas", "2"], ["has 4 devices, but --replicas is 2", "or fewer devices"]),
        (["--device", "emulated*2", "--replicas", "2", "--device-memory", "1KiB"], ["--device-memory of 1.00 KiB is below"]),
        (["--device", "cpu*2"], ["--device 'cpu*2'", "give 'cpu'"]),
        (["--device", "emulated*2", "--precision", "bf16"], ["--precision bf16", "fp32 on emulated*2"]),
        (["--spill-limit", "1GiB"], ["--spill-limit", "without --spill", "leave --spill-limit out"]),
        (["--update", "gpu"], ["gpu", "auto, device, host"]),
        (["--precision", "bf16"], ["--precision bf16", "--device cuda:N", "fp32 on cpu"]),
        (["--precision", "tf32", "--device", "auto"], ["tf32", "cuda:N"]),
        (["--precision", "half"], ["--precision half", "fp32, tf32 or bf16"]),
        (["--device", "cpu", "--device-memory", "1GiB"], ["--device-memory", "--host-memory"]),
        (["--device", "cpu", "--link-rate", "1GiB"], ["--link-rate", "emulated"]),
        (["--micro-batches", "3"], ["4", "3"]),
        (["--replicas", "8"], ["--batch-size 4 cannot be split into --replicas 8 x --micro-batches 1", "a multiple of 8"]),
        (["--seq-len", "33"], ["33", "32"]),
        (["--warmup", "7"], ["7", "6"]),
        (["--min-lr", "0.1", "--lr", "0.01"], ["--min-lr 0.1 is above --lr 0.01", "choose at most --lr"]),
        (["--min-lr", "0.001", "--schedule", "constant"], ["--min-lr 0.001 does not go with --schedule constant"]),
        (["--epochs", "2"], ["--steps 6 and --epochs 2.0 exclude each other", "leave one of them out"]),
        (["--gradient-accumulation", "2147483647"], ["--batch-size 4 --gradient-accumulation 2147483647", "134,217,728"]),
        (["--data", "/no/such/text"], ["/no/such/text"]),
        (["--model", "/no/such/model"], ["/no/such/model", "gpt2-xl"]),
        (["--model", "llama"], ["--model llama", "gpt2-xl", "supported model families: gpt2"]),
        (["--tokenizer", "words"], ["words", "bpe:N"]),
        (["--tokenizer", "bpe:12"], ["bpe:12"]),
        (["--batch-size", "2147483647"], ["--batch-size 2147483647", "134,217,728"]),
        (["--seq-len", "32", "--batch-size", "100000", "--tile", "1"], ["100,000 sequences", "operations forward"]),
        (["--tokenizer", "bpe:300"], ["256", "tokenizer"]),
        (["--trace", "/no/such/folder/trace.json"], ["/no/such/folder"]),
        (["--device", "emulated", "--device-memory", "1KiB"], ["--device-memory of 1.00 KiB", "raise --device-memory"]),
        (["--host-memory", "1KiB"], ["--host-memory of 1.00 KiB", "raise --host-memory or give --spill a folder"]),
        (["--out", ""], ["--out"]),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    train: Program, tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    place = [] if "--out" in words else ["--out", str(tmp_path / "a" / "run")]
    refused(train(*place, *words), *expected)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("changes", [{"n_layer": 10**9}, {"vocab_size": 2**31 - 1}, {"n_positions": 10**9}, {"n_inner": 10**9}])
@pytest.mark.timeout(20)
def test_a_model_of_absurd_size_is_refused(program: Program, text: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    path = tmp_path / "huge.json"
    path.write_text(json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256} | changes))
    words = ("--data", text, "--model", path, "--device", "cpu", "--seq-len", 8, "--tile", 16)
    refused(program("plan", *words), "tiles of edge 16", "expected at most", command="plan")
    refused(program("train", *words, "--out", tmp_path / "run"), "tiles of edge 16", "expected at most")
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(20)
def test_a_model_that_is_a_pipe_is_refused(program: Program, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(program("plan", "--model", tmp_path / "pipe"), f"{tmp_path / 'pipe'}: it is a pipe", command="plan")


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_text_shorter_than_a_sequence_is_refused(train: Program, tmp_path: Path, content: bytes) -> None:
    text = tmp_path / "little.txt"
    text.write_bytes(content)
    refused(train("--data", text, "--out", tmp_path / "run"), "little.txt")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [
    "{", "[]", '{"n_head": 3, "n_embd": 16}', '{"model_type": "mamba"}', "[" * 100_000, '{"a":' * 100_000,
    '{"vocab_size": 1' + "0" * 400 + "}", '{"vocab_size": 1000000000000}', '{"n_layer": NaN}', '{"attn_pdrop": "x"}',
    '{"layer_norm_epsilon": 1' + "0" * 99 + "}", '{"activation_function": "\\ud800"}', '"' + "x" * (5 << 20) + '"',
])  # fmt: skip
def test_an_invalid_shape_is_refused(train: Program, tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    refused(train("--model", path, "--out", tmp_path / "run"), str(path))
    assert not (tmp_path / "run").exists()


def test_an_occupied_folder_is_refused(train: Program, tmp_path: Path) -> None:
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    refused(train("--out", other), "letters")
    assert [path.name for path in other.iterdir()] == ["letter.txt"]
    refused(train("--out", other / "letter.txt"), "letter.txt")
    refused(train("--out", other / "letter.txt" / "run"), "letter.txt")
    assert train("--out", tmp_path / "run", "--steps", 1)[0] == 0
    refused(train("--out", tmp_path / "run"), "already holds a run; add --resume")


def test_an_empty_folder_stays_after_a_refusal(train: Program, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    refused(train("--out", tmp_path / "run", "--host-memory", "1KiB"))
    assert list((tmp_path / "run").iterdir()) == []


def test_a_refused_run_leaves_files_that_others_added_meanwhile(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "one", {})
    (tmp_path / "runs" / "two").mkdir()
    run.discard_unless_begun()
    run.unclaim()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["two"]


def test_a_folder_that_cannot_be_written_is_refused_by_the_name_that_was_typed(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: Folder, name: str, content: bytes) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), f"{self.path}/.{name}.part")

    monkeypatch.setattr(Folder, "write", write)
    refused(train("--out", tmp_path / "run"), f"--out {tmp_path / 'run'}: Read-only file system; name a place that can be")
    assert not (tmp_path / "run").exists()


def test_resuming_a_missing_run_is_refused(train: Program, tmp_path: Path) -> None:
    refused(train("--resume"), "--out")
    refused(train("--resume", "--out", tmp_path / "run"), "holds no run")


def test_invalid_calls_of_generate_are_refused(program: Program, tmp_path: Path) -> None:
    refused(program("generate", tmp_path / "no", "--prompt", "a"), "no", command="generate")
    refused(program("generate", tmp_path, "--prompt", "a"), "run.json", command="generate")
    refused(program("generate", tmp_path, "--prompt", ""), "--prompt", command="generate")
    refused(program("generate", tmp_path), "--prompt", command="generate")
    words = ("--device", "cpu", "--precision", "bf16")
    refused(program("generate", tmp_path, "--prompt", "a", *words), "--precision bf16", "cuda:N", command="generate")
    refused(program("generate", tmp_path, "--prompt", "a", "--temperature", "-1"), "-1", command="generate")
    (tmp_path / "config.json").write_text("{}")
    words = ("--tokenizer", "bpe:300")
    refused(program("generate", tmp_path, "--prompt", "a", *words), "--tokenizer bpe:300", "new tokenizer", command="generate")


def test_a_negative_word_may_be_a_prompt(program: Program, tmp_path: Path) -> None:
    refused(program("generate", tmp_path, "--prompt", "-5 apples"), "run.json", command="generate")


def test_a_low_limit_of_open_files_is_reported_before_a_library_fails_half_way(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.cli.resource.getrlimit", lambda _: (40, 4096))
    refused(program("info"), "40 files", "ulimit -n", command="info")


def test_too_little_address_space_is_reported_before_a_library_is_imported(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: (300 << 20, 300 << 20)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr("asynctile.cli.resource.getrlimit", lambda which: limits.get(which, unlimited))
    monkeypatch.setattr("asynctile.cli.import_module", lambda name: pytest.fail(f"{name} was imported"))
    refused(program("info"), "300 MiB of address space", "ulimit -v", command="info")


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("can't start new thread"), "refused to start a thread"), (MemoryError(), "out of memory")]
)
def test_a_system_error_in_a_command_itself_is_one_line(
    program: Program, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def run(given: object) -> int:
        raise error

    monkeypatch.setattr("asynctile.cli.import_module", lambda _: SimpleNamespace(run=run))
    refused(program("info"), said, "raise ", command="info")


def test_a_vocabulary_above_the_models_is_refused_before_a_tokenizer_is_trained(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_nothing(texts: Iterable[bytes], vocab_size: int) -> Tokenizer:
        assert not list(texts)
        return train_bpe([], vocab_size)

    monkeypatch.setattr("asynctile.layers.tokenizer.train_bpe", of_nothing)
    refused(train("--tokenizer", "bpe:300", "--out", tmp_path / "run"), "the tokenizer has 300 tokens", "only 256")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_names_its_best_model_if_there_is_one(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2, "--validate-every", 1)[0] == 0
    shutil.rmtree(run / "checkpoints" / "step-000002")
    refused(program("generate", run, "--prompt", "a"), f"or name {run / 'checkpoints' / 'best'}", command="generate")
    shutil.rmtree(run / "checkpoints" / "best")
    said = program("generate", run, "--prompt", "a")
    refused(said, "no checkpoint yet", command="generate")
    assert "or name" not in said[2]


@pytest.mark.parametrize("content", ["{", *map(law, ['{"format": 1, "options": {}, "model": 3}', "", "[]"])])
def test_a_damaged_record_of_a_run_names_two_ways_to_train_on(
    train: Program, program: Program, tmp_path: Path, content: str
) -> None:
    run = tmp_path / "run"
    assert train("--out", run)[0] == 0
    whole = (run / "run.json").read_text()
    (run / "run.json").write_text(content)
    refusal = program("train", "--resume", "--out", run)
    refused(refusal, f"{run / 'run.json'} is damaged", "put back a copy of that file", "with another --out")
    (weights,) = re.findall(r"--model (\S+)\)", refusal[2])
    assert train("--model", weights, "--out", tmp_path / "another")[0] == 0
    (run / "run.json").write_text(whole)
    assert program("train", "--resume", "--out", run, "--steps", 7)[0] == 0


CAPPED = [
    ("--host-memory", ["--device", "cpu"]),
    ("--device-memory", ["--device", "emulated"]),
    ("--spill-limit", ["--device", "cpu", "--spill", "disk", "--host-memory", "320KiB"]),
    ("--host-memory", ["--device", "emulated", "--clip-norm", "1"]),
    ("--host-memory", ["--device", "cpu", "--spill", "disk"]),
]


@pytest.mark.parametrize(("place", "resumes"), covering(CAPPED, [False, True], few=3))
def test_a_run_needs_no_more_than_the_first_refusal_of_a_cap_names(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[str, list[str]],
    resumes: bool,
) -> None:  # fmt: skip
    cap, words = place
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path)
    if resumes:
        assert train("--out", "run", *words)[0] == 0

    def capped(nbytes: int) -> tuple[int, str, str]:
        given = ("--out", "run", *words, cap, nbytes)
        return program("train", "--resume", "--steps", 7, *given) if resumes else train(*given)

    refusal = capped(4096)
    refused(refusal, f"{cap} of 4.00 KiB is below the ")
    (need,) = re.findall(r"\((\d+) bytes\)", refusal[2])
    refused(capped(int(need) - 1), f"({need} bytes)")
    assert capped(int(need))[0] == 0


@pytest.mark.parametrize(("name", "word"), [("model.gguf", "GGUF"), ("adapter_config.json", "an adapter without its base")])
def test_a_model_of_another_format_is_named(program: Program, tmp_path: Path, name: str, word: str) -> None:
    (tmp_path / name).write_text("{}")
    for place in (tmp_path, tmp_path / name):
        refused(program("train", "--model", place), f"--model {place}: {tmp_path}", name, word)
        refused(program("generate", place, "--prompt", "a"), name, word, command="generate")
