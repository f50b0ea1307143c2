"""The likeliest text of a model equals that of transformers' `generate` on the same files, with its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from asynctile.cli import main  # noqa: E402
from asynctile.cli.terminal import printable  # noqa: E402
from asynctile.layers.tokenizer import ByteTokenizer, Tokenizer, train_bpe  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

#: Logits closer than this may be in another order here: they differ by rounding, because the sums over k have another order.
TIE = 1e-4
PROMPT = "Once upon: č"


def model_of(seed: int, vocab_size: int, **shape: int) -> Any:
    """Return a random model with logits of some units, so that the text does not stay at one token."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=vocab_size, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **shape)  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def their_tokens(model: Any, prompt: list[int], penalty: float) -> list[int]:
    """Return transformers' tokens up to its last position, or up to the first place where two tokens are equally likely."""
    found = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=model.config.n_positions - len(prompt), use_cache=True,
        repetition_penalty=penalty, pad_token_id=0, output_scores=True, return_dict_in_generate=True)  # fmt: skip
    best = torch.stack(found.scores)[:, 0].topk(2).values.numpy()
    tied = np.flatnonzero(best[:, 0] - best[:, 1] < TIE)
    tokens: list[int] = found.sequences[0, len(prompt) :].tolist()
    return tokens[: tied[0]] if tied.size else tokens


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize(
    ("seed", "tokenizer", "vocab_size", "shape"),
    [
        (1, ByteTokenizer(), 256, {"n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 64}),
        (2, ByteTokenizer(), 300, {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 128}),
        (3, train_bpe([f"{PROMPT} the tile " * 9], 280), 280, {"n_layer": 2, "n_head": 3, "n_embd": 72, "n_positions": 64}),
        (4, ByteTokenizer(), 256, {"n_layer": 4, "n_head": 2, "n_embd": 128, "n_positions": 256}),
    ],
)
def test_the_likeliest_text_is_that_of_transformers(
    seed: int, tokenizer: Tokenizer, vocab_size: int, shape: dict[str, int], penalty: float, tmp_path: Path, capsys: Any
) -> None:
    model = model_of(seed, vocab_size, **shape)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    prompt = tokenizer.encode(PROMPT).astype(np.int64).tolist()
    tokens = their_tokens(model, prompt, penalty)
    assert len(tokens) > 20 and len(set(tokens)) > 5
    words = ["--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", len(tokens), "--repetition-penalty", penalty]
    capsys.readouterr()
    assert main(["generate", *map(str, [tmp_path, *words])]) == 0
    written = [id for id in tokens if id < tokenizer.vocab_size]
    assert capsys.readouterr().out == f"{PROMPT}{printable(tokenizer.decode(written))}\n"
