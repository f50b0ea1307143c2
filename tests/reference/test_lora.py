"""Adapters against PEFT: logits, the gradient of every A and B, and training, for every family, with random A and B.

The shapes are odd, adapters are on attention and on the MLP. Gradients are compared with those of PEFT in float64, as in
test_families.py.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from asynctile import Engine  # noqa: E402
from asynctile.layers import LoRA, Model, Trainer  # noqa: E402
from asynctile.layers.model import model_state_of  # noqa: E402
from asynctile.share import runtime_of  # noqa: E402
from tests.reference.bounds import GRADIENT, LOGITS, TRAINED, check_gradients, check_trained, distance  # noqa: E402
from tests.reference.test_families import (  # noqa: E402
    ADAMW,
    POSITIONS,
    STEPS,
    TILE,
    VOCAB,
    batch,
    logits_of,
    loss_of,
    theirs_of,
)

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

ROTARY = [("q_proj", "v_proj", "down_proj"), ("k_proj", "o_proj", "gate_proj", "up_proj")]
#: By family: which layers have adapters.
CASES = [
    *(("gpt2", targets) for targets in (("c_attn",), ("attn.c_proj", "c_fc"), ("c_attn", "c_proj", "c_fc"))),
    *((name, targets) for name in ("llama", "llama, scaled and biased", "mistral", "qwen2", "qwen3") for targets in ROTARY),
]
RANK, ALPHA = 5, 8
Tensors = dict[str, Any]


def base_of(name: str) -> Any:
    """Return a random model of a family, without adapters."""
    if name != "gpt2":
        return theirs_of(name, 4)
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_layer=2, n_head=5, n_embd=80, n_inner=109, vocab_size=VOCAB, n_positions=POSITIONS, bos_token_id=None,
        eos_token_id=None, initializer_range=0.05, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def adapted(base: Any, targets: tuple[str, ...]) -> Any:
    """Return PEFT's model with random matrices A and B."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(targets), task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.copy_(0.1 * torch.randn_like(value))
    return model


def adapters_of(model: Any, what: Any = lambda value: value) -> Tensors:
    """Return the tensors of the adapters by PEFT's names in files."""
    return {name.replace(".default", ""): what(value).detach().numpy().copy()
            for name, value in model.named_parameters() if value.requires_grad}  # fmt: skip


@pytest.mark.parametrize(("name", "targets"), CASES)
async def test_logits_gradients_and_training_agree(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    base = base_of(name)
    base.save_pretrained(tmp_path)
    frozen = {name: value.clone() for name, value in base.named_parameters()}
    theirs = adapted(base, targets)
    tokens, wanted = batch(0)
    async with Engine("emulated", device_memory="512KiB") as engine:
        model = await Model.from_pretrained(engine, tmp_path, tile=TILE)
        plain, values = await model.logits(tokens), adapters_of(theirs)
        assert values.keys() == {tensor.name for tensor in LoRA(targets=targets).tensors(model.config)}
        await runtime_of(engine).call(model_state_of(model).adapt(
            LoRA(rank=RANK, alpha=ALPHA, targets=targets),
            lambda parameter, key: values[parameter.name][parameter.index(*key)]))
        logits = await model.logits(tokens)
        away = distance(logits, logits_of(theirs, tokens))
        print(f"logits of {name}: {away:.2e}, bound {LOGITS:.0e}")
        assert away < LOGITS < 1e-2 < distance(logits, plain)
        trainer = Trainer(model, ADAMW)
        exact = copy.deepcopy(theirs).double()
        loss_of(exact, tokens, wanted).backward()
        check_gradients(await trainer.gradients(tokens, wanted), adapters_of(exact, lambda value: value.grad), GRADIENT)
        adamw = torch.optim.AdamW(
            [value for value in theirs.parameters() if value.requires_grad],
            lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps, weight_decay=ADAMW.weight_decay)  # fmt: skip
        for seed in range(1, STEPS + 1):
            tokens, wanted = batch(seed)
            adamw.zero_grad()
            loss = loss_of(theirs, tokens, wanted)
            loss.backward()
            adamw.step()
            assert (await trainer.step(tokens, wanted)).loss == pytest.approx(loss.item(), rel=1e-5)
        state = await model.state_dict()
        found = {name: value for name, value in state.items() if "lora" in name}
        check_trained(found, adapters_of(theirs), TRAINED, steps=STEPS)
        for name, value in frozen.items():
            assert (state[name] == value.detach().numpy()).all(), name
        assert engine.statistics().uploaded_bytes > 0
