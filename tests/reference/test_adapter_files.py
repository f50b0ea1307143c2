"""Adapters and merged models against PEFT and transformers: each reads what the other wrote, with equal logits and texts.

test_lora.py compares how adapters are computed and trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from asynctile import Engine  # noqa: E402
from asynctile.cli import main  # noqa: E402
from asynctile.layers import AdamW, LoRA, Model, Trainer  # noqa: E402
from asynctile.layers.merge import merge  # noqa: E402
from tests.layers.training import assert_same_tensors  # noqa: E402
from tests.reference.bounds import LOGITS, distance  # noqa: E402
from tests.reference.test_families import FAMILIES, TILE, batch, logits_of, state_of, theirs_of  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

#: By family: layers of the attention and of the MLP.
TARGETS = {"gpt2": ("attn.c_proj", "c_attn", "c_fc"), **dict.fromkeys(FAMILIES, ("q_proj", "v_proj", "down_proj"))}


def base_of(name: str, folder: Path, dtype: Any = torch.float32) -> Any:
    """Write a random model in `folder` and return it."""
    if name == "gpt2":
        torch.manual_seed(1)
        config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=44, n_positions=64, vocab_size=151, bos_token_id=None,
                                         eos_token_id=None, initializer_range=0.1)  # fmt: skip
        model = transformers.GPT2LMHeadModel(config).eval()
    else:
        model = theirs_of(name, 4)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model


def theirs_from(folder: Path, adapter: Path | None = None) -> Any:
    """Return a saved model in transformers, with an adapter by PEFT. Nothing may be missing or left over."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return (model if adapter is None else peft.PeftModel.from_pretrained(model, adapter)).eval()


async def trained(folder: Path, name: str) -> tuple[Path, Any]:
    """Train an adapter for three steps, save it, and return its folder and its logits."""
    lora = LoRA(rank=5, alpha=12.0, targets=TARGETS[name], seed=3)
    async with Engine("emulated", device_memory="768KiB") as engine:
        model = await Model.from_pretrained(engine, folder, tile=TILE)
        trainer = Trainer(model, AdamW(lr=3e-2, weight_decay=0.0), adapters=lora)
        for seed in range(3):
            await trainer.step(*batch(seed))
        await model.save_adapter(folder.parent / "adapter")
        await trainer.save(folder.parent / "checkpoint")
        return folder.parent / "adapter", await model.logits(batch(0)[0])


@pytest.mark.parametrize("name", TARGETS)
async def test_an_adapter_that_was_trained_here_loads_in_peft(name: str, tmp_path: Path) -> None:
    base = base_of(name, tmp_path / "base")
    adapter, logits = await trained(tmp_path / "base", name)
    assert distance(logits, logits_of(base, batch(0)[0])) > 0.01, "an adapter that does nothing proves nothing"
    for folder in (adapter, tmp_path / "checkpoint"):
        model = theirs_from(tmp_path / "base", folder)
        assert distance(logits, logits_of(model, batch(0)[0])) < LOGITS
        # The folder alone is enough, since it names its base.
        alone = peft.AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        assert distance(logits, logits_of(alone, batch(0)[0])) < LOGITS
    merged = model.merge_and_unload()
    merge(tmp_path / "base", adapter, tmp_path / "merged")
    ours = theirs_from(tmp_path / "merged")
    assert distance(logits, logits_of(ours, batch(0)[0])) < LOGITS
    for key, value in state_of(ours).items():
        wanted = state_of(merged)[key]
        assert np.array_equal(value, wanted) or distance(value, wanted) < 1e-6, key


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_adapter_of_peft_loads_here(name: str, dtype: str, tmp_path: Path) -> None:
    """Random A and B, and the dropout that most published adapters were trained with."""
    base_of(name, tmp_path / "base", getattr(torch, dtype))
    model = theirs_from(tmp_path / "base")
    config = peft.LoraConfig(r=4, lora_alpha=7, target_modules=list(TARGETS[name]), lora_dropout=0.1, task_type="CAUSAL_LM",
                             init_lora_weights=False)  # fmt: skip
    torch.manual_seed(5)
    model = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key:
                value *= 0.2
    model.save_pretrained(tmp_path / "adapter")
    wanted = logits_of(model, batch(0)[0])
    async with Engine("cpu") as engine:
        ours = await Model.from_pretrained(engine, tmp_path / "base", tile=TILE)
        plain = await ours.logits(batch(0)[0])
        await ours.load_adapter(tmp_path / "adapter")
        logits = await ours.logits(batch(0)[0])
        await ours.save_adapter(tmp_path / "again")
    assert distance(logits, wanted) < LOGITS < distance(plain, wanted)
    again = theirs_from(tmp_path / "base", tmp_path / "again")
    adapters = {key: value for key, value in state_of(model).items() if "lora_" in key}
    assert_same_tensors({key: value for key, value in state_of(again).items() if "lora_" in key}, adapters)
    merge(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged", "float32")
    assert distance(wanted, logits_of(theirs_from(tmp_path / "merged"), batch(0)[0])) < LOGITS


def test_layers_that_peft_chose_by_pattern_or_number_are_those_of_the_file(tmp_path: Path) -> None:
    base_of("llama", tmp_path / "base")
    for number, chosen in enumerate((
        {"target_modules": r".*\.1\..*(q|v)_proj"},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0], "exclude_modules": ["v_proj"]},
        {"target_modules": None},
    )):  # fmt: skip
        torch.manual_seed(number)
        config = peft.LoraConfig(r=2, init_lora_weights=False, **chosen)
        model = peft.get_peft_model(theirs_from(tmp_path / "base"), config).eval()
        model.save_pretrained(tmp_path / f"{number}")
        merged = tmp_path / f"merged-{number}"
        assert main(["merge", *map(str, [tmp_path / "base", tmp_path / f"{number}", merged])]) == 0
        assert distance(logits_of(theirs_from(merged), batch(0)[0]), logits_of(model, batch(0)[0])) < LOGITS


def test_a_merged_model_in_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    """PEFT adds in bfloat16 what it rounded to bfloat16 before; here the sum of float32 is rounded to the nearest."""
    base = base_of("qwen2", tmp_path / "base", torch.bfloat16)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(theirs_from(tmp_path / "base"), config)
    model.save_pretrained(tmp_path / "adapter")
    exact = state_of(model.merge_and_unload())
    assert main(["merge", *map(str, [tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"])]) == 0
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert {str(value.dtype) for value in merged.parameters()} == {"torch.bfloat16"}
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    for key, value in state_of(merged).items():
        rounded = torch.from_numpy(exact[key]).bfloat16().float().numpy()
        assert np.array_equal(value, rounded) or (distance(value, rounded) < 1e-3 and "q_proj" in key), key
        if "q_proj" not in key:
            assert np.array_equal(value, state_of(base)[key])
