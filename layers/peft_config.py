"""An adapter's adapter_config.json, in the form of PEFT 0.21: which fields are read, which are refused, and what is written.

adapter_files.py has the rest of the folder, lora.py the settings of an adapter. PEFT documents the fields at LoraConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asynctile.layers.config import Config
from asynctile.layers.lora import LoRA
from asynctile.storage.input import SHOWN, shown

#: PEFT's values where a file leaves these out.
RANK = ALPHA = 8
_WITHOUT = "train or convert the adapter without it"
#: The fields that have one value here, with it, and what to do about another.
_ONLY = {
    "peft_type": ("LORA", "only LoRA adapters are computed"),
    "task_type": ("CAUSAL_LM", "load an adapter of a model that writes text"),
    "bias": ("none", _WITHOUT),
    "use_rslora": (False, "multiply lora_alpha by the root of r, and set use_rslora to false"),
}
#: Fields without a meaning for what an adapter computes. Those that choose layers are among them, because the file of tensors
#: says which layers there are. There is no dropout here, as nowhere in asynctile.
_FREE = {
    "r", "lora_alpha", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout",
    "fan_in_fan_out", "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "inference_mode", "megatron_core",
    "qalora_group_size", "eva_config", "runtime_config",
}  # fmt: skip
#: How new adapters begin without a change of the base's weights.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise ValueError, which names the field, for an adapter that computes something else than x W + scaling (x A^T) B^T.

    A field that is not known here may be null, false, empty or a number: a switch that turns an arithmetic on is none of these.
    """
    for name, (expected, way) in _ONLY.items():
        found = values.get(name)
        if found != expected and (found is not None or name == "peft_type"):
            raise ValueError(f"{name} is {shown(found)}, and only {expected!r} is computed here; {way}")
    beginning = values.get("init_lora_weights", True)
    if beginning not in _BEGINNINGS:
        raise ValueError(f"init_lora_weights is {shown(beginning)}, which changes the weights of the base; save the adapter by "
                         "PEFT with path_initial_model_for_weight_conversion")
    for name, found in values.items():
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if name in _FREE or name in _ONLY or name == "init_lora_weights" or not found or is_number:
            continue
        field = name if name.isidentifier() and len(name) <= SHOWN else shown(name)
        raise ValueError(f"{field} is {shown(found)}, which is not computed here; {_WITHOUT}")


def to_peft(lora: LoRA, config: Config, base: str | None) -> dict[str, Any]:
    """Return the content of adapter_config.json. base: the folder of the base model, None if there is none."""
    stands_upright = all(tensor.transposed for tensor in lora.layers(config))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "target_modules": list(config.lora_targets if lora.targets is None else lora.targets),
        "fan_in_fan_out": not stands_upright,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
