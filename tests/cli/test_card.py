"""The model card of a run: its numbers, options and starting model, and a head that always stays readable.

tests/reference/test_walk_through.py checks that the Hub's own reader accepts it.
"""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.card import model_card
from asynctile.layers import GPT2Config
from tests.cli.conftest import Program

CONFIG = GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=32, vocab_size=256)


def validation(step: int, loss: float, perplexity: float, bits: float | None) -> dict[str, Any]:
    return {"step": step, "validation_loss": loss, "validation_perplexity": perplexity, "validation_bits_per_byte": bits,
            "validation_tokens": 64, "validation_s": 0.125}


LINES: list[dict[str, Any]] = [
    validation(0, 5.5, 244.7, 7.9),
    {"step": 1, "loss": 5.0, "tokens": 96, "step_s": 0.25},
    {"step": 1, "loss": "nan", "tokens": 96, "skipped": True},
    {"step": 2, "loss": 4.0, "tokens": 96, "tokens_per_s": 1234.5},
    validation(2, 4.25, 70.1, 6.1),
    {"step": 3, "loss": 3.5, "tokens": 96},
    validation(3, 4.5, 90.0, None),
]


def card(*, name: str = "run", options: dict[str, Any] | None = None, lines: Any = LINES, before: bytes | None = None) -> str:
    asked = {"seed": 7, "lr": 0.5, "device": "emulated", "device_memory": 99, "spill": "/home/me/s", "steps": 3}
    asked |= options or {}
    return model_card(name, CONFIG, {"options": asked, "versions": {"asynctile": "9.9"}}, lines, before).decode()


def head(text: str) -> dict[str, Any]:
    """Return the fields of the head whose values are JSON."""
    begin, lines, _ = text.split("---\n", 2)
    assert not begin
    fields = (line.partition(": ") for line in lines.splitlines())
    return {name: json.loads(value) for name, _, value in fields if value.startswith(('"', "["))}


def rows(text: str) -> dict[str, str]:
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in cells if len(row) == 2}


def test_lines_are_not_kept_in_memory() -> None:
    class Line(dict[str, Any]):
        """A dict that supports weak references."""

    made: list[weakref.ref[Line]] = []

    def lines() -> Iterator[Line]:
        for step in range(1000):
            line = Line(validation(step, 5.0, 148.4, None) if step % 2 else {"step": step, "loss": 5.0})
            made.append(weakref.ref(line))
            yield line
            assert sum(there() is not None for there in made) <= 5

    assert "| steps | 999 |" in card(lines=lines()) and len(made) == 1000


def test_numbers_are_those_of_the_metrics() -> None:
    found = rows(card())
    assert found["steps"] == "3"
    assert found["tokens trained on"] == "384"
    assert found["training loss, nats per token, mean of the last 3 steps"] == "4.1667"
    assert found["loss, nats per token, on held-out text after step 3"] == "4.5000"
    assert found["perplexity, on held-out text after step 3"] == "90.0000"
    assert not any("bits per byte" in name for name in found)
    assert found["tokens of held-out text"] == "64"
    assert found["lowest loss on held-out text"] == "4.2500, after step 2"
    (entry,) = head(card())["model-index"]
    metrics = entry["results"][0]["metrics"]
    assert [(metric["type"], metric["value"]) for metric in metrics] == [("loss", 4.5), ("perplexity", 90.0)]


def test_before_any_validation_the_head_claims_no_result() -> None:
    text = card(lines=LINES[1:2])
    assert "model-index" not in head(text)
    assert rows(text).keys() >= {"steps", "training loss, nats per token, mean of the last 1 step"}


def test_the_card_names_what_decides_the_result_and_no_paths() -> None:
    text = card(options={"data": "/home/me/texts", "tokenizer": "/home/me/tok/tokenizer.json", "tile": None})
    found = rows(text)
    assert (found["`--data`"], found["`--tokenizer`"], found["`--seed`"]) == ("texts", "tokenizer.json", "7")
    assert not {"`--tile`", "`--device`", "`--device-memory`", "`--spill`", "`--steps`"} & found.keys()
    assert "/home" not in text and "1234" not in text
    assert head(text)["model-index"][0]["results"][0]["dataset"]["name"] == "texts"
    assert "asynctile 9.9" in text


@pytest.mark.parametrize(("model", "sentence"), [
    (None, "Training started from random weights, seed 7."),
    ("gpt2", "Training started from random weights, seed 7."),
    ("/home/me/shape.json", "Training started from random weights, seed 7."),
    ("/home/me/models/tuned", "Training started from the weights of `tuned`; this card"),
    ("/c/hub/models--openai-community--gpt2/snapshots/607a30d", "Training started from the weights of `openai-community/gpt2`"),
])  # fmt: skip
def test_the_card_names_the_model_that_the_run_started_from(model: str | None, sentence: str) -> None:
    text = card(options={"model": model})
    assert sentence in text
    assert head(text).get("base_model") == ("openai-community/gpt2" if model and "--" in model else None)


@pytest.mark.parametrize(("before", "kept"), [
    (None, []),
    (b"", []),
    (b"# no head\nlicense: mit\n", []),
    (b"---\nlicense: mit\n# never ends", []),
    (b"---\r\nlicense: mit\r\nlanguage:\r\n- en\r\n  - fr\r\ntags:\r\n- exbert\r\n---\r\n",
     ["license: mit", "language:", "- en", "  - fr"]),
    (b"---\nlicense: other\nlicense_name: 'my own'\nlicense_link: https://a.b/c\nbase_model: x/y\n---\n# x",
     ["license: other", "license_name: 'my own'", "license_link: https://a.b/c"]),
    (b"---\nlicense: [mit\nlanguage: {a: b}\nlicense_link: a: b\n---\n", []),
    (b"---\nlicense_link: 'a\n---\n", []),
    (b"---\nlicense: \xff\n---\n", []),
    (b"---\nlicense: mit\n" + b"#" * (1 << 16) + b"\n---\n", []),
])  # fmt: skip
def test_license_and_language_of_an_earlier_card_stay(before: bytes | None, kept: list[str]) -> None:
    text = card(before=before)
    fields = text.split("---\n")[1].splitlines()
    assert fields[4:] == kept
    again = card(before=text.encode())
    assert again == text


def test_any_name_stays_inside_its_field() -> None:
    odd = "a|b\n---\n`c`<x>\x00\x85\u2028\ud800é"
    text = card(name=odd, options={"data": f"/{odd}", "model": f"/{odd}"})
    assert head(text)["model-index"][0]["name"] == "a|b --- `c`<x>\\x00 \\ud800é"
    assert "# a\\|b --- 'c'&lt;x>" in text
    assert text.count("\n---\n") == 1


def test_every_save_and_the_best_model_have_the_card_of_their_step(train: Program, tmp_path: Path) -> None:
    assert train("--out", tmp_path / "run", "--save-every", 3, "--validate-every", 2)[0] == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    for name, step, validated in (("step-000003", 3, 2), ("step-000006", 6, 6)):
        found = rows((checkpoints / name / "README.md").read_text())
        assert found["steps"] == str(step)
        assert f"loss, nats per token, on held-out text after step {validated}" in found
    best = rows((checkpoints / "best" / "README.md").read_text())
    assert best["lowest loss on held-out text"].endswith(f"after step {best['steps']}")


def test_a_resumed_run_has_the_card_of_a_run_that_was_not_stopped(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--save-every", 3)[0] == 0
    card = run / "checkpoints" / "step-000006" / "README.md"
    expected = card.read_text()
    shutil.rmtree(card.parent)
    assert program("train", "--resume", "--out", run)[0] == 0
    assert card.read_text() == expected


def test_a_license_written_by_hand_goes_on_with_the_run_and_into_the_next_one(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    assert train("--out", run)[0] == 0
    card = run / "checkpoints" / "step-000006" / "README.md"
    card.write_text("---\nlicense: mit\n---\n# My model\n")
    assert program("train", "--resume", "--out", run, "--steps", 7)[0] == 0
    for words in ((), ("--tokenizer", "bpe:256")):
        assert train("--out", other, "--model", card.parents[1] / "step-000007", "--steps", 1, *words)[0] == 0
        text = (other / "checkpoints" / "step-000001" / "README.md").read_text()
        assert text.split("---\n")[1].splitlines()[-1] == "license: mit"
        assert "Training started from the weights of `step-000007`" in text
        shutil.rmtree(other)
