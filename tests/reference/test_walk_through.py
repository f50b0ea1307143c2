"""The README's way from a model of Hugging Face through a fine-tuning and back, word for word, offline.

Where the README takes gpt2 from the Hub, a small random GPT-2 stands under that name in Hugging Face's cache. What else is
exchanged is tested in test_transformers.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from huggingface_hub import ModelCard  # noqa: E402

from asynctile.cli import main  # noqa: E402
from asynctile.cli.card import model_card  # noqa: E402
from asynctile.layers import GPT2Config  # noqa: E402
from asynctile.layers.tokenizer import train_bpe  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
REVISION = "0" * 40
MARK = "<!-- tests/reference/test_walk_through.py runs all that follows here, as it stands -->"


def told() -> list[tuple[str, str]]:
    """What the README says to do, in order: ("python", a block) or ("asynctile", a line)."""
    _, section = (ROOT / "README.md").read_text().split(MARK)
    found = re.findall(r"^```python\n(.*?)^```|^    (asynctile [^\n]*)$", section.split("\n## ")[0], re.DOTALL | re.MULTILINE)
    return [("python", block) if block else ("asynctile", line) for block, line in found]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Hugging Face's folder, with a GPT-2 of the published one's form but for its size."""
    hub = tmp_path / "hf" / "hub" / "models--openai-community--gpt2"
    vocab = json.loads(train_bpe([(ROOT / "README.md").read_text()], 400).to_json())["model"]
    names = {**vocab["vocab"], "<|endoftext|>": len(vocab["vocab"])}
    end = len(names) - 1
    merges = [tuple(pair) for pair in vocab["merges"]]
    tokenizer = transformers.GPT2Tokenizer(vocab=names, merges=merges, model_max_length=64)
    tokenizer.save_pretrained(hub / "snapshots" / REVISION)
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=len(names), bos_token_id=end, eos_token_id=end)  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(hub / "snapshots" / REVISION)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(REVISION)
    return tmp_path / "hf"


def python(block: str, cache: Path) -> str:
    """What a block prints, in a process that finds no network."""
    environment = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PATH": ""}
    command = [sys.executable, "-c", block]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def their_loss(folder: Path, texts: Path) -> tuple[float, int]:
    """Transformers' own loss and the number of targets, of all that a text has for a model of 64 tokens."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = np.concatenate([tokenizer(path.read_text())["input_ids"] for path in sorted(texts.iterdir())])
    count = (len(ids) - 1) // 64 * 64
    inputs, targets = (torch.from_numpy(ids[begin : begin + count].reshape(-1, 64)) for begin in (0, 1))
    with torch.no_grad():
        return float(model(input_ids=inputs, labels=targets, shift_labels=targets).loss), count


def numbers(printed: str) -> dict[str, float]:
    """What `asynctile evaluate` prints, by what stands before it."""
    found = re.findall(r"^(loss|perplexity|bits per byte|tokens) +([\d.,]+)", printed, re.MULTILINE)
    return {name: float(value.replace(",", "")) for name, value in found}


def test_a_model_of_the_hub_is_tuned_evaluated_and_opened_as_printed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / "texts" / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)
    printed = []
    for kind, words in told():
        if kind == "python":
            printed.append(python(words, cache))
        else:
            assert main(shlex.split(words)[1:]) == 0
            printed.append(capsys.readouterr().out)
    _, trained, of_the_run, of_a_text, opened = printed
    assert "transformers opens runs/tuned/checkpoints/step-000500 as it is" in trained
    lines = [json.loads(line) for line in Path("runs/tuned/metrics.jsonl").read_text().splitlines()]
    validated = {line["step"]: line for line in lines if "validation_loss" in line}
    newest, best = validated[500], min(validated.values(), key=lambda line: line["validation_loss"])
    assert best["step"] > 0 and best["validation_loss"] < validated[0]["validation_loss"] - 0.1
    assert numbers(of_the_run) == pytest.approx({
        "loss": newest["validation_loss"], "perplexity": newest["validation_perplexity"],
        "bits per byte": newest["validation_bits_per_byte"], "tokens": newest["validation_tokens"],
    }, abs=1e-5)  # fmt: skip
    found = numbers(of_a_text)
    loss, tokens = their_loss(Path("runs/tuned/checkpoints/best"), tmp_path / "texts")
    print(f"{loss - found['loss']:+.1e} from transformers' loss of {loss:.6f}")
    assert found["loss"] == pytest.approx(loss, abs=1e-4) and found["tokens"] == tokens
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-5)
    assert len(re.findall("^Once", opened, re.MULTILINE)) >= 2
    assert re.findall(r"^(loss|perplexity|bits_per_byte) (\d+\.\d+)$", opened, re.MULTILINE) == [
        (kind, str(line[f"validation_{kind}"])) for line in (newest, best) for kind in ("loss", "perplexity", "bits_per_byte")]
    card = ModelCard.load("runs/tuned/checkpoints/best/README.md")
    assert "began with the weights of `gpt2`" in card.text
    assert (card.data.library_name, card.data.pipeline_tag, card.data.model_name) == (
        "transformers", "text-generation", "tuned")


@pytest.mark.parametrize("name", ["run", "no", "1.5", "a: b # c", "- x", "'\"\\", "---", "a\x00\x85\u2028\ud800\U0001f642"])
@pytest.mark.parametrize("before", [
    None,
    b"---\nlicense: mit\nlanguage:\n- en\n- fr\n---\n",
    b"---\nlicense: other\nlicense_name: 'my own'\nlicense_link: https://a.b/c\n---\n",
    b"---\nlicense: [mit\nlanguage: {a\nlicense_link: a: b\nlicense_name: 'x\n---\n",
], ids=["none", "a list", "quoted", "broken"])  # fmt: skip
def test_the_hubs_reader_takes_a_card_whatever_stood_there_before(name: str, before: bytes | None) -> None:
    record = {"options": {"seed": 1, "data": f"/{name}", "model": f"/{name}"}, "versions": {}}
    lines = [{"step": 1, "loss": 2.0, "tokens": 5}, {"step": 1, "validation_loss": 1.5, "validation_perplexity": 4.5}]
    data = ModelCard(model_card(name, GPT2Config.named("gpt2"), record, lines, before).decode()).data
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("loss", 1.5), ("perplexity", 4.5)]
    expected = {b"m": ("mit", ["en", "fr"]), b"o": ("other", None)}.get((before or b"")[13:14], (None, None))
    assert (data.license, data.language) == expected
    assert isinstance(data.model_name, str)
    if name.isprintable():
        assert data.model_name == name
