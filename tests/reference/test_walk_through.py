"""The tutorial on fine-tuning a Hugging Face model, run word for word, offline.

Where the tutorial fetches gpt2 from the Hub, Hugging Face's cache holds a small random GPT-2 under that name.
test_transformers.py covers the rest of the exchange.
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
TUTORIAL = ROOT / "docs" / "tutorials" / "fine-tune-hugging-face.md"


def told() -> list[tuple[str, str]]:
    """Return the blocks and commands of the tutorial in order: ("python", a block) or ("asynctile", a command line)."""
    pattern = r"^```python\n(.*?)^```|^\$ (asynctile [^\n]*)$"
    found = re.findall(pattern, TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)
    return [("python", block) if block else ("asynctile", line) for block, line in found]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a Hugging Face cache with a GPT-2 of the published one's form, but small."""
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
    """Run a block in a process without network and return its output."""
    environment = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PATH": ""}
    command = [sys.executable, "-c", block]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def their_loss(folder: Path, texts: Path) -> tuple[float, int]:
    """Return transformers' loss on a text in windows of 64 tokens, and the number of targets."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = np.concatenate([tokenizer(path.read_text())["input_ids"] for path in sorted(texts.iterdir())])
    count = (len(ids) - 1) // 64 * 64
    inputs, targets = (torch.from_numpy(ids[begin : begin + count].reshape(-1, 64)) for begin in (0, 1))
    total = 0.0
    with torch.no_grad():
        for rows, labels in zip(inputs.split(256), targets.split(256), strict=True):
            total += float(model(input_ids=rows, labels=labels, shift_labels=labels).loss) * len(rows) * 64
    return total / count, count


def numbers(printed: str) -> dict[str, float]:
    """Return the numbers that `asynctile evaluate` printed, by name."""
    found = re.findall(r"^(loss|perplexity|bits per byte|tokens) +([\d.,]+)", printed, re.MULTILINE)
    return {name: float(value.replace(",", "")) for name, value in found}


def validations(run: str) -> dict[int, dict[str, float]]:
    """Return the validations in the metrics of a run, by step."""
    lines = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "validation_loss" in line}


def test_the_tutorial_runs_as_printed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: dict[str, str] = {}
    for kind, words in told():
        if kind == "python":
            printed[words] = python(words, cache)
        else:
            assert main(shlex.split(words)[1:]) == 0
            printed[words.removeprefix("asynctile ")] = capsys.readouterr().out

    trained = printed["train --model models/small --data texts/ --lr 1e-3 --steps 200 --out runs/tuned"]
    assert "transformers can load runs/tuned/checkpoints/step-000200 as it is" in trained
    validated = validations("runs/tuned")
    newest, best = validated[200], min(validated.values(), key=lambda line: line["validation_loss"])
    assert best["step"] > 0 and best["validation_loss"] < validated[0]["validation_loss"] - 0.5
    assert numbers(printed["evaluate runs/tuned"]) == pytest.approx({
        "loss": newest["validation_loss"], "perplexity": newest["validation_perplexity"],
        "bits per byte": newest["validation_bits_per_byte"], "tokens": newest["validation_tokens"],
    }, abs=1e-5)  # fmt: skip

    found = numbers(printed["evaluate runs/tuned/checkpoints/best --data texts/"])
    loss, tokens = their_loss(Path("runs/tuned/checkpoints/best"), tmp_path / "texts")
    print(f"{loss - found['loss']:+.1e} from transformers' loss of {loss:.6f}")
    assert found["loss"] == pytest.approx(loss, abs=1e-4) and found["tokens"] == tokens
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-5)
    assert found["loss"] < numbers(printed["evaluate models/small --data texts/"])["loss"] - 0.5

    (opened,) = (text for words, text in printed.items() if "ModelCard" in words)
    assert len(re.findall("^The", opened, re.MULTILINE)) >= 2
    assert re.findall(r"^(loss|perplexity|bits_per_byte) (\d+\.\d+)$", opened, re.MULTILINE) == [
        (kind, str(line[f"validation_{kind}"])) for line in (newest, best) for kind in ("loss", "perplexity", "bits_per_byte")]

    validated = validations("runs/gpt2")  # from the model in the cache
    assert validated[500]["validation_loss"] < validated[0]["validation_loss"] - 0.1
    for run, start in (("tuned", "small"), ("gpt2", "gpt2")):
        card = ModelCard.load(f"runs/{run}/checkpoints/best/README.md")
        assert f"started from the weights of `{start}`" in card.text
        assert (card.data.library_name, card.data.pipeline_tag, card.data.model_name) == (
            "transformers", "text-generation", run)


@pytest.mark.parametrize("name", ["run", "no", "1.5", "a: b # c", "- x", "'\"\\", "---", "a\x00\x85\u2028\ud800\U0001f642"])
@pytest.mark.parametrize("before", [
    None,
    b"---\nlicense: mit\nlanguage:\n- en\n- fr\n---\n",
    b"---\nlicense: other\nlicense_name: 'my own'\nlicense_link: https://a.b/c\n---\n",
    b"---\nlicense: [mit\nlanguage: {a\nlicense_link: a: b\nlicense_name: 'x\n---\n",
], ids=["none", "a list", "quoted", "broken"])  # fmt: skip
def test_the_hubs_reader_accepts_a_card_whatever_was_there_before(name: str, before: bytes | None) -> None:
    record = {"options": {"seed": 1, "data": f"/{name}", "model": f"/{name}"}, "versions": {}}
    lines = [{"step": 1, "loss": 2.0, "tokens": 5}, {"step": 1, "validation_loss": 1.5, "validation_perplexity": 4.5}]
    data = ModelCard(model_card(name, GPT2Config.named("gpt2"), record, lines, before).decode()).data
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("loss", 1.5), ("perplexity", 4.5)]
    expected = {b"m": ("mit", ["en", "fr"]), b"o": ("other", None)}.get((before or b"")[13:14], (None, None))
    assert (data.license, data.language) == expected
    assert isinstance(data.model_name, str)
    if name.isprintable():
        assert data.model_name == name
