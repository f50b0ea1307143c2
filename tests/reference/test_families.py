"""LLaMA, Mistral, Qwen2 and Qwen3 against transformers: logits, gradients, training, files and greedy texts, random weights.

The shapes are odd, and a key head serves one, four or eight heads of queries. test_transformers.py does the same for GPT-2.

Gradients are compared with those of transformers in float64. The gradient of a bias of keys nearly cancels: in float32
transformers is 4e-6 from its own float64 there, and asynctile 2e-6.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from asynctile import Engine  # noqa: E402
from asynctile.cli import main  # noqa: E402
from asynctile.cli.terminal import printable  # noqa: E402
from asynctile.layers import Model, Trainer  # noqa: E402
from asynctile.layers.tokenizer import ByteTokenizer  # noqa: E402
from tests.layers.training import assert_same_tensors  # noqa: E402
from tests.reference.bounds import GRADIENT, LOGITS, OPTIMIZER, TRAINED, check_gradients, check_trained, distance  # noqa: E402
from tests.reference.test_generate import PROMPT, TIE  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

HEADS, VOCAB, POSITIONS, TILE, STEPS = 8, 151, 64, 37, 20
#: With the usual 1e-8, a weight whose gradient is rounding error moves by the learning rate either way: after 20 steps
#: transformers in float32 is up to 5e-5 from its own float64, and asynctile up to 6e-5.
ADAMW = replace(OPTIMIZER, eps=1e-6)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
#: By family: the names of its classes in transformers, and settings that no other family tries.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 12, "tie_word_embeddings": False}),
    "llama, scaled and biased": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"head_dim": 12, "sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "qwen3": ("Qwen3", {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}
CASES = [(name, ratio) for name in FAMILIES for ratio in (1, 4, 8)]
#: Entries of a configuration that depend on where it is from.
NOT_ARITHMETIC = {"_name_or_path", "transformers_version", "dtype"}
Tensors = dict[str, Any]


def theirs_of(name: str, ratio: int, **more: Any) -> Any:
    """Return a random model of a family; no vector of it is all ones or all zeros. ratio: heads of queries to a key head."""
    torch.manual_seed(ratio)
    kind, settings = FAMILIES[name]
    shape = {
        "hidden_size": 80, "intermediate_size": 109, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // ratio, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
        "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.05,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**shape | settings | more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value += 0.1 * torch.randn_like(value)
    return model


def batch(seed: int, vocab_size: int = VOCAB) -> tuple[Any, Any]:
    """Return tokens and targets (2, 45), some of them ignored."""
    random = np.random.default_rng(seed)
    tokens, targets = random.integers(0, vocab_size, (2, 2, 45))
    targets[random.random(targets.shape) < 0.1] = -100
    return tokens, targets


def loss_of(model: Any, tokens: Any, targets: Any) -> Any:
    logits = model(torch.from_numpy(tokens)).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())


def logits_of(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def state_of(model: Any) -> Tensors:
    return {name: value.detach().float().numpy().copy() for name, value in model.named_parameters()}


@pytest.mark.parametrize(("name", "ratio"), CASES)
async def test_logits_gradients_and_training_agree(name: str, ratio: int, tmp_path: Path) -> None:
    theirs = theirs_of(name, ratio)
    theirs.save_pretrained(tmp_path)
    tokens, targets = batch(0)
    async with Engine("emulated", device_memory="512KiB") as engine:
        model = await Model.from_pretrained(engine, tmp_path, tile=TILE)
        assert_same_tensors(await model.state_dict(), state_of(theirs))
        away = distance(await model.logits(tokens), logits_of(theirs, tokens))
        print(f"logits of {name}, {ratio} to 1: {away:.2e}, bound {LOGITS:.0e}")
        assert away < LOGITS
        trainer = Trainer(model, ADAMW)
        exact = copy.deepcopy(theirs).double()
        loss_of(exact, tokens, targets).backward()
        expected = {name: value.grad.numpy() for name, value in exact.named_parameters()}
        check_gradients(await trainer.gradients(tokens, targets), expected, GRADIENT)
        matrices = [value for value in theirs.parameters() if value.ndim == 2]
        vectors = [value for value in theirs.parameters() if value.ndim != 2]
        adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": ADAMW.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps)  # fmt: skip
        for seed in range(1, STEPS + 1):
            tokens, targets = batch(seed)
            adamw.zero_grad()
            loss = loss_of(theirs, tokens, targets)
            loss.backward()
            adamw.step()
            assert (await trainer.step(tokens, targets)).loss == pytest.approx(loss.item(), rel=1e-5)
        check_trained(await model.state_dict(), state_of(theirs), TRAINED, steps=STEPS)
        assert engine.statistics().uploaded_bytes > 0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
async def test_files_go_both_ways_bit_for_bit(name: str, dtype: str, tmp_path: Path) -> None:
    """Their shards are read exactly, and what is saved here loads there with nothing missing and nothing left over."""
    theirs = theirs_of(name, 4).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1
    async with Engine("cpu") as engine:
        model = await Model.from_pretrained(engine, tmp_path / "theirs", tile=TILE)
        assert_same_tensors(await model.state_dict(), state_of(theirs))
        await model.save_pretrained(tmp_path / "ours", dtype=dtype)
        logits = await model.logits(batch(0)[0])
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert {str(value.dtype) for value in again.parameters()} == {f"torch.{dtype}"}
    assert_same_tensors(state_of(again), state_of(theirs))
    assert distance(logits, logits_of(again.float(), batch(0)[0])) < LOGITS
    ours, wanted = again.config.to_dict(), type(theirs).from_pretrained(tmp_path / "theirs").config.to_dict()
    assert ours.keys() - wanted.keys() <= {"head_dim"}  # Qwen2 reads it and does not write it
    ours, wanted = ({key: value for key, value in config.items() if key in wanted and key not in NOT_ARITHMETIC}
                    for config in (ours, wanted))  # fmt: skip
    assert ours == wanted


async def test_a_random_model_of_ours_opens_there(tmp_path: Path) -> None:
    """Its new weights have transformers' distribution: no parameter is missing, biases are zero and norms one."""
    for name in FAMILIES:
        theirs = theirs_of(name, 4)
        theirs.save_pretrained(tmp_path / "theirs")
        async with Engine("cpu") as engine:
            config = (await Model.from_pretrained(engine, tmp_path / "theirs")).config
            model = await Model.create(engine, config, seed=1)
            await model.save_pretrained(tmp_path / "ours")
        for key, value in state_of(type(theirs).from_pretrained(tmp_path / "ours")).items():
            if value.ndim == 1:
                assert (value == (0.0 if key.endswith(".bias") else 1.0)).all(), key
            else:
                assert value.std() == pytest.approx(0.05, rel=0.1), key


@pytest.mark.parametrize(("name", "ratio"), CASES)
def test_the_likeliest_text_is_that_of_transformers(name: str, ratio: int, tmp_path: Path, capsys: Any) -> None:
    model = theirs_of(name, ratio, vocab_size=256, initializer_range=0.3)
    model.save_pretrained(tmp_path)
    ByteTokenizer().save(tmp_path)
    prompt = list(PROMPT.encode())
    found = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=POSITIONS - len(prompt), use_cache=True, pad_token_id=0,
        output_scores=True, return_dict_in_generate=True)  # fmt: skip
    best = torch.stack(found.scores)[:, 0].topk(2).values.numpy()
    tied = np.flatnonzero(best[:, 0] - best[:, 1] < TIE)
    tokens = found.sequences[0, len(prompt) :].tolist()[: tied[0] if tied.size else None]
    assert len(tokens) > 20 and len(set(tokens)) > 5
    words = ["--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", len(tokens)]
    capsys.readouterr()
    assert main(["generate", *map(str, [tmp_path, *words])]) == 0
    assert capsys.readouterr().out == f"{PROMPT}{printable(ByteTokenizer().decode(tokens))}\n"
