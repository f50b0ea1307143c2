"""Chats from the command line: trained on, resumed, measured, and held in the terminal.

tests/layers/test_chats.py tests bad lines, tests/layers/test_chat_renderer.py bad templates.
"""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli import chat as conversation
from asynctile.layers import GPT2
from asynctile.layers.entropy import bigram_loss
from asynctile.layers.examples import Examples, open_examples
from tests.cli.conftest import Program, after_each_step
from tests.cli.test_adapters import GPT, made
from tests.cli.test_generate import Writer
from tests.cli.test_refusals import refused
from tests.layers.chats import SHORT, chat, template, write_lines, write_tokenizer


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "a.jsonl", [{"messages": chat(f"{n} + 1?", f"{n + 1}.")} for n in range(40)])


@pytest.fixture
def jinja(tmp_path: Path) -> Path:
    (tmp_path / "short.jinja").write_text(SHORT)
    return tmp_path / "short.jinja"


@pytest.fixture
def learn(train: Program, lines: Path, jinja: Path) -> Program:
    """Return a function that runs `asynctile train` on these chats."""
    return lambda *words: train("--data", lines, *words) if "--resume" in words else train(
        "--data", lines, "--chat-template", jinja, *words)  # fmt: skip


def metrics(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", "loss", "tokens", "validation_loss", "validation_tokens") if name in line}
            for line in found]  # fmt: skip


def test_a_run_learns_the_answers_of_chats_and_a_resumed_one_has_the_same_bits(
    learn: Program, jinja: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run needs neither the template nor Jinja."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    words = ("--validate-every", 2, "--lr", 0.01)
    status, out, err = learn("--out", whole, *words)
    assert (status, err) == (0, "")
    assert "training tokens in 38 examples" in out and f"asynctile generate {whole} --chat" in out.replace("\n", " ")
    assert sorted(os.listdir(whole / "tokens")) == ["answers.bin", "starts.bin", "tokens.bin", "tokens.json"]
    examples = open_examples(whole / "tokens")
    ids, answers = examples[3]
    assert bytes(ids.tolist()) == b"u:3 + 1?\na:4.\n" and bytes(ids[answers].tolist()) == b"4.\n"
    with monkeypatch.context() as patch:
        after_each_step(patch, lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 3 else None)
        assert learn("--out", parted, *words)[0] == 130
    assert (parted / "checkpoints" / "step-000003").is_dir()
    jinja.unlink()
    assert learn("--out", parted, "--resume")[0] == 0
    assert metrics(parted) == metrics(whole)
    last = Path("checkpoints", "step-000006")
    for name in ("model.safetensors", "optimizer.safetensors", "chat_template.jinja"):
        assert (parted / last / name).read_bytes() == (whole / last / name).read_bytes()
    assert (whole / last / "chat_template.jinja").read_text() == SHORT
    training, held_out = Examples(examples, 0, 38), Examples(examples, 38, 40)
    expected = bigram_loss(training.ids[:], held_out.ids[:], 256, held_out.answers[:] == 1)
    assert json.loads((whole / "summary.json").read_text())["bigram_loss"] == pytest.approx(expected, rel=1e-12)
    found = metrics(whole)
    losses = [line["validation_loss"] for line in found if "validation_loss" in line]
    assert losses[-1] < losses[0] - 0.2
    assert {line["validation_tokens"] for line in found if "validation_loss" in line} == {8}  # "39.\n" and "40.\n"


def test_prompts_with_completions_need_no_template_and_text_takes_none(
    train: Program, program: Program, text: Path, jinja: Path, tmp_path: Path
) -> None:
    lines = write_lines(tmp_path / "p.jsonl", [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(40)])
    status, _, err = train("--data", lines, "--steps", 1, "--out", tmp_path / "run")
    assert (status, err) == (0, "")
    assert not (tmp_path / "run" / "checkpoints" / "step-000001" / "chat_template.jinja").exists()
    for data in (lines, text):
        words = ("--data", data, "--chat-template", jinja, "--out", tmp_path / "no")
        refused(train(*words), f"--chat-template {jinja} is for lines of JSON with messages")
    assert not (tmp_path / "no").exists()
    for more in ((), ("--data", text)):
        refused(program("evaluate", tmp_path / "run", "--device", "cpu", "--chat-template", jinja, *more),
                f"--chat-template {jinja} is for lines of JSON with messages", command="evaluate")  # fmt: skip


def test_chats_may_be_validated_on_beside_other_chats_or_text(learn: Program, text: Path, tmp_path: Path) -> None:
    others = write_lines(tmp_path / "b.jsonl", [{"messages": chat("?", "!")}])
    assert learn("--validation-data", others, "--steps", 1, "--out", tmp_path / "run")[0] == 0
    assert [line["validation_tokens"] for line in metrics(tmp_path / "run") if "validation_loss" in line] == [2, 2]
    assert learn("--validation-data", text, "--steps", 1, "--out", tmp_path / "mixed")[0] == 0
    assert learn("--resume", "--out", tmp_path / "mixed", "--steps", 2)[0] == 0


def test_epochs_count_rows_of_examples_and_samples_begin_with_a_question(
    program: Program, shape: Path, lines: Path, jinja: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    status, _, _ = program("train", "--data", lines, "--chat-template", jinja, "--model", shape, "--device", "cpu",
                           "--batch-size", 4, "--epochs", 0.5, "--sample-tokens", 3, "--out", run)  # fmt: skip
    assert status == 0 and metrics(run)[-1]["step"] == 3  # half of 19 rows of 2 examples, 4 rows a step
    samples = [json.loads(line)["text"] for line in (run / "samples.jsonl").read_text().splitlines()]
    assert all(sample.startswith("u:38 + 1?\na:") for sample in samples)


@pytest.mark.parametrize(("words", "sentences"), [
    (("--batch-size", 40), ("has 38 examples, fewer than the 40 of a step", "a smaller --batch-size")),
    (("--validation-share", 0.99), ("--validation-share 0.99 of the 40 examples", "leaves none to train on")),
    (("--seq-len", 4), ("has no answer that begins within 4 tokens", "raise --seq-len")),
    (("--chat-template", "none.jinja"), ("--chat-template none.jinja cannot be read: No such file",)),
])  # fmt: skip
def test_what_does_not_fit_the_chats_is_refused(
    learn: Program, tmp_path: Path, words: tuple[Any, ...], sentences: tuple[str, ...]
) -> None:
    refused(learn("--out", tmp_path / "run", *words), *sentences)
    assert not (tmp_path / "run").exists()


def test_chats_need_a_template_and_jinja(
    train: Program, lines: Path, jinja: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    refused(train("--data", lines, "--out", run), "the tokenizer bytes has no chat template", "--chat-template")
    refused(train("--validation-data", lines, "--out", run), "the tokenizer bytes has no chat template")
    monkeypatch.setattr("asynctile.layers.chat_renderer.LEAST_JINJA", (99,))
    refused(train("--data", lines, "--chat-template", jinja, "--out", run), "pip install 'asynctile[chat]'")
    assert not run.exists()


def test_long_chats_are_cut_or_left_out_and_a_line_says_how_many(learn: Program, lines: Path, tmp_path: Path) -> None:
    with lines.open("a") as file:
        file.write(json.dumps({"messages": chat("a" * 99, "b")}) + "\n" + json.dumps({"messages": chat("a", "b" * 99)}) + "\n")
    status, out, _ = learn("--steps", 1, "--out", tmp_path / "run")
    said = " ".join(out.split())
    assert status == 0 and "1 example was cut to the 32 tokens of a sequence, and 1 example was left out: the answer" in said
    assert "left out" not in learn("--resume", "--steps", 2, "--out", tmp_path / "run")[1]


def test_a_model_with_a_template_is_tuned_measured_and_keeps_its_files(
    train: Program, program: Program, tmp_path: Path
) -> None:
    source = write_tokenizer(tmp_path / "source", "ChatML", template("ChatML", is_marked=True))
    (tmp_path / "wide.json").write_text(
        json.dumps({"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64, "vocab_size": 340}))
    lines = write_lines(tmp_path / "c.jsonl", [{"messages": chat(f"{n}?", "The tile")} for n in range(30)])
    first, second = tmp_path / "first", tmp_path / "second"
    words = ("--data", lines, "--steps", 1)
    assert train(*words, "--model", tmp_path / "wide.json", "--tokenizer", source, "--out", first)[0] == 0
    model = first / "checkpoints" / "step-000001"
    assert (model / "tokenizer_config.json").read_bytes() == (source / "tokenizer_config.json").read_bytes()
    assert train(*words, "--model", model, "--out", second)[0] == 0
    assert (second / "checkpoints" / "step-000001" / "tokenizer_config.json").read_bytes() == (
        source / "tokenizer_config.json").read_bytes()  # fmt: skip
    for folder in (second, model):
        status, out, err = program("evaluate", folder, "--data", lines, "--device", "cpu")
        assert (status, err) == (0, "") and "tokens" in out
    status, out, _ = program("evaluate", second, "--device", "cpu")
    assert status == 0 and f"the held-out part of the run {second}" in out
    (tmp_path / "bad.jinja").write_text("{{ nothing.at.all }}")
    refused(program("evaluate", model, "--data", lines, "--device", "cpu", "--chat-template", tmp_path / "bad.jinja"),
            "c.jsonl, line 1, cannot be rendered", "'nothing' is undefined", command="evaluate")  # fmt: skip


def test_an_adapter_learns_chats_and_talks_by_the_template_beside_it(
    program: Program, learn: Program, tmp_path: Path
) -> None:
    base, run = made(tmp_path / "base", GPT), tmp_path / "run"
    assert learn("--model", base, "--lora", "r=2", "--steps", 1, "--out", run)[0] == 0
    checkpoint = run / "checkpoints" / "step-000001"
    assert (checkpoint / "chat_template.jinja").read_text() == SHORT and not (base / "chat_template.jinja").exists()
    for words in ((run,), (checkpoint,), (base, "--adapter", run)):
        words = (*words, "--device", "cpu", "--max-new-tokens", 2)
        assert program("generate", *words, "--message", "1 + 1?")[0] == 0
    refused(program("generate", base, "--message", "1 + 1?"), f"{base} has no chat template", command="generate")
    (checkpoint / "chat_template.jinja").rename(base / "chat_template.jinja")
    (checkpoint / "checksums.json").unlink()
    assert (checkpoint / "tokenizer_config.json").exists()
    assert program("generate", base, "--adapter", checkpoint, *words[3:], "--message", "1 + 1?")[0] == 0


@pytest.fixture
def folder(learn: Program, tmp_path: Path) -> Path:
    assert learn("--steps", 1, "--out", tmp_path / "run")[0] == 0
    return tmp_path / "run"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Writer]:
    """Return a function that lets every model write this text."""

    def replace(text: str) -> Writer:
        writer = Writer(text.encode())
        monkeypatch.setattr(GPT2, "generate", lambda _, *args, **more: writer.generate(*args, **more))
        return writer

    return replace


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], io.TextIOWrapper]:
    """Return a function that puts a pipe with this content in the place of stdin."""

    def put(content: bytes) -> io.TextIOWrapper:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        stream = os.fdopen(read)
        monkeypatch.setattr("sys.stdin", stream)
        return stream

    return put


def test_a_message_is_answered_up_to_what_the_template_puts_behind_answers(
    program: Program, folder: Path, writes: Callable[[str], Writer], tmp_path: Path
) -> None:
    marked = tmp_path / "marked.jinja"
    marked.write_text("{% for m in messages %}{{ m.role[0] ~ m.content }}<end>{% endfor %}{{ 'a' if add_generation_prompt }}")
    writer = writes("the answer<end>more")
    words = ("generate", folder, "--device", "cpu", "--chat-template", marked, "--message", "Who?")
    assert program(*words) == (0, "the answer\n", "")
    assert bytes(writer.prompt) == b"uWho?<end>a" and writer.is_closed and writer.written == len("the answer<end>")
    more = ("--system", "Be.", "--stop", "swer", "--max-new-tokens", 7, "--temperature", 0)
    assert program(*words, *more) == (0, "the an\n", "")
    assert bytes(writer.prompt) == b"sBe.<end>uWho?<end>a"
    assert (writer.asked["max_new_tokens"], writer.asked["temperature"]) == (7, 0)


def test_a_conversation_through_a_pipe_keeps_its_messages(
    program: Program, folder: Path, writes: Callable[[str], Writer], typed: Callable[[bytes], io.TextIOWrapper]
) -> None:
    writer = writes("I.")
    with typed(b"Who?\n\n  \r\nAnd \xc5\xbe\xff\r\nlast"):
        status, out, err = program("generate", folder, "--device", "cpu", "--chat", "--max-new-tokens", 20)
    assert (status, out, err) == (0, "I.\nI.\nI.\n", "")
    assert bytes(writer.prompt).decode() == "u:Who?\na:I.\nu:And \u017e\ufffd\na:I.\nu:last\na:"


def test_a_terminal_shows_where_to_type(
    program: Program, folder: Path, writes: Callable[[str], Writer], typed: Callable[[bytes], io.TextIOWrapper],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes("I.")
    with typed(b"Who?\n\nAnd?\n") as stream:
        for name in ("stdin", "stdout"):
            monkeypatch.setattr(f"sys.{name}.isatty", lambda: True, raising=False)
        status, out, err = program("generate", folder, "--device", "cpu", "--chat")
        assert stream.isatty()
    assert (status, out, err) == (0, "> I.\n> > I.\n> \n", "")


def test_ctrl_c_ends_a_conversation_that_waits_for_a_message(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()

    def interrupted(thread: threading.Thread) -> None:
        thread.start()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(conversation, "start", interrupted)
    with os.fdopen(read) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert program("generate", folder, "--device", "cpu", "--chat") == (130, "\n", "")
        os.close(write)


@pytest.mark.parametrize(("words", "sentence"), [
    ((), "there is nothing to write: give --prompt TEXT to continue a text, or --chat for a conversation"),
    (("--prompt", "a", "--chat"), "leave one of them out"), (("--prompt", "a", "--message", "b"), "leave one of them out"),
    (("--chat", "--message", "b"), "--message answers a single message"),
    (("--prompt", "a", "--system", "b"), "--system is for a conversation; add --chat or --message"),
    (("--prompt", "a", "--chat-template", "b"), "--chat-template is for a conversation"),
])  # fmt: skip
def test_words_that_do_not_go_together_are_refused(
    program: Program, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    refused(program("generate", tmp_path / "none", *words), sentence, command="generate")


def test_a_model_without_a_template_or_with_a_bad_one_does_not_talk(
    program: Program, train: Program, folder: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    assert train("--steps", 1, "--out", plain)[0] == 0
    refused(program("generate", plain, "--chat"), "step-000001 has no chat template", "--chat-template", command="generate")
    words = ("generate", folder, "--message", "a", "--device", "cpu", "--chat-template", tmp_path / "bad.jinja")
    way = "; correct it, or name another with --chat-template"
    for source, what in (
        ("{% if messages | length < 9 %}{{ raise_exception('too few') }}{% endif %}", ": too few"),
        ("{% endif %}", ": Encountered unknown tag 'endif'. (line 1)"),
        ("{# nothing #}", " makes no tokens of the conversation"),
    ):
        (tmp_path / "bad.jinja").write_text(source)
        status, _, err = program(*words)
        assert status == 2 and err == f"asynctile generate: the chat template of {tmp_path}/bad.jinja{what}{way}\n"


def test_a_message_without_an_end_is_refused(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[[bytes], io.TextIOWrapper]
) -> None:
    monkeypatch.setattr(conversation, "MESSAGE_NBYTES", 10)
    with typed(b"a" * 11):
        status, _, err = program("generate", folder, "--device", "cpu", "--chat")
    assert status == 2 and "a line of the input has more than 10 bytes" in err
