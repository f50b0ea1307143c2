"""GPT2 as a caller meets it: refusals and their wording, independence of the tile, names.

tests/reference tests values, tests/reference/test_transformers.py files from elsewhere, test_trainer.py the trainer,
test_generation.py generation.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from asynctile import DeviceError, Engine
from asynctile.layers import GPT2, Trainer
from tests.layers.training import SMALL, assert_same_tensors, floor_of, lively

CONFIG = SMALL.config
TOKENS, TARGETS = SMALL.batch_of_tokens()
Arguments = dict[str, Any]


def one_sentence(error: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    """Assert that the message fits on one line and names the value, the expected values and the remedy."""
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in {text!r}"


@pytest.mark.parametrize(
    ("arguments", "kind", "parts"),
    [
        ({"device": "gpu"}, DeviceError, ("'gpu'", "expected", "'cpu'", "'emulated'")),
        ({"device": ""}, DeviceError, ("''", "expected")),
        ({"device": "cuda:64"}, DeviceError, ("'cuda:64'", "CuPy|driver|not there")),
        ({"device": "cuda:"}, DeviceError, ("'cuda:'", "'auto', 'cpu', 'emulated' or 'cuda:N'")),
        ({"device": "cpu", "device_memory": "1GiB"}, ValueError, ("device_memory", "cpu", "host_memory")),
        ({"device": "auto", "device_memory": 1 << 30}, ValueError, ("device_memory", "host_memory")),
        ({"device": "cpu", "link_rate": "1GB"}, ValueError, ("link_rate", "emulated", "leave it out")),
        ({"device": "emulated", "peer_rate": "1GB"}, ValueError, ("peer_rate", "several emulated devices", "leave it out")),
        ({"device": "emulated*2", "peer_rate": 0}, ValueError, ("peer_rate is 0", "above zero")),
        ({"spill_limit": "1GiB"}, ValueError, ("spill_limit", "without spill", "leave")),
        ({"spill": ".", "spill_limit": 0}, ValueError, ("spill_limit is 0", "above zero")),
        ({"watchdog": 0}, ValueError, ("watchdog is 0", "None to wait for ever")),
        ({"precision": "bf16"}, ValueError, ("precision 'bf16' needs device='cuda:N'", "cpu and emulated compute in fp32")),
        ({"device": "emulated", "precision": "tf32"}, ValueError, ("'tf32' needs device='cuda:N'",)),
        ({"precision": "fp16"}, ValueError, ("'fp16' is not known", "expected 'fp32', 'tf32' or 'bf16'")),
        ({"prefetch": -1}, ValueError, ("prefetch is -1", "at least 0")),
        ({"prefetch": 1.5}, ValueError, ("prefetch is 1.5", "at least 0")),
        ({"prefetch": True}, ValueError, ("prefetch is True", "at least 0")),
        ({"host_memory": -5}, ValueError, ("-5", "negative|above zero")),
        ({"host_memory": 0}, ValueError, ("host_memory is 0", "above zero")),
        ({"device": "emulated", "device_memory": "-1MiB"}, ValueError, ("-1MiB", "negative")),
        ({"device": "emulated", "device_memory": "much"}, ValueError, ("'much'", "512MiB")),
        ({"device": "emulated", "device_memory": float("nan")}, ValueError, ("nan", "512MiB")),
        ({"device": "emulated", "device_memory": "1 furlong"}, ValueError, ("furlong", "GiB")),
        ({"device": "emulated", "link_rate": 0}, ValueError, ("link_rate is 0", "above zero")),
    ],
)
def test_an_engine_refuses_wrong_arguments(arguments: Arguments, kind: type[Exception], parts: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        Engine(**arguments)
    one_sentence(caught, *parts)


T = np.zeros((2, 5), np.int64)
BAD_TOKENS: list[tuple[Any, type[Exception], tuple[str, ...]]] = [
    (T.astype(np.float32), TypeError, ("float32", "integer token ids")),
    ([["a", "b"]], TypeError, ("dtype", "integer")),
    (T.astype(bool), TypeError, ("bool", "integer")),
    (None, TypeError, ("object", "integer")),
    (T[0], ValueError, (r"\(5,\)", r"\(B, T\)")),
    (T[None], ValueError, (r"\(1, 2, 5\)", r"\(B, T\)")),
    (T[:0], ValueError, (r"\(0, 5\)", r"\(B, T\)")),
    (T[:, :0], ValueError, (r"\(2, 0\)", r"\(B, T\)")),
    (T + CONFIG.vocab_size, ValueError, (str(CONFIG.vocab_size), "vocab_size", "tokenizer")),
    (T - 1, ValueError, ("-1", "from 0 to")),
    (T + 2**32 + 1, ValueError, (str(2**32 + 1), "from 0 to")),
    (np.zeros((1, CONFIG.block_size + 1), int), ValueError, ("25", "block_size is 24", "shorten")),
]


async def test_wrong_tokens_are_refused_everywhere() -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, tile=SMALL.tile)
        trainer = Trainer(model)
        for tokens, kind, parts in BAD_TOKENS:
            good = np.zeros(np.shape(tokens) if np.ndim(tokens) == 2 else (2, 5), int)
            for call in (model.logits, partial(model.loss, targets=good), partial(trainer.step, targets=good),
                         partial(trainer.gradients, targets=good)):  # fmt: skip
                with pytest.raises(kind) as caught:
                    await call(tokens)
                one_sentence(caught, "tokens", *parts)
        assert engine.statistics().operations == 0
        assert trainer.step_count == 0


async def test_wrong_targets_are_refused() -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, CONFIG, tile=SMALL.tile)
        trainer = Trainer(model, micro_batches=2)
        cases: list[tuple[Any, Any, str]] = [
            (T, T[:, :4], r"targets have shape \(2, 4\).*\(2, 5\)"),
            (T, T - 100, "every target is -100"),
            (T, T - 99, "targets contains -99.* or -100"),
            (np.zeros((3, 5), int), np.zeros((3, 5), int), "3 sequences is not divisible by micro_batches 2"),
        ]
        for tokens, targets, sentence in cases:
            with pytest.raises(ValueError, match=sentence) as caught:
                await trainer.step(tokens, targets)
            one_sentence(caught)
        assert engine.statistics().operations == 0


async def test_a_new_model_is_the_same_for_every_tile_budget_and_device() -> None:
    found = []
    for tile in (7, None):
        async with Engine("cpu") as engine:
            found.append(await (await GPT2.create(engine, CONFIG, seed=3, tile=tile)).state_dict())
    async with Engine("emulated", device_memory=await floor_of(SMALL)) as engine:
        found.append(await (await GPT2.create(engine, CONFIG, seed=3, tile=SMALL.tile)).state_dict())
    for other in found[1:]:
        assert_same_tensors(other, found[0])
    async with Engine("cpu") as engine:
        another = await (await GPT2.create(engine, CONFIG, seed=4)).state_dict()
    assert not np.array_equal(another["transformer.wte.weight"], found[0]["transformer.wte.weight"])


async def test_names_and_shapes_are_hugging_faces() -> None:
    d, inner = CONFIG.n_embd, 4 * CONFIG.n_embd
    block = {
        "ln_1.weight": (d,), "ln_1.bias": (d,), "ln_2.weight": (d,), "ln_2.bias": (d,),
        "attn.c_attn.weight": (d, 3 * d), "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d), "attn.c_proj.bias": (d,),
        "mlp.c_fc.weight": (d, inner), "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, d), "mlp.c_proj.bias": (d,),
    }  # fmt: skip
    expected = {f"transformer.h.{n}.{name}": shape for n in range(CONFIG.n_layer) for name, shape in block.items()} | {
        "transformer.wte.weight": (CONFIG.vocab_size, d), "transformer.wpe.weight": (CONFIG.block_size, d),
        "transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,),
    }  # fmt: skip
    async with Engine("cpu") as engine:
        state = await (await GPT2.create(engine, CONFIG, tile=SMALL.tile)).state_dict()
    assert {name: value.shape for name, value in state.items()} == expected
    assert {value.dtype for value in state.values()} == {np.dtype(np.float32)}
    assert sum(value.size for value in state.values()) == CONFIG.parameter_count


async def test_logits_see_no_later_token_and_no_other_sequence() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        whole = await model.logits(TOKENS)
        changed = TOKENS.copy()
        changed[0, 9:] = (changed[0, 9:] + 1) % CONFIG.vocab_size
        other = await model.logits(changed)
    assert np.array_equal(other[0, :9], whole[0, :9])
    assert np.array_equal(other[1], whole[1])
    assert not np.array_equal(other[0, 9:], whole[0, 9:])


async def test_the_loss_is_that_of_the_logits() -> None:
    async with Engine("cpu") as engine:
        model = await lively(engine, SMALL)
        logits = (await model.logits(TOKENS)).astype(np.float64)
        loss = await model.loss(TOKENS, TARGETS)
    counts = TARGETS != -100
    wide = logits - logits.max(-1, keepdims=True)
    losses = np.log(np.exp(wide).sum(-1)) - np.take_along_axis(wide, np.where(counts, TARGETS, 0)[..., None], -1)[..., 0]
    assert loss == pytest.approx(losses[counts].mean(), rel=1e-6)
